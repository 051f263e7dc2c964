"""What keeps a job at the size of its base, as it shows while the script runs: each with its reason.

script_check/ finds some of these before the job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from horovod_elastic.worker.ddp.captured import Captured
from horovod_elastic.worker.ddp.iteration import Iteration
from horovod_elastic.worker.ddp.script_frames import caller, unknown_trainer

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.elastic_group import ElasticGroup

LBFGS = "LBFGS computes gradients several times in a step"
NOT_AVERAGED = "it takes steps with gradients that are not averaged over workers (no_sync)"
SEVERAL_LOADERS = "it takes a step with batches of several DataLoaders, which flexo deals out one by one"
_APART = (
    "its workers are at different places of their DataLoaders: one of them took batches of its training"
    " loader alone before training, or made a loader before it that the others did not make"
)
_AHEAD = "it takes a batch from its DataLoader before the step with the one before is taken"


def of_hook(state: Any) -> str:
    """Why a communication hook of DistributedDataParallel with this state, or None, is one; else ""."""
    if state is None or isinstance(state, dist.ProcessGroup):
        return ""
    what = f"DistributedDataParallel's communication hook at {caller()}"
    return f"{what} has a state ({type(state).__name__}), which flexo does not know"


def of_first_steps(captured: Captured, group: ElasticGroup, last: Iteration | None, *, by_steps: bool) -> str:
    """Why a script cannot be resized that has taken its first steps; "" if it can.

    `last`: the iteration that has given the last training batch. `by_steps`: the script trains without a
    DataLoader. All workers call this at the same time.
    """
    if not captured.models() and (why := captured.declared.obstacle(captured.optimizers())):
        return why
    if not by_steps and (package := unknown_trainer()):
        return f"its training loop is in the package {package}, whose counters flexo does not know"
    is_plain = group.unit is None and not group.adds_in_order
    if is_plain and (why := _of_places(last, group)):
        return why
    return _AHEAD if last is not None and last.is_ahead() else ""


def _of_places(last: Iteration | None, group: ElasticGroup) -> str:
    """Why there is no place to which newcomers could come, or no samples that could be dealt out to them."""
    at, loads = [0, 0, -1], 0
    if last is not None:
        at, loads = [last.place, last.given, last.known.history.number], last.known.loads
    try:
        told = group.exchange([*at, loads])
    except RuntimeError as error:  # a worker is gone: the others go back, as from a step
        group.note_failure(error)
        return ""
    if any(theirs[:-1] != at for theirs in told):
        return _APART
    if last is None or all(theirs[-1] == loads for theirs in told):
        return ""
    return (
        f"each rank loads samples of its own ({last.loads()}), which flexo cannot deal out anew."
        " DistributedSampler is allowed"
    )
