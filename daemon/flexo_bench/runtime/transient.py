"""Part `transient`: GPUs that come and go every two minutes (Amoeba, section 6.2), against free resizing.

Two cores gain nothing from more workers, so here a step only sleeps: every worker has a GPU of its own. The
model is tiny, so that its gradients do not need the cores either. The time may be scaled: at 1/2 the GPUs
stay for one minute instead of two, and stay away as long. Nothing else is scaled, and starting a worker takes
its usual time. So a smaller scale is harder.

The ideal grows at the moment of the grant and shrinks at the moment of the return, at no cost. Its throughput
at each size is measured beforehand, in the same job, with that size fixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from flexo_bench.runtime import traces
from flexo_bench.runtime.results import Interval, Transient
from flexo_bench.runtime.rivals import Rival, Training, running, wait_until_settled
from flexo_bench.runtime.steady import rate
from flexo_bench.runtime.worklog import Batch, WorkLog

PERIOD_S = 120.0
"""Time for which the GPUs stay, and stay away, at scale 1."""
BASE, EXTRA = 4, 1
"""Number of the job's own workers, and of workers that come and go."""
MODEL = "tiny"
STEP_S = 0.25
"""Duration of a step, about that of ResNet-50 on one GPU."""
SETTLED = 4
FIXED_S = 8.0

Tell = Callable[[str], None]


def measure(rival: Rival, time_scale: float, cycles: int, folder: Path, tell: Tell) -> Transient:
    """Measure while the GPUs come `cycles` times.

    The GPUs are away for half a period at the beginning and at the end. Raises RivalFailed.
    """
    period = PERIOD_S * time_scale
    training = Training(folder / f"transient-{rival.name}", MODEL, STEP_S, largest=BASE + EXTRA)
    with running(rival, training, BASE) as log:
        fixed = _fixed(rival, log)
        tell(f"transient {rival.name}: samples/s fixed {fixed[BASE]:.1f}, {fixed[BASE + EXTRA]:.1f}")
        began, asked = time.time(), []
        time.sleep(period / 2)
        for cycle in range(cycles):
            asked.append(Asked(rival.resize(BASE + EXTRA), BASE + EXTRA))
            _sleep_until(asked[-1].at + period)
            asked.append(Asked(rival.resize(BASE), BASE))
            _sleep_until(asked[-1].at + (period if cycle + 1 < cycles else period / 2))
        ended = time.time()
        batches = log.read().batches
    changes = [_really(each, training.folder, batches) for each in asked]
    found = Transient(
        rival.name, period, time_scale, STEP_S,
        _intervals(began, ended, changes), _samples(batches, began, ended), fixed,
    )  # fmt: skip
    tell(f"transient {rival.name}: {found.ratio:.3f} of free resizing")
    return found


def _fixed(rival: Rival, log: WorkLog) -> dict[int, float]:
    """Samples/s at each size while it is fixed. The job is back at BASE afterwards."""
    wait_until_settled(rival, log, BASE, SETTLED)
    base = rate(log, FIXED_S)
    wait_until_settled(rival, log, BASE + EXTRA, SETTLED, rival.resize(BASE + EXTRA))
    both = rate(log, FIXED_S)
    wait_until_settled(rival, log, BASE, SETTLED, rival.resize(BASE))
    return {BASE: base, BASE + EXTRA: both}


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested size: `workers` workers from `at` on, in seconds since the epoch."""

    at: float
    workers: int


def _really(asked: Asked, folder: Path, batches: Sequence[Batch]) -> Asked:
    """The change as a rival that wastes nothing has it, at the time when the GPUs really come or go.

    GPUs come with the leader's grant, if there is a trace. They go with the last mini-batch that used them.
    """
    if asked.workers > BASE:
        grants = [each.at for each in traces.read(folder) if each.event == "grant" and each.at >= asked.at]
        return Asked(min(grants, default=asked.at), asked.workers)
    used = [batch.at for batch in batches if batch.size > BASE]
    back = [batch.at for batch in batches if batch.size == BASE and batch.at > asked.at]
    return Asked(max([asked.at, *(at for at in used if at < min(back, default=asked.at))]), asked.workers)


def _intervals(began: float, ended: float, changes: Sequence[Asked]) -> tuple[Interval, ...]:
    """Intervals with the number of workers that could have trained, in seconds since `began`."""
    marks = [Asked(began, BASE), *changes, Asked(ended, 0)]
    return tuple(Interval(one.at - began, other.at - began, one.workers) for one, other in pairwise(marks))


def _samples(batches: Sequence[Batch], began: float, ended: float) -> int:
    """Samples of all workers. Each step counts once, even if it was repeated."""
    done = {(batch.step, batch.rank): batch for batch in batches if began <= batch.at < ended}
    return sum(batch.samples for batch in done.values())


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))
