"""The duties of every core towards Horovod's own Python layer when a communicator becomes the present one.

horovod.torch keeps handles, process sets and variables of its own. All of them refer to the communicator that
was the present one when they were made.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from horovod_elastic.core.interface import RankPlacement

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
"""For each environment variable, the field of RankPlacement that gives its value."""
GLOO_TIMEOUT_S = 30.0
"""Gloo's own default timeout, in seconds."""
_sets_of_the_script: weakref.WeakSet[Any] = weakref.WeakSet()


def variables(place: RankPlacement) -> dict[str, str]:
    """The environment variables that tell Horovod this place."""
    return {name: str(getattr(place, field)) for name, field in VARIABLES.items()}


def gloo_timeout_s() -> float:
    """Seconds until a collective fails if nobody breaks it before."""
    text = os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "")
    return float(text) if text.isdecimal() else GLOO_TIMEOUT_S


def can_be(ranks: Sequence[int], size: int) -> bool:
    """Whether a process set of these ranks (in ascending order) is possible in a generation of `size`."""
    return bool(ranks) and len(set(ranks)) == len(ranks) and 0 <= ranks[0] <= ranks[-1] < size


def begin(mpi_ops: ModuleType, process_sets: Iterable[Any] = ()) -> None:
    """Adapt Horovod's Python layer to a communicator that has become the present one.

    `mpi_ops`: horovod.torch.mpi_ops, which reaches the new communicator already. `process_sets`: the script's
    process sets that are part of the communicator.
    """
    from horovod.common.process_sets import _init_process_sets

    mpi_ops._handle_map = {}  # type: ignore[attr-defined]
    for process_set in list(_sets_of_the_script):
        process_set.process_set_id = None
    size = mpi_ops.size()
    # Without the global process set, DistributedOptimizer registers no hooks and gives no error.
    _init_process_sets([each for each in process_sets if can_be(each.ranks, size)])


def patch_process_sets(module: ModuleType) -> None:
    """Have horovod.common.process_sets record every process set that a script makes.

    `begin` resets the sets' numbers. To the next communicator, a number means another set or none.
    """
    process_set = module.ProcessSet
    original = process_set.__init__

    def init(self: Any, ranks_or_comm: Any) -> None:
        original(self, ranks_or_comm)
        _sets_of_the_script.add(self)

    process_set.__init__ = init
