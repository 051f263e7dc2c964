"""The measurements of this benchmark, and the goals by which they are judged. All functions are pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexo_bench.runtime.pauses import Pause
from flexo_bench.runtime.results import Goal

FLEXO_DDP, FLEXO_HOROVOD = "flexo_ddp", "flexo_horovod"
TORCHFT, TORCHFT_TUNED, TORCHRUN = "torchft", "torchft_tuned", "torchrun"
RIVALS = (FLEXO_DDP, FLEXO_HOROVOD, TORCHFT, TORCHFT_TUNED, TORCHRUN)
PLAIN_DDP = "plain_ddp"
JOIN, LEAVE, KILL = KINDS = ("join", "leave", "kill")
AROUND = 5
"""Steps on each side of a change that around_s counts."""
CONFIDENCE = 0.95
CPU_WIDTH = 0.01
"""An interval of CPU time that is wider than this does not decide."""
LEAST_FOR_INTERVAL = 6
"""Fewer values than this have no interval of their median at this confidence."""


@dataclass(frozen=True, slots=True)
class Changed:
    """One change of one rival's workers. `kind`: one of KINDS."""

    rival: str
    kind: str
    cost: Pause


@dataclass(frozen=True, slots=True)
class Pair:
    """A rival's job and one of plain DDP beside it, which trained in turns at the same fixed size.

    Seconds are means of all steps in the turns of a job; CPU seconds are those of all workers together.
    `all_cpu_s`: the same with the processes that start and watch the workers.
    """

    rival: str
    step_s: float
    plain_step_s: float
    cpu_s: float
    plain_cpu_s: float
    all_cpu_s: float
    plain_all_cpu_s: float

    @property
    def step_ratio(self) -> float:
        """The time of a step, over plain DDP's."""
        return self.step_s / self.plain_step_s

    @property
    def cpu_ratio(self) -> float:
        """The CPU time of the workers for a step, over plain DDP's."""
        return self.cpu_s / self.plain_cpu_s

    @property
    def all_cpu_ratio(self) -> float:
        """The CPU time of all processes for a step, over plain DDP's."""
        return self.all_cpu_s / self.plain_all_cpu_s


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured values of one thing."""

    values: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """The median; None if there are no values."""
        return statistics.median(self.values) if self.values else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """An interval that holds the true median with CONFIDENCE, whatever the distribution is.

        Its ends are values. None if there are too few of them.
        """
        count, ordered = len(self.values), sorted(self.values)
        below = 0.0
        for outside in range(count // 2 + 1):
            below += math.comb(count, outside) / 2**count
            if below > (1 - CONFIDENCE) / 2:
                return (ordered[outside - 1], ordered[-outside]) if outside else None
        return None

    @property
    def width(self) -> float | None:
        """The width of the interval."""
        return None if self.interval is None else self.interval[1] - self.interval[0]


@dataclass(frozen=True, slots=True)
class Figures:
    """All results of one run so far. `failures`: by rival, what it did not do."""

    machine: dict[str, Any]
    command: str
    changes: Sequence[Changed] = ()
    pairs: Sequence[Pair] = ()
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def costs(self, rival: str, kind: str, value: Callable[[Pause], float]) -> Sample:
        """What each change of that kind cost, by `value`."""
        found = (each.cost for each in self.changes if (each.rival, each.kind) == (rival, kind))
        return Sample(tuple(value(cost) for cost in found))

    def pause(self, rival: str, kind: str) -> Sample:
        """Pauses in seconds."""
        return self.costs(rival, kind, lambda cost: cost.pause_s)

    def around(self, rival: str, kind: str) -> Sample:
        """What changes cost in all, in seconds."""
        return self.costs(rival, kind, lambda cost: cost.around_s)

    def ratios(self, rival: str, value: Callable[[Pair], float]) -> Sample:
        """Ratios of a rival's pairs, by `value`."""
        return Sample(tuple(value(pair) for pair in self.pairs if pair.rival == rival))

    def step_ratio(self, rival: str) -> Sample:
        """Step times over plain DDP's."""
        return self.ratios(rival, lambda pair: pair.step_ratio)

    def cpu_ratio(self, rival: str) -> Sample:
        """CPU times of the workers over plain DDP's."""
        return self.ratios(rival, lambda pair: pair.cpu_ratio)

    def all_cpu_ratio(self, rival: str) -> Sample:
        """CPU times of all processes over plain DDP's."""
        return self.ratios(rival, lambda pair: pair.all_cpu_ratio)

    def goals(self) -> Iterator[Goal]:
        """The goals of flexo with DDP."""
        ours = self.around(FLEXO_DDP, JOIN).median
        theirs = [self.around(rival, JOIN).median for rival in (TORCHFT, TORCHFT_TUNED)]
        best = min((each for each in theirs if each is not None), default=None)
        above = None if ours is None or best is None else ours - best
        yield Goal("flexo_ddp.join.around_s_above_best_torchft", above, at_most=0.0)
        leave = self.pause(FLEXO_DDP, LEAVE).median
        batch = self.costs(FLEXO_DDP, LEAVE, lambda cost: cost.batch_after_s).median
        tuned = self.pause(TORCHFT_TUNED, LEAVE).median
        yield Goal("flexo_ddp.leave.pause_vs_mini_batch", _ratio(leave, batch), at_most=1.0)
        yield Goal("flexo_ddp.leave.pause_vs_torchft_tuned", _ratio(leave, tuned), at_most=1 / 20)
        yield Goal("flexo_ddp.step_ratio_vs_ddp", self.step_ratio(FLEXO_DDP).median, at_most=1.01)
        cpu = self.cpu_ratio(FLEXO_DDP)
        low = None if cpu.interval is None else cpu.interval[0]
        yield Goal("flexo_ddp.cpu_ratio_vs_ddp_lower_end", low, at_most=1.005)
        yield Goal("flexo_ddp.cpu_ratio_vs_ddp_width", cpu.width, at_most=CPU_WIDTH)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    """The ratio of two pauses. Those below the resolution of the logs count as 0.1 ms."""
    return None if ours is None or theirs is None else max(ours, 1e-4) / max(theirs, 1e-4)
