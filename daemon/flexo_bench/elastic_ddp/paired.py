"""Part `steady`: a rival's job and one of plain DDP train in turns, at two workers that never change.

Both jobs of a pair are started anew and live side by side. Only one of them trains at a time, and the turns
are short, so that whatever else the machine does meets both alike. Workers wait at the gate (parts.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flexo_bench.elastic_ddp.parts import GATE
from flexo_bench.elastic_ddp.results import CPU_WIDTH, Figures, Pair
from flexo_bench.elastic_ddp.rivals import SMALL, PlainDdp, training
from flexo_bench.runtime.rivals import Rival, RivalFailed, Training, running, wait_until_settled
from flexo_bench.runtime.worklog import Batch, WorkLog, by_worker

WARM = 20
"""Steps of every worker before the measuring begins."""
AHEAD = 8
"""Steps from reading how far a job is until it is held."""
SETTLE_S = 0.3
"""Time after the gate opens that does not count."""
ROUNDS = 2
"""How often each job of a pair has its two turns."""
HELD_S = 10.0
LOOK_S = 0.02

Tell = Callable[[str], None]


@dataclass
class _Job:
    """One of a pair's two jobs. `turns`: the steps of its turns so far."""

    rival: Rival
    log: WorkLog
    training: Training
    turns: list[list[Batch]] = field(default_factory=list)
    _held_at: int = 0
    _cpu_s: float = 0.0
    _steps: int = 0

    def hold(self) -> None:
        """Have the job wait at its gate."""
        self._held_at = self._last_step() + AHEAD
        self._gate.with_suffix(".new").write_text(str(self._held_at))
        self._gate.with_suffix(".new").rename(self._gate)
        deadline = time.monotonic() + HELD_S
        while (newest := self._last_step()) < self._held_at:
            if time.monotonic() > deadline:
                raise RivalFailed(f"{self.rival.name} stops at step {newest}, not at {self._held_at}")
            time.sleep(LOOK_S)

    def train(self, seconds: float) -> None:
        """Let the job train for a turn."""
        cpu_before, step_before = self._cpu(), self._held_at
        self._gate.unlink()
        began = time.time()
        time.sleep(seconds)
        ended = time.time()
        self.hold()
        self._cpu_s += self._cpu() - cpu_before
        self._steps += self._held_at - step_before
        self.turns.append([b for b in self.log.batches if began + SETTLE_S <= b.at < ended])

    def step_s(self) -> float:
        """Mean time of a step."""
        ends = [(each[0], each[-1]) for turn in self.turns for each in by_worker(turn).values()]
        return sum(b.at - a.at for a, b in ends) / sum(b.step - a.step for a, b in ends)

    def cpu_s(self) -> float:
        """Mean CPU time of a step, of all workers together."""
        ends = [(each[0], each[-1]) for turn in self.turns for each in by_worker(turn).values()]
        return SMALL * sum(b.cpu - a.cpu for a, b in ends) / sum(b.step - a.step for a, b in ends)

    def all_cpu_s(self) -> float:
        """Mean CPU time of a step, of all processes together."""
        return self._cpu_s / self._steps

    @property
    def _gate(self) -> Path:
        return self.training.folder / "logs" / GATE

    def _last_step(self) -> int:
        return max(batch.step for batch in self.log.read().batches)

    def _cpu(self) -> float:
        """CPU seconds so far of the workers, and of all processes that start and watch them."""
        return sum(_cpu_of(process) for process in _family({batch.worker for batch in self.log.batches}))


@dataclass(frozen=True, slots=True)
class Plan:
    """How many pairs are measured, at least and at most, and how long a turn is."""

    least: int
    most: int
    turn_s: float


def measure(rival: Rival, plan: Plan, samples: int, folder: Path, tell: Tell) -> Iterator[Pair]:
    """Measure pairs, beyond the least number until the interval of CPU time is narrow.

    Raises RivalFailed.
    """
    pairs: list[Pair] = []
    while len(pairs) < plan.most and (len(pairs) < plan.least or not _is_narrow(pairs)):
        pairs.append(_pair(rival, plan.turn_s, samples, folder / f"pair-{rival.name}-{len(pairs)}"))
        last = pairs[-1]
        tell(
            f"{rival.name:13} beside plain DDP, pair {len(pairs)} of at most {plan.most}:"
            f" step {last.step_ratio:.4f} of {last.plain_step_s * 1000:.1f} ms, CPU {last.cpu_ratio:.4f}"
            f" (all {last.all_cpu_ratio:.4f})"
        )
        yield last


def _is_narrow(pairs: list[Pair]) -> bool:
    width = Figures({}, "", pairs=pairs).cpu_ratio(pairs[0].rival).width
    return width is not None and width <= CPU_WIDTH


def _pair(rival: Rival, turn_s: float, samples: int, folder: Path) -> Pair:
    plain = PlainDdp()
    with contextlib.ExitStack() as stack:
        jobs = []
        for who in (plain, rival):
            what = training(who.name, folder / who.name, samples)
            log = stack.enter_context(running(who, what, SMALL))
            jobs.append(_Job(who, log, what))
        for job in jobs:
            wait_until_settled(job.rival, job.log, SMALL, WARM)
        for job in jobs:
            job.hold()
        one, other = jobs
        for job in (one, other, other, one) * ROUNDS:
            job.train(turn_s)
    return Pair(
        rival.name,
        other.step_s(), one.step_s(),
        other.cpu_s(), one.cpu_s(),
        other.all_cpu_s(), one.all_cpu_s(),
    )  # fmt: skip


def _family(workers: set[int]) -> set[psutil.Process]:
    """The workers' processes, with all of their ancestors below Slurm and below the benchmark."""
    found: set[psutil.Process] = set()
    for worker in workers:
        for process in (psutil.Process(worker), *psutil.Process(worker).parents()):
            if process.pid in (1, os.getpid()) or process.name().startswith("slurmstepd"):
                break
            found.add(process)
    return found


def _cpu_of(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0
