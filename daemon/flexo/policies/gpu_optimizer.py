"""Distributes GPUs among jobs so that the sum of their worth is largest (IBM, section III-C).

It solves equations (3) to (5) of Saxena et al. Their Algorithm 1 does not do what equation (4) says. This
module follows the equation:

    P(j, K) = max over k of [P(j-1, K-k) + T_j(b_opt(k), k)],    P(0, K) = 0

Every job gets at least its smallest choice, so a problem is feasible exactly if all smallest choices fit.
Only the GPUs beyond these are to be distributed. That is the multiple-choice knapsack, which `knapsack`
solves by the same recurrence on a small part of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flexo.policies.knapsack import Group, choose
from flexo_protos.resources import Amount, total


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one job: numbers of GPUs in ascending order, and the worth of each.

    Numbers that are worth no more than a smaller number are left out. Without any choice, the job cannot run.
    """

    gpus: tuple[Amount, ...]
    worth: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Amount, float]]) -> Choices:
        """Make the choices from pairs of GPUs and worth, each number once. A worth of 0 or less: the job
        cannot run so."""
        gpus: list[Amount] = []
        worth: list[float] = []
        for number, value in sorted(pairs):
            if value > (worth[-1] if worth else 0.0):
                gpus.append(number)
                worth.append(value)
        return cls(tuple(gpus), tuple(worth))

    @property
    def fewest(self) -> Amount | None:
        """The fewest GPUs that the job runs with; None: it cannot run."""
        return self.gpus[0] if self.gpus else None

    def worth_of(self, gpus: Amount) -> float:
        """The worth of a choice; `gpus` must be one of the choices."""
        return self.worth[self.gpus.index(gpus)]


def optimize(jobs: Sequence[Choices], gpus: Amount) -> tuple[Amount, ...] | None:
    """The GPUs of each job: one choice of each, and at most `gpus` in sum; None: infeasible.

    GPUs may stay unused, as P(0, K) = 0 says. The result is exact up to the size that `knapsack` states,
    which is 690 GPUs whatever the choices. Above that, the gain over the smallest choices is within 0.1% of
    the best.
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
