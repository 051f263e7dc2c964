"""Compares choosers of servers to reclaim on the same states, which are snapshots from a simulation.

Simulations with different choosers have different histories, and so different reclaims. Here every chooser
answers the same questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flexo.loaning.reclaim import Chooser, Server, heuristic, preempted_by
from flexo_bench.loaning.cases import CHOOSERS, Case, Measured, run

RANDOM_TRIES = 20
"""Number of random choices for each state; their mean counts."""
STATES = 50
"""Number of states of a simulation, taken evenly from all reclaims: the exact choice takes long."""
PARTS = (0.25, 0.5, 0.75)
"""Parts of the servers on loan to reclaim, compared in addition to the number that was reclaimed."""


@dataclass
class Recorder:
    """A chooser that records its questions. Mutable."""

    states: list[tuple[tuple[Server, ...], int]] = field(default_factory=list)

    def __call__(self, servers: Sequence[Server], wanted: int) -> tuple[str, ...]:
        """Record the question, and choose as the heuristic does."""
        self.states.append((tuple(servers), wanted))
        return heuristic(servers, wanted)


@dataclass(frozen=True)
class Compared:
    """Jobs that the choosers preempt, summed over the states of one case."""

    case: Case
    which: str
    """Number of servers to reclaim: as asked in the simulation, or a part of those on loan."""
    states: int
    """Number of states in which there was a choice."""
    worst: float
    """Largest difference in one state: the heuristic's preempted jobs less the exact choice's."""
    preempted: dict[str, float]
    """Preempted jobs per chooser."""


def compare(case: Case) -> tuple[Measured, list[Compared]]:
    """Simulate `case`, whose chooser is the heuristic, and compare all choosers on its states."""
    recorder = Recorder()
    measured = run(case, chooser=recorder)
    some = recorder.states[:: max(1, len(recorder.states) // STATES)]
    asked = [counted("as asked", case, some)]
    for part in PARTS:
        states = [(servers, round(part * len(servers))) for servers, _ in some]
        asked.append(counted(f"{part:.0%} of those on loan", case, states))
    return measured, asked


def counted(which: str, case: Case, states: Sequence[tuple[tuple[Server, ...], int]]) -> Compared:
    """Compare all choosers on those of `states` in which there is a choice."""
    open_questions = [(servers, wanted) for servers, wanted in states if 0 < wanted < len(servers)]
    preempted = dict.fromkeys(CHOOSERS, 0.0)
    worst = 0.0
    for servers, wanted in open_questions:
        found = {name: _preempts(name, case.seed, servers, wanted) for name in CHOOSERS}
        worst = max(worst, found["heuristic"] - found["exact"])
        for name, count in found.items():
            preempted[name] += count
    return Compared(case, which, len(open_questions), worst, preempted)


def _preempts(name: str, seed: int, servers: Sequence[Server], wanted: int) -> float:
    tries = RANDOM_TRIES if name == "random" else 1
    choose: Chooser = CHOOSERS[name](seed)
    return sum(len(preempted_by(servers, choose(servers, wanted))) for _ in range(tries)) / tries
