"""The inference cluster of a simulated Slurm: its demand as jobs, its loans, and their story."""

from __future__ import annotations

import math

from flexo_simulation.inference import Inference
from flexo_simulation.loan_story import LoanStory, Moment
from flexo_simulation.on_slurm.slurm import BORROWED_FLEX, SimulatedSlurm
from flexo_simulation.watched_lending import WatchedLending


class InferenceOnSlurm:
    """The inference cluster's side of one simulation. Mutable."""

    def __init__(self, inference: Inference, slurm: SimulatedSlurm) -> None:
        self.lending = WatchedLending(inference, BORROWED_FLEX)
        self.serving: list[int] = []
        """Its jobs, one for each server that it needs, oldest first."""
        self.preempted: list[int] = []
        """The bases that were preempted, once for each time."""
        self._inference = inference
        self._slurm = slurm
        self._course: list[Moment] = []
        self._lent = 0
        self._lent_before: frozenset[str] = frozenset()

    @property
    def changes(self) -> tuple[float, ...]:
        """The times at which the demand changes, from the beginning on."""
        return (0.0, *(at for at, _ in self._inference.demand.between(0.0, math.inf)))

    def needed(self, now: float) -> int:
        """Whole servers that inference needs."""
        return min(self._inference.servers.count, math.ceil(self._inference.demand.at(now)))

    def leaving(self, now: float) -> tuple[int, ...]:
        """The jobs that end because fewer servers are needed: the newest. They are forgotten here."""
        needed = self.needed(now)
        gone, self.serving = self.serving[needed:], self.serving[:needed]
        return tuple(gone)

    def missing(self, now: float) -> int:
        """How many jobs there are too few."""
        return self.needed(now) - len(self.serving)

    def note(self, now: float) -> None:
        """Record what has happened to the servers."""
        slurm = self._slurm
        self._lent += len(slurm.lent - self._lent_before)
        self._lent_before = slurm.lent
        away = len(slurm.lent | frozenset(slurm.residents))
        moment = Moment(now, self.needed(now), slurm.inference_jobs, away, slurm.gpus_on_loan)
        if not self._course or moment.state != self._course[-1].state:
            self._course.append(moment)

    def story(self) -> LoanStory:
        """The story so far. Slurm takes servers back whether a deadline is over or not: none is missed."""
        return LoanStory(
            servers=self._inference.servers.count,
            gpus_each=self._inference.servers.gpus,
            course=tuple(self._course),
            lent=self._lent,
            past=tuple(self.lending.ended),
            preempted=tuple(self.preempted),
            emptied_aside=0,
            missed=0,
        )
