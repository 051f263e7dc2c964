"""How many GPUs each job gets so that the sum of what they are worth is largest (IBM, section III-C).

Equations (3) to (5) of Saxena et al.; their Algorithm 1 does not do what equation (4) says, and this follows
the equation:

    P(j, K) = max over k of [P(j-1, K-k) + T_j(b_opt(k), k)],    P(0, K) = 0

Every job gets at least its smallest choice, so that a problem is feasible exactly if all of those fit, and
only the GPUs beyond them are to be dealt out: the multiple-choice knapsack, which `knapsack` solves by the
same recurrence on a small part of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flexo.policies.knapsack import Group, choose
from flexo_protos.resources import Amount, total


@dataclass(frozen=True, slots=True)
class Choices:
    """What one job can have: numbers of GPUs in ascending order, and what it is worth with each.

    Without those that are worth no more than a smaller number. None at all: it cannot run.
    """

    gpus: tuple[Amount, ...]
    worth: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Amount, float]]) -> Choices:
        """Of (GPUs, worth), each number once. With a worth of 0 or less it cannot run with so many."""
        gpus: list[Amount] = []
        worth: list[float] = []
        for number, value in sorted(pairs):
            if value > (worth[-1] if worth else 0.0):
                gpus.append(number)
                worth.append(value)
        return cls(tuple(gpus), tuple(worth))

    @property
    def fewest(self) -> Amount | None:
        """The fewest GPUs that it runs with; None: it cannot."""
        return self.gpus[0] if self.gpus else None

    def worth_of(self, gpus: Amount) -> float:
        """What it is worth with one of its choices."""
        return self.worth[self.gpus.index(gpus)]


def optimize(jobs: Sequence[Choices], gpus: Amount) -> tuple[Amount, ...] | None:
    """GPUs of each job, one choice of each and at most `gpus` in all; None: infeasible.

    GPUs may stay unused, as P(0, K) = 0 says. Exact up to the size that `knapsack` states, which is 690 GPUs
    whatever the choices; what is gained beyond the smallest choices is within 0.1% of the best above that.
    """
    fewest = [job.fewest for job in jobs]
    spare = gpus - total(each or 0 for each in fewest)
    if None in fewest or spare < 0:
        return None
    groups = {job: _beyond_fewest(job) for job in set(jobs)}
    items = choose([groups[job] for job in jobs], spare).items
    return tuple(job.gpus[item + 1] for job, item in zip(jobs, items, strict=True))


def _beyond_fewest(job: Choices) -> Group:
    gpus, worth = np.array(job.gpus), np.array(job.worth)
    return Group(gpus[1:] - gpus[0], worth[1:] - worth[0])
