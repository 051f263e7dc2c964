"""Part `transient`: GPUs that come and go (Amoeba, section 6.2 and figure 8), over intervals and GPUs.

Two cores gain nothing from more workers, so here a step only sleeps: every worker has a GPU of its own. The
model is tiny, so that its gradients do not need the cores either. Starting a worker takes its usual time, and
the cores are used for it.

As in the paper there are four schemes. The job grows and shrinks (flexo), or it is stopped and restarted with
the other size. *Baseline* never uses the GPUs. *Ideal* grows at the moment of the grant and shrinks at the
moment of the return, at no cost. The throughput of both is that of the same job while nothing is resized.
The paper's intervals are minutes, where a restart takes half a minute to a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from flexo_bench.runtime import traces
from flexo_bench.runtime.results import Interval, Transient
from flexo_bench.runtime.rivals import Rival, Training, running, wait_until_settled
from flexo_bench.runtime.worklog import Batch, WorkLog, by_worker, samples_per_second

BASE = 4
"""Number of the job's own workers."""
MODEL = "tiny"
STEP_S = 0.25
"""Duration of a step, about that of ResNet-50 on one GPU."""
SETTLED = 4
FIXED_S = 8.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is swept. All combinations are measured, `repeats` times each."""

    intervals_s: tuple[float, ...] = (60.0,)
    """Times for which the GPUs stay."""
    gpus: tuple[int, ...] = (1,)
    """Numbers of GPUs that come and go."""
    repeats: int = 1
    away_s: float = 60.0
    """Time without the GPUs in each cycle, half of it before they come, and at least half of it after."""


def measure(rivals: Sequence[Rival], sweep: Sweep, folder: Path, tell: Tell) -> Iterator[Transient]:
    """Measure each rival in one job for each number of GPUs. Raises RivalFailed."""
    for gpus in sweep.gpus:
        for rival in rivals:
            training = Training(folder / f"transient-{rival.name}-{gpus}", MODEL, STEP_S, largest=BASE + gpus)
            with running(rival, training, BASE) as log:
                yield from _Job(rival, training.folder, log, gpus, sweep, tell).cycles()


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested size: `workers` workers from `at` on, in seconds since the epoch."""

    at: float
    workers: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which `workers` workers trained and nothing was resized, in seconds since the epoch."""

    workers: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle as it was asked for: the GPUs come and go."""

    interval_s: float
    began: float
    come: Asked
    go: Asked
    ended: float


@dataclass(frozen=True, slots=True)
class _Job:
    """One job of one rival, which `gpus` GPUs come to and leave."""

    rival: Rival
    folder: Path
    log: WorkLog
    gpus: int
    sweep: Sweep
    tell: Tell

    def cycles(self) -> Iterator[Transient]:
        """All cycles. Intervals take turns: a busy time of the machine is not one interval's alone."""
        calm = self._calm()
        cycles = [self._cycle(each) for _ in range(self.sweep.repeats) for each in self.sweep.intervals_s]
        batches = self.log.read().batches
        calm += [stretch for each in cycles for stretch in undisturbed(each, batches)]
        fixed = fixed_rates(calm, batches)
        self._tell(f"samples/s {', '.join(f'{rate:.1f} at {size}' for size, rate in fixed.items())}")
        for each in cycles:
            changes = [_really(change, self.folder, batches) for change in (each.come, each.go)]
            found = Transient(
                self.rival.name, self.gpus, each.interval_s, STEP_S,
                _intervals(each.began, each.ended, changes), _samples(batches, each.began, each.ended), fixed,
            )  # fmt: skip
            self._tell(
                f"{each.interval_s:g} s: {found.over_baseline:.3f} of baseline, {found.ratio:.3f} of ideal"
            )
            yield found

    def _tell(self, what: str) -> None:
        self.tell(f"transient {self.rival.name}, {self.gpus} GPUs: {what}")

    def _calm(self) -> list[Stretch]:
        """Train at both sizes for a while each. The job is back at BASE afterwards."""
        found, asked_at = [], 0.0
        for size in (BASE, BASE + self.gpus):
            asked_at = self.rival.resize(size) if size > BASE else 0.0
            wait_until_settled(self.rival, self.log, size, SETTLED, asked_at)
            since = time.time()
            time.sleep(FIXED_S)
            found.append(Stretch(size, since, time.time()))
        wait_until_settled(self.rival, self.log, BASE, SETTLED, self.rival.resize(BASE))
        return found

    def _cycle(self, interval_s: float) -> Cycle:
        """The GPUs come, stay and go once. The cycle ends when the job trains at BASE again, or later."""
        began = time.time()
        time.sleep(self.sweep.away_s / 2)
        come = Asked(self.rival.resize(BASE + self.gpus), BASE + self.gpus)
        _sleep_until(come.at + interval_s)
        go = Asked(self.rival.resize(BASE), BASE)
        wait_until_settled(self.rival, self.log, BASE, SETTLED, go.at)
        _sleep_until(go.at + self.sweep.away_s / 2)
        self._tell(f"{interval_s:g} s are over")
        return Cycle(interval_s, began, come, go, time.time())


def undisturbed(cycle: Cycle, batches: Sequence[Batch]) -> Iterator[Stretch]:
    """The stretches of a cycle in which nothing was resized: before the GPUs come, and with them settled."""
    yield Stretch(BASE, cycle.began, cycle.come.at)
    size = cycle.come.workers
    larger = [each for each in batches if each.size == size and cycle.come.at < each.at < cycle.go.at]
    if len(larger) > SETTLED * size:
        yield Stretch(size, sorted(each.at for each in larger)[SETTLED * size], cycle.go.at)


def fixed_rates(stretches: Sequence[Stretch], batches: Sequence[Batch]) -> dict[int, float]:
    """Samples/s at each size over all its stretches, which are spread over the whole job.

    So a machine that is busier for a while slows Baseline and Ideal down as it does the job.
    """
    samples: dict[int, float] = {}
    seconds: dict[int, float] = {}
    for each in stretches:
        within = [b for b in batches if b.size == each.workers and each.start <= b.at < each.end]
        if any(len(own) < 2 for own in by_worker(within).values()) or not within:
            continue
        lasts = each.end - each.start
        samples[each.workers] = samples.get(each.workers, 0.0) + samples_per_second(within) * lasts
        seconds[each.workers] = seconds.get(each.workers, 0.0) + lasts
    return {size: samples[size] / seconds[size] for size in sorted(samples)}


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
