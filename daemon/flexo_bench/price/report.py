"""The figures of make bench-price as JSON and as tables: by cluster, trace, price and policy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from flexo_bench.papers import pollux
from flexo_bench.price.cases import OWN, POLLUX, Case
from flexo_bench.price.replay import Replayed
from flexo_bench.price.runs import Outcome

PUBLISHED_S = dict(zip(pollux.WORKLOADS, pollux.PUBLISHED["Pollux"], strict=True))
"""Pollux' published mean completion times in seconds, by workload."""


@dataclass(frozen=True, slots=True)
class SiaSet:
    """A workload of Sia's artifact, on one of its clusters."""

    cluster: str
    trace: str
    number: int

    @classmethod
    def of(cls, case: Case) -> SiaSet:
        """The workload of a case."""
        return cls(case.cluster, case.trace, case.number)

    def __str__(self) -> str:
        return f"{self.trace} {self.number}, {self.cluster}"


Found = Mapping[Case, Outcome]
SiaMeans = Mapping[SiaSet, float]
"""Mean completion times of Sia at its own price, in seconds, where there is a log of its simulator."""
Replays = Mapping[SiaSet, Replayed]


def as_json(found: Found, sia_means: SiaMeans, replays: Replays, code: str) -> dict[str, Any]:
    """All figures of `found`. `pollux` is about goodput; `runs` has every simulation by itself."""
    sets = {SiaSet.of(case) for case in found}
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": code,
        "pollux": {
            "declared": _ratios(found, declared=True),
            "undeclared": _ratios(found, declared=False),
        },
        "sia": _sia(found, sia_means),
        "sia_itself": {str(each): _hours(mean_s) for each, mean_s in sia_means.items() if each in sets},
        "replay": {
            str(each): {
                "sia_h": _hours(done.sia_s),
                "ours_h": _hours(done.ours_s),
                "difference": done.difference,
            }
            for each, done in replays.items()
        },
        "runs": [asdict(case) | asdict(outcome) for case, outcome in found.items()],
    }


def _ratios(found: Found, *, declared: bool) -> dict[str, float]:
    """Per price: the mean completion time of goodput, relative to Pollux' on the same workloads."""
    ours: dict[str, float] = defaultdict(float)
    theirs: dict[str, float] = defaultdict(float)
    for case, outcome in found.items():
        if case.trace == POLLUX and case.label == ("goodput" if declared else "goodput-undeclared"):
            ours[case.price] += outcome.jct_s
            theirs[case.price] += PUBLISHED_S[case.number]
    return {price: ours[price] / theirs[price] for price in sorted(ours, key=float)}


def _sia(found: Found, means: SiaMeans) -> dict[str, Any]:
    """By cluster, trace, price and policy: mean completion time, and on how many workloads it is below
    Sia's."""
    groups: dict[tuple[str, str, str, str], dict[SiaSet, Outcome]] = defaultdict(dict)
    for case, outcome in found.items():
        if case.trace != POLLUX:
            groups[case.cluster, case.trace, case.price, case.label][SiaSet.of(case)] = outcome
    told: dict[str, Any] = {}
    for (cluster, trace, price, policy), outcomes in groups.items():
        place = told.setdefault(cluster, {}).setdefault(trace, {}).setdefault(price, {})
        place[policy] = _figures(outcomes.values()) | {
            "seeds_below_sia": _below({each: out.jct_s for each, out in outcomes.items()}, means),
            "seeds": len(outcomes),
        }
    return told


def _figures(outcomes: Collection[Outcome]) -> dict[str, float]:
    """Means over workloads."""
    return {
        "jct_h": _hours(_mean(each.jct_s for each in outcomes)),
        "p99_h": _hours(_mean(each.p99_jct_s for each in outcomes)),
        "makespan_h": _hours(_mean(each.makespan_s for each in outcomes)),
        "worst_fairness": _mean(each.worst_fairness for each in outcomes),
        "unfair_share": _mean(each.unfair_share for each in outcomes),
        "gpu_h": _mean(each.gpu_h for each in outcomes),
        "changes": _mean(float(each.changes) for each in outcomes),
    }


