"""Choices of servers to vacate, side by side on the same states: snapshots out of a simulation.

In simulations whose servers are chosen differently histories differ too, and with them how often and how much
has to be vacated; here every choice answers the same questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flexo.loaning.reclaim import Chooser, Server, heuristic, preempted_by
from flexo_bench.loaning.cases import CHOOSERS, Case, Measured, run

RANDOM_TRIES = 20
"""Random choices of each state; their mean counts."""
STATES = 50
"""Of a simulation, evenly among all in which servers were called back: the exact choice takes its time."""
PARTS = (0.25, 0.5, 0.75)
"""Of the servers on loan that are vacated, besides as many as were."""


@dataclass
class Recorder:
    """A chooser that remembers what it was asked. Mutable."""

    states: list[tuple[tuple[Server, ...], int]] = field(default_factory=list)

    def __call__(self, servers: Sequence[Server], wanted: int) -> tuple[str, ...]:
        """As the heuristic chooses."""
        self.states.append((tuple(servers), wanted))
        return heuristic(servers, wanted)


@dataclass(frozen=True)
class Compared:
    """Jobs that choices preempt, in sum over the states of one case."""

    case: Case
    which: str
    """How many servers were wanted: as they were, or a part."""
    states: int
    """Of those in which something was to be chosen."""
    worst: float
    """Of all states, the heuristic's jobs more than the exact choice's, at most."""
    preempted: dict[str, float]
    """By chooser."""


def compare(case: Case) -> tuple[Measured, list[Compared]]:
    """The simulation of `case`, whose chooser is the heuristic, and all choices of the states in it."""
    recorder = Recorder()
    measured = run(case, chooser=recorder)
    some = recorder.states[:: max(1, len(recorder.states) // STATES)]
    asked = [counted("as asked", case, some)]
    for part in PARTS:
        states = [(servers, round(part * len(servers))) for servers, _ in some]
        asked.append(counted(f"{part:.0%} of those on loan", case, states))
    return measured, asked


def counted(which: str, case: Case, states: Sequence[tuple[tuple[Server, ...], int]]) -> Compared:
    """Of some states, those in which something is to be chosen."""
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
