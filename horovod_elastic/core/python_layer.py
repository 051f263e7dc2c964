"""What every core owes Horovod's own Python layer when a communicator becomes the present one.

horovod.torch keeps handles, process sets and variables of its own, all of them about the communicator that
was there when they were made.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from horovod_elastic.core.interface import Place

VARIABLES = {
    "HOROVOD_RANK": "rank",
    "HOROVOD_SIZE": "size",
    "HOROVOD_LOCAL_RANK": "local_rank",
    "HOROVOD_LOCAL_SIZE": "local_size",
    "HOROVOD_CROSS_RANK": "cross_rank",
    "HOROVOD_CROSS_SIZE": "cross_size",
    "HOROVOD_HOSTNAME": "hostname",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "rendezvous_address",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "rendezvous_port",
}
"""By name, the field of a Place that gives the value."""
GLOO_TIMEOUT_S = 30.0
"""Gloo's own default."""
_sets_of_the_script: weakref.WeakSet[Any] = weakref.WeakSet()


def variables(place: Place) -> dict[str, str]:
    """What the environment says of this place."""
    return {name: str(getattr(place, field)) for name, field in VARIABLES.items()}


def gloo_timeout_s() -> float:
    """Seconds until a collective fails that nobody breaks."""
    text = os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "")
    return float(text) if text.isdecimal() else GLOO_TIMEOUT_S


def can_be(ranks: Sequence[int], size: int) -> bool:
    """Whether there can be a process set of these ranks, in ascending order."""
    return bool(ranks) and len(set(ranks)) == len(ranks) and 0 <= ranks[0] <= ranks[-1] < size


def begin(mpi_ops: ModuleType, process_sets: Iterable[Any] = ()) -> None:
    """A communicator has become the present one; `process_sets` of the script are part of it.

    `mpi_ops` is horovod.torch.mpi_ops, which reaches the new communicator already.
    """
    from horovod.common.process_sets import _init_process_sets

    mpi_ops._handle_map = {}  # type: ignore[attr-defined]
    for process_set in list(_sets_of_the_script):
        process_set.process_set_id = None
    size = mpi_ops.size()
    # Without the global process set DistributedOptimizer registers no hooks, and says nothing.
    _init_process_sets([each for each in process_sets if can_be(each.ranks, size)])


def patch_process_sets(module: ModuleType) -> None:
    """Have horovod.common.process_sets tell of every process set that a script makes.

    Its number means nothing to the next communicator, or another set.
    """
    process_set = module.ProcessSet
    original = process_set.__init__

    def init(self: Any, ranks_or_comm: Any) -> None:
        original(self, ranks_or_comm)
        _sets_of_the_script.add(self)

    process_set.__init__ = init