def _below(jct_s: Mapping[SiaSet, float], means: SiaMeans) -> int | None:
    """On how many of the workloads Sia takes longer; None: there is no log of Sia for one of them."""
    if any(each not in means for each in jct_s):
        return None
    return sum(1 for each, ours_s in jct_s.items() if ours_s < means[each])


def show(found: Found, sia_means: SiaMeans, replays: Replays, console: Console) -> None:
    """Print a table for each cluster and trace: mean completion times by policy and price."""
    for each, done in replays.items():
        console.print(
            f"replay of {each}: Sia's simulator {_hours(done.sia_s):.3f} h, ours {_hours(done.ours_s):.3f} h"
            f" ({done.difference:+.2%}), {done.unfinished} jobs without an end",
            highlight=False,
        )
    for cluster, trace in dict.fromkeys((case.cluster, case.trace) for case in found):
        cases = {case: out for case, out in found.items() if (case.cluster, case.trace) == (cluster, trace)}
        console.print(f"{trace}, {cluster} GPUs: mean completion time in hours", highlight=False)
        console.print(_grid(cases))
        sets = {SiaSet.of(case) for case in cases}
        for price in sorted({case.price for case in cases}, key=_order):
            console.print(f"at {_price(price)}: means over workloads", highlight=False)
            at_price = {case: out for case, out in cases.items() if case.price == price}
            console.print(_all_figures(at_price, len(sets)))
        if sets <= sia_means.keys():
            console.print(f"  Sia at its own price: {_hours(_mean(sia_means[each] for each in sets)):.3f} h")


def _grid(cases: Found) -> Table:
    prices = sorted({case.price for case in cases}, key=_order)
    grid = Table(box=box.SIMPLE)
    grid.add_column("policy")
    for price in prices:
        grid.add_column(_price(price), justify="right")
    workloads = len({SiaSet.of(case) for case in cases})
    for policy in dict.fromkeys(case.label for case in cases):
        cells = [
            [out.jct_s for case, out in cases.items() if (case.label, case.price) == (policy, price)]
            for price in prices
        ]
        grid.add_row(policy, *(_cell(each, workloads) for each in cells))
    return grid


def _all_figures(cases: Found, workloads: int) -> Table:
    grid = Table("policy", box=box.SIMPLE)
    for title in ("mean, h", "p99, h", "makespan, h", "worst fairness", "unfair", "GPU hours", "changes"):
        grid.add_column(title, justify="right")
    for policy in dict.fromkeys(case.label for case in cases):
        outcomes = [out for case, out in cases.items() if case.label == policy]
        told = _figures(outcomes)
        hours = (f"{told[key]:.3f}" for key in ("jct_h", "p99_h", "makespan_h"))
        unfair = f"{told['unfair_share']:.0%}"
        rest = f"{told['worst_fairness']:.2f}", unfair, f"{told['gpu_h']:.0f}", f"{told['changes']:.0f}"
        grid.add_row(f"{policy}{_of(len(outcomes), workloads)}", *hours, *rest)
    return grid


def _price(price: str) -> str:
    return "Sia's own price" if price == OWN else f"{price} s"


def _cell(jct_s: Sequence[float], workloads: int) -> str:
    """The mean in hours; if it is not of all workloads, with the number of those that it is of."""
    if not jct_s:
        return "-"
    return f"{_hours(_mean(jct_s)):.3f}{_of(len(jct_s), workloads)}"


def _of(simulated: int, workloads: int) -> str:
    return f" ({simulated} of {workloads})" if simulated < workloads else ""


def _order(price: str) -> float:
    return float(price) if price != OWN else math.inf


def _mean(values: Iterable[float]) -> float:
    listed: Sequence[float] = tuple(values)
    return sum(listed) / len(listed) if listed else math.nan


def _hours(seconds: float) -> float:
    return seconds / 3600.0
