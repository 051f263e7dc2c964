"""Part `simulation`: AutoPS, section 5.2, with the algorithms of daemon/flexo/aggregation.

One setting is fixed; its figures are the result. The curves then change one assumption at a time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from flexo.aggregation.pool import AssignmentLimits
from flexo.aggregation.scaling import ScalingRules
from flexo_bench.service import few_jobs, picture
from flexo_bench.service.philly_jobs import SERVER_USE, TEN_WEEKS, Assumptions, load, with_servers
from flexo_bench.service.savings import Policy, Savings, Window, replay
from flexo_bench.service.setting import PartMissing, Setting
from flexo_simulation.workload import Workload

SEEDS: Final = (1, 2, 3, 4, 5)
QUICK_JOBS: Final = 300
PRINTED: Final = {"saved": 0.527, "below_one": 0.99, "worst": 2.5}
"""Section 5.2.3: "over 99% of the time" and "even larger than 2.5"."""
WHOLE: Final = (0.0, float("inf"))


@dataclass(frozen=True, slots=True)
class Case:
    """One setting of the simulation."""

    assumed: Assumptions = field(default_factory=Assumptions)
    policy: Policy = field(default_factory=Policy)
    counted: Window = TEN_WEEKS


FIXED: Final = Case()
"""Fixed before the first run on the whole trace, but for the 10 weeks."""

USES: Final = (0.1, 0.16, 0.2, 0.25, 0.3, 0.33, 0.36, 0.4, 0.45, 0.5, 0.55, 0.6)
LOSS_LIMITS: Final = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
PERIODS_S: Final = (0, 60, 300, 600, 1800, 3600, 7200, 21600)


def _with_use(use: float) -> Case:
    return replace(FIXED, assumed=replace(FIXED.assumed, server_use=Fraction(str(use))))


def _with_limit(limit: float) -> Case:
    rules = ScalingRules(AssignmentLimits(loss=Fraction(str(limit))))
    return replace(FIXED, policy=replace(FIXED.policy, rules=rules))


def _with_period(period_s: float) -> Case:
    return replace(FIXED, policy=replace(FIXED.policy, period_s=period_s))


CURVES: Final[Mapping[str, tuple[Sequence[float], Callable[[float], Case]]]] = {
    "server_use": (USES, _with_use),
    "loss_limit": (LOSS_LIMITS, _with_limit),
    "period_s": (PERIODS_S, _with_period),
}
READINGS: Final[Mapping[str, Case]] = {
    "whole trace, 109 days": replace(FIXED, counted=WHOLE),
    "jobs of 2 GPUs and more": replace(FIXED, assumed=replace(FIXED.assumed, least_gpus=2)),
    "on as few Aggregators as hold a job": replace(
        FIXED, assumed=replace(FIXED.assumed, as_wide_as_servers=False)
    ),
    "all iterations of a model last the same": replace(FIXED, assumed=replace(FIXED.assumed, spread=0.0)),
    "iterations of a model differ up to 7 times": replace(FIXED, assumed=replace(FIXED.assumed, spread=1.0)),
    "groups of 16 Aggregators": replace(FIXED, policy=replace(FIXED.policy, group_size=16)),
    "groups of 8 Aggregators": replace(FIXED, policy=replace(FIXED.policy, group_size=8)),
    "between periods, allocated for 4 and more": replace(
        FIXED, policy=replace(FIXED.policy, rules=ScalingRules(on_demand=4))
    ),
}


def measure(setting: Setting) -> Mapping[str, Any]:
    """Simulate the fixed setting, the curves and other readings. Raises PartMissing without the trace."""
    if not setting.traces.exists():
        raise PartMissing(f"it needs the traces, which would lie at {setting.traces}")
    workload = load(setting.traces)
    seeds = SEEDS[:1] if setting.quick else SEEDS

    def run(label: str, case: Case) -> list[Savings]:
        found = [_replayed(workload, case, seed, setting.quick) for seed in seeds]
        setting.tell(f"{label}: {_mean(found)['saved']:.1%} saved")
        return found

    fixed = run("fixed setting", FIXED)
    curves = {
        name: [{name: x, **_mean(run(f"{name} {x:g}", case_of(x)))} for x in xs[:: 3 if setting.quick else 1]]
        for name, (xs, case_of) in CURVES.items()
    }
    readings = {label: _mean(run(label, case)) for label, case in READINGS.items() if not setting.quick}
    found = {
        **_mean(fixed),
        "server_use": float(SERVER_USE),
        "printed": PRINTED,
        "use_with_printed_saving": use_saving(PRINTED["saved"], curves["server_use"]),
        "setting": {
            "loss_limit": float(FIXED.policy.rules.limits.loss),
            "period_s": FIXED.policy.period_s,
            "least_gpus": FIXED.assumed.least_gpus,
            "spread": FIXED.assumed.spread,
            "weeks": 10,
            "seeds": seeds,
        },
        "seeds": [asdict(each) for each in fixed],
        "curve": curves,
        "readings": readings,
        "figure_8": few_jobs.figure_8(),
        "table_2": few_jobs.table_2(),
    }
    _show(found)
    if not setting.quick:
        setting.build.mkdir(parents=True, exist_ok=True)
        picture.draw(found, setting.build / "service-savings.png")
    return {"simulation": found}


def use_saving(saved: float, curve: Sequence[Mapping[str, float]]) -> float | None:
    """The server use at which so much is saved, between two points of the curve; None: at none of them."""
    for one, other in pairwise(curve):
        high, low = one["saved"], other["saved"]
        if low <= saved <= high and low < high:
            part = (high - saved) / (high - low)
            return one["server_use"] + part * (other["server_use"] - one["server_use"])
    return None


def _replayed(workload: Workload, case: Case, seed: int, quick: bool) -> Savings:
    jobs = with_servers(workload, case.assumed, seed, QUICK_JOBS if quick else None)
    return replay(jobs, case.policy, WHOLE if quick else case.counted)


def _mean(found: Sequence[Savings]) -> dict[str, float]:
    """The mean of each figure over the seeds; of `worst`, the largest."""
    means = {
        name: statistics.fmean(asdict(each)[name] for each in found)
        for name in ("saved", "below_one", "mean_servers", "mean_aggregators", "moves")
    }
    return {**means, "worst": max(each.worst for each in found), "groups": max(each.groups for each in found)}


def _show(found: Mapping[str, Any]) -> None:
    print(f"\nAutoPS, section 5.2.3, server use {found['server_use']:.2f} | saved | below 1 | worst")
    print(f"  printed | {PRINTED['saved']:.1%} | over {PRINTED['below_one']:.0%} | over {PRINTED['worst']}")
    print(f"  fixed setting | {_row(found)}")
    for name, points in found["curve"].items():
        for point in points:
            print(f"  {name} {point[name]:g} | {_row(point)}")
    for label, figures in found["readings"].items():
        print(f"  {label} | {_row(figures)}")
    use = found["use_with_printed_saving"]
    print(f"the printed saving needs a server use of {use:.3f}" if use else "no use gives the printed saving")
    print("figure 8, Aggregators of 1, 2, 3, 4 jobs with 2 servers each:")
    for name, many in found["figure_8"].items():
        print(f"  {name}: {', '.join(map(str, many))}")
    print("table 2, part of 8 servers saved by 2 jobs, printed / ours:")
    for name, part in found["table_2"].items():
        print(f"  {name}: {few_jobs.TABLE_2[name]:.3f} / {part:.3f}")


def _row(figures: Mapping[str, float]) -> str:
    return f"{figures['saved']:.1%} | {figures['below_one']:.2%} | {figures['worst']:.2f}"
