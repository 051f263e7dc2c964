"""The simulations of make bench-price: each policy, on each workload, at each price of a change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Final

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies import registry
from flexo_bench.papers.pollux import JOBS_CHOOSE, WORKLOADS
from flexo_simulation.comparison import Trial
from flexo_simulation.costs import Costs
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.formats import pollux, sia
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

PRICES: Final = ("0.03", "1", "10", "30", "100")
"""Seconds without training at each start and change."""
OWN: Final = "own"
"""The price of Sia's own simulator: another one for each application."""
POLLUX: Final = "pollux"
"""The trace of Pollux' own workloads. The others are those of Sia's artifact."""
CLUSTER_OF_POLLUX: Final = (NodeGroup(16, 4),)
TUNING: Final = (1, 2, 3, 4, 5)
"""The workloads of saturn and newtrace on which settings may be tuned."""
REPORTED: Final = (6, 7, 8, 9, 10)
"""Those that are reported."""
_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    cluster: str
    """`equal` or `mixed`."""
    trace: str
    number: int
    price: str
    policy: str
    declared: bool = True
    """Whether the jobs declare how many epochs they train."""
    settings: tuple[str, ...] = ()
    """Settings of the policy that are not its defaults, as KEY=VALUE."""

    @property
    def label(self) -> str:
        """The policy as it is named in results."""
        name = self.policy if self.declared else f"{self.policy}-undeclared"
        return " ".join((name, *self.settings))

    def __str__(self) -> str:
        return f"{self.trace} {self.number}, {self.cluster}, price {self.price}: {self.label}"


@dataclass(frozen=True, slots=True)
class Folders:
    """The places of the workloads."""

    traces: Path
    """The folder of real traces, which has Pollux' workloads."""
    sia: Path | None
    """The folder of Sia's artifact; None: its workloads are left out."""


def policies() -> tuple[tuple[str, bool], ...]:
    """All policies, and whether jobs declare their epochs; goodput first, with and without."""
    others = [name for name in registry.built_in("starts_jobs") if name != "goodput"]
    return (("goodput", True), ("goodput", False), *((name, True) for name in others))


def pollux_cases(numbers: Sequence[int], prices: Sequence[str]) -> Iterator[Case]:
    """All policies on Pollux' workloads."""
    for (policy, declared), price, number in product(policies(), prices, numbers):
        yield Case("equal", POLLUX, number, price, policy, declared)


def sia_cases(cluster: str, trace: str, numbers: Sequence[int], prices: Sequence[str]) -> Iterator[Case]:
    """All policies on workloads of Sia's artifact."""
    for (policy, declared), price, number in product(policies(), prices, numbers):
        yield Case(cluster, trace, number, price, policy, declared)


def trial(case: Case, folders: Folders) -> Trial:
    """The simulation of a case. Raises BadTrace, and BadSetting."""
    settings = dict(each.split("=", 1) for each in case.settings)
    policy = registry.make(case.policy, **{key: json.loads(value) for key, value in settings.items()})
    workload = _workload(case.cluster, case.trace, case.number, folders)
    jobs = pollux.adapted(workload, choose_batch=case.policy in JOBS_CHOOSE, declare=case.declared)
    costs = Costs()
    if case.price != OWN:
        costs = Costs(start_s=float(case.price), resize_s=float(case.price))
        jobs = replace(jobs, jobs=tuple(replace(job, costs=None) for job in jobs.jobs))
    nodes = CLUSTER_OF_POLLUX if case.trace == POLLUX else sia.CLUSTERS[case.cluster].nodes
    estimates = Estimates(Mode.ORACLE if policy.oracle else Mode.HISTORY)
    return Trial(str(case), policy, jobs, Scenario(nodes, costs, _INTERVAL_S, estimates))


@lru_cache(maxsize=4)
def _workload(cluster: str, trace: str, number: int, folders: Folders) -> Workload:
    if trace == POLLUX:
        path = folders.traces / "pollux" / "workloads" / f"workload-{number}.csv"
        return pollux.read(path, ReadOptions())
    if folders.sia is None:
        raise ValueError(f"{trace} needs the folder of Sia's artifact")
    return sia.read(folders.sia, trace, number, sia.CLUSTERS[cluster])


def chosen(folders: Folders, prices: Sequence[str], *, quick: bool, tuning: bool) -> Iterator[Case]:
    """All simulations, those of Pollux' workloads first.

    `quick`: one workload of each source. `tuning`: the workloads of saturn and newtrace on which settings are
    tuned, instead of those that are reported.
    """
    if folders.traces.exists():
        yield from pollux_cases(
            WORKLOADS[-1:] if quick else WORKLOADS, [each for each in prices if each != OWN]
        )
    if folders.sia is None:
        return
    if quick:
        yield from sia_cases("equal", "philly", (1,), prices)
        return
    for cluster in sia.CLUSTERS:
        yield from sia_cases(cluster, "philly", sia.numbers(folders.sia, "philly"), prices)
    for trace in ("saturn", "newtrace"):
        yield from sia_cases("mixed", trace, TUNING if tuning else REPORTED, prices)
