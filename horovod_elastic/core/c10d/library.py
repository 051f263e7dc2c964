"""The stand-in for Horovod's library as HorovodBasics opens it with ctypes: places, process sets, features.

Numbers and arrays arrive as ctypes objects. Errors are returned as HorovodBasics's negative numbers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

import torch

from horovod_elastic.core.c10d.requests import GLOBAL_SET, Operation, Reduction, Request
from horovod_elastic.core.c10d.work import Work
from horovod_elastic.core.interface import RankPlacement
from horovod_elastic.trace import say

if TYPE_CHECKING:
    from horovod_elastic.core.c10d.layer import Layer

ERROR_INIT = -1
ERROR_DYNAMIC = -2
ERROR_UNKNOWN_SET = -3
ERROR_FOREIGN_SET = -4
ERROR_EXISTING_SET = -6
_PREFIX = "horovod_"


class Library:
    """The stand-in (see the module). As with ctypes, attributes of its functions can be set."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        for name in dir(type(self)):
            if name.startswith(_PREFIX):  # a bound method takes no attributes, a partial does
                setattr(self, name, functools.partial(getattr(self, name)))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name}: the core on torch.distributed stands in for Horovod's library and has no such function"
        )

    # --- life -----------------------------------------------------------------------------------------------

    def horovod_init(
        self, _ranks: Sequence[int], some: Any, ranks: Sequence[int], sizes: Sequence[int], sets: Any
    ) -> bool:
        """Handle the script's hvd.init. After hvd.shutdown, this process gets back the place that it had.

        The core itself makes the first communicator. Returns whether there is a communicator to use.
        """
        if self._layer.in_use() is not None:
            return True
        if _number(some):
            say("hvd.init(comm=...) is not possible: it is settled who trains")
            return False
        if not self._layer.start_again():
            say("hvd.init: there is nobody to train with, as this process was not started by flexo run")
            return False
        wanted = iter(ranks[: sum(sizes[: _number(sets)])])
        self._renew_process_sets([[next(wanted) for _ in range(size)] for size in sizes[: _number(sets)]])
        return True

    def horovod_shutdown(self) -> None:
        """Handle the script's hvd.shutdown, and the shutdown at the end of the process."""
        self._layer.shut_down()

    def horovod_is_initialized(self) -> int:
        """1 if the script may use a communicator now, else 0."""
        return int(self._layer.in_use() is not None)

    # --- places ---------------------------------------------------------------------------------------------

    def horovod_rank(self) -> int:
        """This process's rank. Without a communicator, it is -1, as are the next five numbers."""
        return self._of_place("rank")

    def horovod_size(self) -> int:
        """The number of ranks in the generation."""
        return self._of_place("size")

    def horovod_local_rank(self) -> int:
        """This process's rank among the workers on this node."""
        return self._of_place("local_rank")

    def horovod_local_size(self) -> int:
        """The number of workers on this node."""
        return self._of_place("local_size")

    def horovod_cross_rank(self) -> int:
        """This process's rank among the workers with its local rank on all nodes."""
        return self._of_place("cross_rank")

    def horovod_cross_size(self) -> int:
        """The number of workers with this process's local rank on all nodes."""
        return self._of_place("cross_size")

    def horovod_is_homogeneous(self) -> bool:
        """Whether all nodes have the same number of workers, as far as this worker can tell."""
        place = self._place()
        return place is not None and place.local_size * place.cross_size == place.size

    def _of_place(self, field: str) -> int:
        place = self._place()
        return ERROR_INIT if place is None else int(getattr(place, field))

    def _place(self) -> RankPlacement | None:
        communicator = self._layer.in_use()
        return None if communicator is None else communicator.place

    # --- features -------------------------------------------------------------------------------------------

    def horovod_gloo_built(self) -> bool:
        """True: collectives on tensors in memory use Gloo."""
        return True

    horovod_gloo_enabled = horovod_gloo_built

    def horovod_nccl_built(self) -> int:
        """NCCL's version, as NCCL itself numbers its versions; 0 if PyTorch has no NCCL."""
        if not torch.distributed.is_nccl_available():
            return 0
        major, minor, patch = torch.cuda.nccl.version()[:3]
        return int(10000 * major + 100 * minor + patch)

    def horovod_cuda_built(self) -> bool:
        """Whether PyTorch was built with CUDA."""
        return bool(torch.backends.cuda.is_built())

    def horovod_mpi_built(self) -> bool:
        """False: nothing else that Horovod may be built with is used."""
        return False

    horovod_mpi_enabled = horovod_ddl_built = horovod_ccl_built = horovod_rocm_built = horovod_mpi_built

    def horovod_mpi_threads_supported(self) -> int:
        """0: there is no MPI to share."""
        return 0

    def horovod_reduce_op_average(self) -> int:
        """The number of the reduction that averages. Such numbers come back in mpi_lib's arguments."""
        return int(Reduction.AVERAGE)

    def horovod_reduce_op_sum(self) -> int:
        """The number of the reduction that sums."""
        return int(Reduction.SUM)

    def horovod_reduce_op_adasum(self) -> int:
        """The number of Adasum. It has a number so that it can be refused by name."""
        return int(Reduction.ADASUM)

    def horovod_reduce_op_min(self) -> int:
        """The number of the reduction to the minimum."""
        return int(Reduction.MIN)

    def horovod_reduce_op_max(self) -> int:
        """The number of the reduction to the maximum."""
        return int(Reduction.MAX)

    def horovod_reduce_op_product(self) -> int:
        """The number of the reduction that multiplies."""
        return int(Reduction.PRODUCT)

    # --- process sets ---------------------------------------------------------------------------------------

    def horovod_add_process_set(self, ranks: Sequence[int], some: Any) -> int:
        """Add a process set, together with all other ranks. Returns its number, or an error's number.

        Raises ValueError for unknown ranks.
        """
        if self._layer.in_use() is None:
            return ERROR_INIT
        if not _dynamic_process_sets():
            return ERROR_DYNAMIC
        number = self._add(list(ranks[: _number(some)]))
        return ERROR_EXISTING_SET if number < 0 else number

    def horovod_remove_process_set(self, process_set: Any) -> int:
        """Remove a process set, together with all other ranks. Returns its number, or an error's number."""
        if self._layer.in_use() is None:
            return ERROR_INIT
        if not _dynamic_process_sets():
            return ERROR_DYNAMIC
        number = _number(process_set)
        if number not in self._layer.present().process_sets():
            return ERROR_UNKNOWN_SET
        return ERROR_UNKNOWN_SET if self._remove(number) < 0 else number

    def horovod_process_set_rank(self, process_set: Any) -> int:
        """This process's index among the set's members, or an error's number."""
        communicator = self._layer.in_use()
        if communicator is None:
            return ERROR_INIT
        members = communicator.process_sets().get(_number(process_set))
        if members is None:
            return ERROR_UNKNOWN_SET
        rank = communicator.place.rank
        return members.index(rank) if rank in members else ERROR_FOREIGN_SET

    def horovod_process_set_size(self, process_set: Any) -> int:
        """The number of the set's members, or an error's number."""
        communicator = self._layer.in_use()
        if communicator is None:
            return ERROR_INIT
        members = communicator.process_sets().get(_number(process_set))
        return ERROR_UNKNOWN_SET if members is None else len(members)

    def horovod_process_set_included(self, process_set: Any) -> int:
        """1 if this process is a member of the set, 0 if not, or an error's number."""
        rank = self.horovod_process_set_rank(process_set)
        if rank == ERROR_FOREIGN_SET:
            return 0
        return 1 if rank >= 0 else rank

    def horovod_number_of_process_sets(self) -> int:
        """The number of process sets, including the global one; 0 without a communicator."""
        communicator = self._layer.in_use()
        return 0 if communicator is None else len(communicator.process_sets())

    def horovod_process_set_ids(self, ids: MutableSequence[int]) -> None:
        """Fill `ids` with the numbers of all process sets, in ascending order."""
        communicator = self._layer.in_use()
        numbers = [] if communicator is None else sorted(communicator.process_sets())
        ids[: len(numbers)] = numbers

    def horovod_process_set_ranks(self, process_set: Any, ranks: MutableSequence[int]) -> int:
        """Fill `ranks` with the ranks of the set's members. Returns 0, or an error's number."""
        communicator = self._layer.in_use()
        if communicator is None:
            return ERROR_INIT
        members = communicator.process_sets().get(_number(process_set))
        if members is None:
            return ERROR_UNKNOWN_SET
        ranks[: len(members)] = list(members)
        return 0

    def _renew_process_sets(self, wanted: Sequence[Sequence[int]]) -> None:
        """Remove all process sets but the global one, and add the `wanted` ones."""
        for number in sorted(self._layer.present().process_sets()):
            if number != GLOBAL_SET:
                self._remove(number)
        for ranks in wanted:
            self._add(ranks)

    def _add(self, ranks: Sequence[int]) -> int:
        """Add a process set. Returns its number; -1 if a set of these ranks exists."""
        communicator = self._layer.present()
        members = tuple(sorted(set(ranks))) or tuple(range(communicator.place.size))
        if not set(members) <= set(range(communicator.place.size)):
            ranks_there = communicator.place.size
            raise ValueError(
                f"A process set of ranks {list(members)} cannot be: there are {ranks_there} ranks."
            )
        if members in communicator.process_sets().values():
            return -1
        name = f"add_process_set.{','.join(map(str, members))}"
        return self._all_agree(Request(Operation.ADD_PROCESS_SET, name, members=members))

    def _remove(self, number: int) -> int:
        """Remove a process set. Returns 0; -1 if there is no such set."""
        name = f"remove_process_set.{number}"
        return self._all_agree(Request(Operation.REMOVE_PROCESS_SET, name, removed_set=number))

    def _all_agree(self, request: Request) -> int:
        """Make a request that all ranks must make, and return its result.

        Raises HorovodInternalError if the communicator has failed.
        """
        from horovod.common.exceptions import HorovodInternalError

        work = Work(request)
        try:
            self._layer.wait(self._layer.submit([work]))
        except RuntimeError as error:
            raise HorovodInternalError(error) from error
        return work.result

    # --- timeline -------------------------------------------------------------------------------------------

    def horovod_start_timeline(self, path: Any, mark_cycles: Any) -> int:
        """Start the timeline. Returns 1, or an error's number."""
        if self._layer.in_use() is None:
            return ERROR_INIT
        self._layer.timeline.start(path.value.decode(), bool(mark_cycles.value))
        return 1

    def horovod_stop_timeline(self) -> int:
        """Stop the timeline. Returns 1, or an error's number."""
        if self._layer.in_use() is None:
            return ERROR_INIT
        self._layer.timeline.stop()
        return 1


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


def _dynamic_process_sets() -> bool:
    """Whether HOROVOD_DYNAMIC_PROCESS_SETS is on. The variable is read as Horovod reads its switches."""
    text = os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").strip()
    return text.isdecimal() and int(text) > 0
