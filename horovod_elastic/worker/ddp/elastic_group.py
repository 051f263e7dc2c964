"""The default process group of an elastic script: always the same object, with another inside after a resize.

torch.distributed, DistributedDataParallel and the script hold this group from init_process_group to the end.
Its collectives go to the group of the present generation. If one fails, because a member is gone, nobody
hears of it: the group notes the failure, and from then on collectives have the effect that they have in a
group of one, until the training loop has found its way into the next generation (training_loop.py). So no
exception goes through a script, which could not go on after it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from horovod_elastic.core.c10d.communicator import Communicator
from horovod_elastic.core.c10d.requests import GLOBAL_SET
from horovod_elastic.core.c10d.sums import MOST_SHARED_BYTES, Sharing, Summing, Sums
from horovod_elastic.worker.ddp import fixed_tree, torchs_own
from horovod_elastic.worker.ddp.works import ByAggregators, Done, Guarded, Reducing

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.units import Unit

SUMS_AT_ONCE = 8
"""How many buckets of one size may be summed by Aggregators at the same time."""
KEPT_BYTES = 1 << 20
"""Tensors of the script's own collectives up to this size get their values back if the collective fails."""


class ElasticGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The group (see the module). `rank`, `size`: what the script is told at first."""

    unit: Unit | None = None
    """The unit of this worker, in a job whose workers come and go in units."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._communicator: Communicator | None = None
        self._inside: Any = None
        self._sums: Sums | None = None
        self._gloo: Any = None
        """The group of Gloo in `_inside`."""
        self._gpu: torch.device | None = None
        """The GPU whose tensors NCCL carries; None if there were none in this generation."""
        self._members = GLOBAL_SET
        """The number of the communicator's process set whose members this group has."""
        self.gone: frozenset[int] = frozenset()
        """The ranks that have died in this generation, as all others know since the same step."""
        self._lock = threading.Lock()
        self.muted = True
        """Whether collectives have the effect of a group of one."""
        self.guards = False
        """Whether the script is to hear nothing of a failed collective."""
        self.failure = ""
        """Why a collective has failed; "" if none has since `enter`."""
        self.reductions = 0
        """How often gradients were to be averaged."""
        self.weight = 1.0
        """The factor for this worker's gradients (deal.Share.weight)."""
        self.batch = 0
        """The samples of this worker's present training batch; 0 if flexo does not deal them out."""
        self.gathers_samples = False
        """Whether the script gathers something for each of them: all workers must have as many then."""
        self.patience: timedelta | None = None
        """How long the script's own collectives wait for other workers; None: no longer than in a hand-over,
        where a newcomer may never come."""
        self.adds_in_order = False
        """Whether sums have the same bits wherever ranks run (fixed_tree.py)."""

    # --- for the training loop --------------------------------------------------------------------------

    def enter(self, communicator: Communicator) -> None:
        """Use this communicator. The group stays muted if it was."""
        self.failure = ""
        self._enter(communicator, communicator.place.rank, communicator.place.size)

    def _enter(self, communicator: Communicator, rank: int, size: int) -> None:
        self._communicator, self._inside, self._gpu, self._gloo = communicator, None, None, None
        self.gone = frozenset()
        self._sums = communicator.sums(SUMS_AT_ONCE) if self._members == GLOBAL_SET else None
        if size == 1:
            return
        try:
            self._gloo = communicator.groups().gloo(self._members)
            self._inside = torchs_own.plain_group(rank, size, self._gloo)
        except RuntimeError as error:  # a member is gone already
            if not self.guards:
                raise
            self.note_failure(error)

    def is_told(self, rank: int, size: int) -> None:
        """Tell the script this place: a newcomer's future one."""
        self._rank, self._size = rank, size

    def take_place(self) -> None:
        """Tell the script its place in the communicator from now on."""
        assert self._communicator is not None
        self._rank, self._size = self._communicator.place.rank, self._communicator.place.size
        torchs_own.has_ranks(self, range(self._size))
        if self.patience is not None and self._gloo is not None:
            torchs_own.have_wait(self._gloo, self.patience)

    def weigh(self, weight: float, alike: int, batch: int = 0) -> None:
        """Weigh this worker's gradients. `alike`: the number of workers that have the same samples."""
        self.weight, self.batch = weight, batch

    def leave(self) -> None:
        """Be alone."""
        self._communicator = self._inside = self._sums = None
        self.muted = True

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """All members' numbers, by rank, even while the group is muted. Raises RuntimeError."""
        own = torch.tensor(list(numbers), dtype=torch.int64)
        if self._inside is None:
            if self.failure:
                raise RuntimeError(self.failure)
            return [own.tolist()]
        everybodys = [torch.empty_like(own) for _ in range(self._inside.size())]
        self._inside.allgather([everybodys], [own]).wait()
        return [each.tolist() for each in everybodys]

    def broadcast_from(self, rank: int, tensor: torch.Tensor) -> Callable[[], object]:
        """Begin to broadcast, even while the group is muted; the function waits. Raises RuntimeError."""
        options = dist.BroadcastOptions()
        options.rootRank = rank
        if self._inside is None:
            raise RuntimeError("there is no group")
        return self._group_for(tensor).broadcast([tensor], options).wait  # type: ignore[no-any-return]

    def note_failure(self, error: object) -> None:
        """Note that a collective has failed. Any thread may call it."""
        with self._lock:
            self.failure = self.failure or str(error) or "a collective failed"
            self.muted = True

    def has_failed(self) -> bool:
        """Whether a collective has failed. A worker that is alone has none: it asks its communicator."""
        communicator = self._communicator if self._inside is None and not self.failure else None
        if communicator is not None and communicator.is_broken():
            self.note_failure("the leader has ended this generation")
        return bool(self.failure)

    @property
    def is_on_gpus(self) -> bool:
        """Whether tensors on GPUs go from GPU to GPU."""
        return self._gpu is not None

    def wait_for_gpu(self) -> None:
        """Wait until this worker's GPU has done what is queued, and see if the generation is broken then.

        NCCL reports no failure. Where a member has died, the GPU goes on once the group is ended, with
        whatever is in the tensors. Raises RuntimeError where failures are not hidden from the script.
        """
        if spoiled := self._spoiled():
            if not self.guards:
                raise RuntimeError(spoiled)
            self.note_failure(spoiled)

    def _spoiled(self) -> str:
        """Wait for the GPU. Returns why what NCCL has made there may be wrong; "" if it is not.

        Raises what the script's own kernels have failed with.
        """
        communicator = self._communicator
        if self._gpu is None or communicator is None:
            return ""
        try:
            torch.cuda.current_stream(self._gpu).synchronize()
        except RuntimeError:
            if not communicator.is_broken():
                raise
        return "the generation was ended while the GPU worked" if communicator.is_broken() else ""

    @property
    def of_alike(self) -> ElasticGroup:
        """The group of the workers that have the same part of the state as this one."""
        return self

    # --- for torch.distributed --------------------------------------------------------------------------

    def rank(self) -> int:
        """This worker's rank, as the script is told."""
        return self._rank

    def size(self) -> int:
        """The number of workers, as the script is told."""
        return self._size

    getRank, getSize = rank, size  # noqa: N815  the names that PyTorch's C++ code calls

    def name(self) -> str:
        """The name of the backend."""
        return torchs_own.BACKEND

    def getBackendName(self) -> str:  # noqa: N802
        """The name of the backend, for PyTorch's C++ code."""
        return torchs_own.BACKEND

    @property
    def group_name(self) -> str:
        """The name by which torch.distributed knows the group; device meshes ask for it."""
        return torchs_own.name_of(self)

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> Any:
        """See dist.all_reduce; gradients of a backward pass come here, too."""
        if torchs_own.in_backward():
            return self._reduce_gradients(tensors, *options)
        return self._carry("allreduce", tensors, _keep_own, tensors, *options)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], *options: Any) -> Any:
        """See dist.all_reduce_coalesced."""
        return self._carry("allreduce_coalesced", tensors, _keep_own, tensors, *options)

    def broadcast(self, tensors: list[torch.Tensor], *options: Any) -> Any:
        """See dist.broadcast."""
        return self._carry("broadcast", tensors, _keep_own, tensors, *options)

    def reduce(self, tensors: list[torch.Tensor], *options: Any) -> Any:
        """See dist.reduce."""
        return self._carry("reduce", tensors, _keep_own, tensors, *options)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *options: Any) -> Any:
        """See dist.all_gather."""

        def alone() -> None:
            for into, own in zip(outputs, inputs, strict=True):
                for each in into:
                    each.copy_(own)

        self._note_gathered(inputs)
        return self._carry("allgather", inputs, alone, outputs, inputs, *options)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *options: Any
    ) -> Any:
        """See dist.all_gather_coalesced."""

        def alone() -> None:
            for into in outputs:
                for each, own in zip(into, inputs, strict=True):
                    each.copy_(own)

        return self._carry("allgather_coalesced", inputs, alone, outputs, inputs, *options)

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, *options: Any) -> Any:
        """See dist.all_gather_into_tensor."""

        def alone() -> None:
            output.view(-1, own.numel())[:] = own.reshape(-1)

        self._note_gathered([own])
        return self._carry("_allgather_base", [own], alone, output, own, *options)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: Any
    ) -> Any:
        """See all_gather_single, of several tensors."""

        def alone() -> None:
            for output, own in zip(outputs, inputs, strict=True):
                output.view(-1, own.numel())[:] = own.reshape(-1)

        return self._carry("allgather_into_tensor_coalesced", inputs, alone, outputs, inputs, *options)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *options: Any) -> Any:
        """See dist.gather."""

        def alone() -> None:
            for into, own in zip(outputs, inputs, strict=False):
                for each in into:
                    each.copy_(own)

        self._note_gathered(inputs)
        return self._carry("gather", inputs, alone, outputs, inputs, *options)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *options: Any) -> Any:
        """See dist.scatter."""
        return self._carry("scatter", outputs, self._own_of(outputs, inputs), outputs, inputs, *options)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *options: Any
    ) -> Any:
        """See dist.reduce_scatter."""
        return self._carry(
            "reduce_scatter", outputs, self._own_of(outputs, inputs), outputs, inputs, *options
        )

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, *options: Any) -> Any:
        """See dist.reduce_scatter_tensor."""

        def alone() -> None:
            output.copy_(whole.view(-1, output.numel())[0].view_as(output))

        return self._carry("_reduce_scatter_base", [output], alone, output, whole, *options)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], wholes: list[torch.Tensor], *options: Any
    ) -> Any:
        """See reduce_scatter_single, of several tensors."""

        def alone() -> None:
            for output, whole in zip(outputs, wholes, strict=True):
                output.copy_(whole.view(-1, output.numel())[0].view_as(output))

        return self._carry("reduce_scatter_tensor_coalesced", outputs, alone, outputs, wholes, *options)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: Any) -> Any:
        """See dist.all_to_all."""

        def alone() -> None:
            for output, own in zip(outputs, inputs, strict=True):
                if output.shape == own.shape:
                    output.copy_(own)

        return self._carry("alltoall", outputs, alone, outputs, inputs, *options)

    def all_to_all_single(self, output: torch.Tensor, own: torch.Tensor, *splits: Any) -> Any:
        """See dist.all_to_all_single."""

        def alone() -> None:
            if output.shape == own.shape:
                output.copy_(own)

        self._note_gathered([own])
        return self._carry("alltoall_base", [own], alone, output, own, *splits)

    alltoall_base = all_to_all_single

    def send(self, tensors: list[torch.Tensor], *where: Any) -> Any:
        """See dist.send."""
        return self._carry("send", tensors, _keep_own, tensors, *where)

    def recv(self, tensors: list[torch.Tensor], *where: Any) -> Any:
        """See dist.recv."""
        return self._carry("recv", tensors, _keep_own, tensors, *where)

    def recv_anysource(self, tensors: list[torch.Tensor], *where: Any) -> Any:
        """See dist.recv without a source."""
        return self._carry("recv_anysource", tensors, _keep_own, tensors, *where)

    def barrier(self, *options: Any, opts: Any = None) -> Any:
        """See dist.barrier. It goes through Gloo, on whichever GPU the script would have it wait."""
        given = opts if opts is not None else next(iter(options), None)
        in_memory = dist.BarrierOptions()
        if given is not None:
            in_memory.timeout = given.timeout
        return self._carry("barrier", [], _keep_own, in_memory)

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """See dist.monitored_barrier; who is missing, flexo finds out itself."""
        self.barrier().wait()

    # --- how --------------------------------------------------------------------------------------------

    def _own_of(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]]) -> Callable[[], None]:
        def alone() -> None:
            for output, each in zip(outputs, inputs, strict=False):
                output.copy_(each[min(self._rank, len(each) - 1)])

        return alone

    def _note_gathered(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note whether tensors that are to be gathered have a row for each sample of a training batch.

        All workers must find the same. So it counts only while they have equally many samples.
        """
        if self.weight != 1.0:
            return
        rows = [len(each) for each in tensors if self.batch and each.dim()]
        self.gathers_samples |= any(each and each % self.batch == 0 for each in rows)

    def _group_for(self, tensor: torch.Tensor | None) -> Any:
        """The group inside, able to carry a tensor on that device."""
        if tensor is not None and tensor.is_cuda and self._gpu is None:
            assert self._communicator is not None
            groups = self._communicator.groups()
            # NCCL refuses ranks that share a GPU, and does not notice a rank that dies.
            if self.adds_in_order or self._sums is not None:
                torchs_own.add_backend(self._inside, "cuda", "gloo", groups.gloo(self._members))
                return self._inside
            torchs_own.add_backend(self._inside, "cuda", "nccl", groups.nccl(self._members, tensor.device))
            self._gpu = tensor.device
            self._communicator.gpu = tensor.device
        return self._inside

    def _note_gpu(self, tensor: torch.Tensor) -> None:
        """Have the next generation connect this GPU before it begins, if this worker is alone so far."""
        if tensor.is_cuda and not self.adds_in_order and self._communicator is not None:
            self._communicator.gpu = tensor.device

    def _begin(self, name: str, tensors: Sequence[torch.Tensor], given: Sequence[Any]) -> Any:
        """Begin a collective of the group inside. Raises RuntimeError."""
        if self.adds_in_order and fixed_tree.adds_up(name, tensors, given[1:]):
            fixed_tree.add_up(self._inside, tensors, given[1:])
            return Done(list(tensors))
        if self._sums is not None and (begun := self._begin_sum(self._sums, name, tensors, given)):
            return begun
        work = getattr(self._group_for(tensors[0] if tensors else None), name)(*given)
        # NCCL returns none for what the script asks for at once: its kernels are in the script's own stream.
        return Done(list(tensors)) if work is None else work

    def _begin_sum(self, sums: Sums, name: str, tensors: Sequence[torch.Tensor], given: Sequence[Any]) -> Any:
        """Begin a collective that Aggregators can make; None if they cannot. Raises RuntimeError."""
        if not tensors:
            return None
        if name == "allreduce" and _is_sum(given[1:]):
            shapes = tuple(tuple(each.shape) for each in tensors)
            if sums.can(shapes, tensors[0].dtype):
                summing = sums.begin(shapes, tensors[0].dtype, [each.cpu() for each in tensors])
                gradients = torchs_own.in_backward()
                take = functools.partial(
                    _take_sum, summing, list(tensors), average=gradients, of_gradients=gradients
                )
                return ByAggregators(summing, list(tensors), take)
        if name == "broadcast" and 0 < tensors[0].nbytes <= MOST_SHARED_BYTES:
            root, data = given[1].rootRank, tensors[0].view(-1).view(torch.uint8)
            sharing = sums.share(data.numel(), 0, data if root == self._communicator_rank() else None)
            return ByAggregators(sharing, list(tensors), functools.partial(_take_shared, sharing, root, data))
        return None

    def _communicator_rank(self) -> int:
        assert self._communicator is not None
        return self._communicator.place.rank

    def missed_step(self) -> frozenset[int]:
        """The ranks that have died before they could contribute to the last step. Each is told once.

        Another step begins.
        """
        if self._sums is not None:
            self._sums.begins_step()
        if self._communicator is None:
            return frozenset()
        absent, before = self._communicator.absent(), self.gone
        self.gone = absent | before
        return absent - before

    def _carry(
        self, name: str, tensors: Sequence[torch.Tensor], alone: Callable[[], None], *given: Any
    ) -> Any:
        """Carry a collective of the script out. `alone`: what it does in a group of one."""
        if self.muted or self._inside is None:
            alone()
            return Done(list(tensors))
        if not self.guards:
            return self._begin(name, tensors, given)
        kept = [each.clone() if each.nbytes <= KEPT_BYTES else None for each in tensors]

        def failed(error: RuntimeError) -> None:
            self.note_failure(error)
            for tensor, before in zip(tensors, kept, strict=True):
                if before is not None:
                    tensor.copy_(before)
            alone()

        try:
            work = self._begin(name, tensors, given)
        except RuntimeError as error:
            failed(error)
            return Done(list(tensors))
        return Guarded(work, failed, self._spoiled)

    def _reduce_gradients(self, tensors: list[torch.Tensor], *options: Any) -> Any:
        """Reduce gradients. If that fails, they are zero: what a script makes of them harms nobody.

        NCCL's failure is noticed at the optimizer's step only. Until then the script sees what is there.
        """
        self.reductions += 1
        if self.muted or self._inside is None:
            self._note_gpu(tensors[0])
            return Done(tensors)
        if self.weight != 1.0 and tensors[0].is_floating_point():
            tensors[0].mul_(self.weight)
        try:
            work = self._begin("allreduce", tensors, (tensors, *options))
        except RuntimeError as error:
            if not self.guards:
                raise
            self._zero(tensors, error)
            return Done(tensors)
        return Reducing(work, self._zero, tensors) if self.guards else work

    def _zero(self, tensors: list[torch.Tensor], error: object) -> None:
        self.note_failure(error)
        for tensor in tensors:
            tensor.zero_()


def _is_sum(options: Sequence[Any]) -> bool:
    """Whether an all-reduce with these options is a plain sum."""
    operation = getattr(options[0], "reduceOp", options[0]) if options else dist.ReduceOp.SUM
    return bool(operation == dist.ReduceOp.SUM)


def _take_sum(summing: Summing, tensors: list[torch.Tensor], **how: bool) -> None:
    in_memory = [torch.empty_like(each, device="cpu") if each.is_cuda else each for each in tensors]
    summing.take(in_memory, **how)
    for tensor, value in zip(tensors, in_memory, strict=True):
        if tensor is not value:
            tensor.copy_(value)
    _finish_on_gpus(tensors)


def _finish_on_gpus(tensors: Sequence[torch.Tensor]) -> None:
    """Wait until what this thread has copied to GPUs is there, for threads with other streams."""
    for device in {each.device for each in tensors if each.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _take_shared(sharing: Sharing, root: int, into: torch.Tensor) -> None:
    data, ranks = sharing.result()
    if root not in ranks:
        raise RuntimeError(f"rank {root} has died before it could broadcast")
    into.copy_(data)
    _finish_on_gpus([into])


def _keep_own() -> None:
    """What a sum, a broadcast or a barrier does in a group of one."""
