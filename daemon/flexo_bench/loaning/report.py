"""Reports the results of the benchmark beside Lyra's rows, as text for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from flexo_bench.loaning import published
from flexo_bench.loaning.cases import CHOOSERS, CHOOSERS_IN, READINGS, Case, Measured
from flexo_bench.loaning.choices import Compared

LENDING_MODES = ("basic", "advanced", "ideal")


@dataclass(frozen=True)
class Found:
    """All cases of one run of the benchmark."""

    scale: float
    measured: tuple[Measured, ...]
    compared: tuple[Compared, ...]

    def of(self, **like: object) -> list[Measured]:
        """Results of the cases whose fields equal `like`, by seed."""
        found = [
            each
            for each in self.measured
            if all(getattr(each.case, name) == value for name, value in like.items())
        ]
        return sorted(found, key=lambda each: each.case.seed)

    def without(self, reading: str, mode: str) -> list[Measured]:
        """Results without loaning, by seed. Nothing is preempted there, so checkpoints do not matter."""
        return self.of(reading=reading, mode=mode, chooser="", policy="lyra")


def of_whole_seeds(
    scale: float, cases: Iterable[Case], measured: Iterable[Measured], compared: Iterable[Compared]
) -> Found:
    """The results of complete seeds. After an interruption, others may be incomplete."""
    found = tuple(measured)
    missing = {case.seed for case in set(cases) - {each.case for each in found}}
    some = [each for each in compared if each.case.seed not in missing]
    ordered = sorted(some, key=lambda each: (each.case.mode, each.which, each.case.seed))
    return Found(scale, tuple(each for each in found if each.case.seed not in missing), tuple(ordered))


@dataclass(frozen=True)
class Verdict:
    """One goal, and whether it was met."""

    goal: str
    met: bool
    figures: str


def show(found: Found, console: Console) -> None:
    """Print every table, and the goals."""
    for reading, checkpoints in _settings(found):
        console.print(_modes(found, reading, checkpoints))
    for reading, checkpoints in _settings(found):
        for mode in LENDING_MODES:
            console.print(_choosers(found, reading, checkpoints, mode))
    console.print(_choices(found.compared))
    for verdict in verdicts(found):
        console.print(
            f"{'met   ' if verdict.met else 'MISSED'}  {verdict.goal}: {verdict.figures}", highlight=False
        )


def _settings(found: Found) -> list[tuple[str, bool]]:
    return sorted(
        {(each.case.reading, each.case.checkpoints) for each in found.measured},
        key=lambda s: (s[0] != "three", not s[1]),
    )


def _title(reading: str, checkpoints: bool) -> str:
    each = "three T4 in place of a V100" if reading == "three" else "one T4 in place of a V100"
    return f"{each}; preempted jobs {'go on' if checkpoints else 'begin anew'}"


# Tables.

_COLUMNS = ("queueing mean", "median", "p95", "completion mean", "median", "p95")


def _modes(found: Found, reading: str, checkpoints: bool) -> Table:
    """The table of modes with and without loaning."""
    table = Table(title=_title(reading, checkpoints), title_justify="left", box=box.SIMPLE)
    table.add_column("printed | ours: mean of seeds (lowest..highest)")
    for column in (*_COLUMNS, "training", "overall", "on loan", "preempted"):
        table.add_column(column, justify="right")
    for label, row, cases in _rows(found, reading, checkpoints):
        if not cases:
            continue
        times = [
            _beside(printed, [each(case) for case in cases])
            for printed, each in zip((*row.queue, *row.jct), _TIMES, strict=True)
        ]
        uses = [
            _percents(row.training_use, [case.loans.training_use for case in cases]),
            _percents(row.overall_use, [overall_use(case) for case in cases]),
            _percents(
                published.ON_LOAN_USE if row.preempted > 0 else math.nan,
                [case.loans.on_loan_use for case in cases],
            ),
            _percents(row.preempted, [case.loans.preemptions_per_job for case in cases]),
        ]
        table.add_row(label, *times, *uses)
    return table


def _rows(
    found: Found, reading: str, checkpoints: bool
) -> Iterable[tuple[str, published.Row, list[Measured]]]:
    like = {"reading": reading, "checkpoints": checkpoints}
    yield (
        "baseline: EASY backfilling",
        published.NOTHING,
        found.of(mode="baseline", policy="backfill"),
    )
    yield "baseline: shortest first", published.ROWS["baseline"], found.without("three", "baseline")
    for mode in LENDING_MODES:
        yield f"{mode}, no loaning", published.NOTHING, found.without(reading, mode)
        yield f"{mode}, loaning", published.ROWS[mode], found.of(**like, mode=mode, chooser="heuristic")


_TIMES: tuple[Callable[[Measured], float], ...] = (
    lambda case: case.queue_s[0],
    lambda case: case.queue_s[1],
    lambda case: case.queue_s[2],
    lambda case: case.jct_s[0],
    lambda case: case.jct_s[1],
    lambda case: case.jct_s[2],
)


def overall_use(case: Measured) -> float:
    """Use of the real GPUs of both clusters: a server of 12 T4 counts as 12."""
    servers = READINGS[case.case.reading]
    real = 3 * servers.gpus if case.case.reading == "three" else servers.gpus
    on_loan = (
        case.loans.on_loan_use * case.loans.server_hours / (published.DAYS * 24) if case.loans.loans else 0.0
    )
    count = round(servers.nodes * case.case.scale)
    training = published.TRAINING_GPUS * case.case.scale
    used = case.loans.training_use * training + (case.loans.inference_use * count + on_loan) * real
    return used / (training + count * real)


def _choosers(found: Found, reading: str, checkpoints: bool, mode: str) -> Table:
    """The table of choosers of servers to reclaim, each in its own simulations."""
    title = f"{mode}, who chooses what is vacated; {_title(reading, checkpoints)}; sums over seeds"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("")
    names = (
        "preemptions", "to jobs", "jobs preempted, of those on loan", "emptied beside", "workers scaled in",
        "loans", "reclaims", "of servers", "missed", "queueing mean", "completion mean",
    )  # fmt: skip
    for name in names:
        table.add_column(name, justify="right")
    for name in CHOOSERS:
        cases = found.of(reading=reading, checkpoints=checkpoints, mode=mode, chooser=name)
        if cases:
            table.add_row(name, *_chooser_cells(cases))
    return table


def _chooser_cells(cases: Sequence[Measured]) -> list[str]:
    loans = [case.loans for case in cases]
    preempted = sum(
        round(each.preempted_of_on_loan * each.jobs_on_loan) for each in loans if each.jobs_on_loan
    )
    return [
        f"{sum(each.bases_preempted for each in loans):,}",
        _percent(_mean([each.preemptions_per_job for each in loans])),
        _percent(preempted / max(1, sum(each.jobs_on_loan for each in loans))),
        f"{sum(each.servers_emptied_aside for each in loans):,}",
        f"{sum(each.workers_scaled_in for each in loans):,}",
        f"{sum(each.loans for each in loans):,}",
        f"{sum(each.reclaims for each in loans):,}",
        f"{sum(each.servers_reclaimed for each in loans):,}",
        f"{sum(each.deadlines_missed for each in loans):,}",
        f"{_mean([case.queue_s[0] for case in cases]):,.0f}",
        f"{_mean([case.jct_s[0] for case in cases]):,.0f}",
    ]


def _choices(compared: Sequence[Compared]) -> Table:
    """The table of all choosers on the same states."""
    table = Table(
        title="jobs preempted on the same states, sums over seeds", title_justify="left", box=box.SIMPLE
    )
    for name in ("mode", "servers wanted", "states", *CHOOSERS, "heuristic to exact", "worst state"):
        table.add_column(name, justify="left" if name in ("mode", "servers wanted") else "right")
    for mode, which in dict.fromkeys((each.case.mode, each.which) for each in compared):
        those = [each for each in compared if (each.case.mode, each.which) == (mode, which)]
        sums = preempted(those)
        ratio = sums["heuristic"] / sums["exact"] if sums["exact"] else math.nan
        table.add_row(
            mode,
            which,
            f"{sum(each.states for each in those):,}",
            *(f"{sums[name]:,.0f}" for name in CHOOSERS),
            f"{ratio:.3f}",
            f"+{max(each.worst for each in those):.0f}",
        )
    return table


def preempted(compared: Iterable[Compared]) -> dict[str, float]:
    """Sum of preempted jobs per chooser."""
    sums = dict.fromkeys(CHOOSERS, 0.0)
    for each in compared:
        for name, count in each.preempted.items():
            sums[name] += count
    return sums


# Goals.


def verdicts(found: Found) -> list[Verdict]:
    """The goals, each with the figures by which it was judged."""
    return [*_choice_goals(found), *_simulated_goals(found), *_loaning_goals(found), _deadlines(found)]


def _choice_goals(found: Found) -> Iterable[Verdict]:
    """The goals on the same states, over all modes and parts together."""
    if not found.compared:
        return
    sums = preempted(found.compared)
    seeds = sorted({each.case.seed for each in found.compared})
    of_seed = {seed: preempted(each for each in found.compared if each.case.seed == seed) for seed in seeds}
    worst = max(each["heuristic"] / max(1.0, each["exact"]) for each in of_seed.values())
    text = f"{sums['heuristic']:,.0f} to {sums['exact']:,.0f}, worst seed {worst:.3f}"
    yield Verdict(
        "same states: the heuristic preempts at most 10% more than the exact choice",
        sums["heuristic"] <= 1.1 * sums["exact"],
        text,
    )
    for name in ("random", "smallest first"):
        fewer = sum(each["heuristic"] < each[name] for each in of_seed.values())
        yield Verdict(
            f"same states: the heuristic preempts fewer than {name}",
            sums["heuristic"] < sums[name],
            f"{sums['heuristic']:,.0f} to {sums[name]:,.0f}; so on {fewer} of {len(seeds)} seeds",
        )


def _simulated_goals(found: Found) -> Iterable[Verdict]:
    """The goals of choosers in simulations of their own, whose histories differ."""
    for reading, checkpoints in _settings(found):
        sums = {}
        for name in CHOOSERS:
            cases = found.of(reading=reading, checkpoints=checkpoints, mode=CHOOSERS_IN, chooser=name)
            sums[name] = sum(each.loans.bases_preempted for each in cases), len(cases)
        if len({count for _, count in sums.values()}) > 1 or not sums["exact"][1]:
            continue
        where = f"simulated, {CHOOSERS_IN}, {_title(reading, checkpoints)}"
        ours, best = sums["heuristic"][0], sums["exact"][0]
        yield Verdict(
            f"{where}: the heuristic preempts at most 10% more than the exact choice",
            ours <= 1.1 * best,
            f"{ours:,} to {best:,}",
        )
        for name in ("random", "smallest first"):
            yield Verdict(
                f"{where}: the heuristic preempts fewer than {name}",
                ours < sums[name][0],
                f"{ours:,} to {sums[name][0]:,}",
            )


def _loaning_goals(found: Found) -> Iterable[Verdict]:
    for reading, checkpoints in _settings(found):
        for mode in LENDING_MODES:
            like = {"reading": reading, "checkpoints": checkpoints, "mode": mode}
            without, having = found.without(reading, mode), found.of(**like, chooser="heuristic")
            if not without or not having:
                continue
            queue = _better(without, having, lambda case: case.queue_s[0])
            jct = _better(without, having, lambda case: case.jct_s[0])
            enough = queue.wins == jct.wins == len(having)
            yield Verdict(
                f"{mode}, {_title(reading, checkpoints)}: queueing and completion better with loaning",
                enough,
                f"queueing on {queue.wins}, completion on {jct.wins} of {len(having)} seeds;"
                f" {queue.times:.2f} and {jct.times:.2f} times on average",
            )


@dataclass(frozen=True)
class _Better:
    wins: int
    times: float


def _better(
    without: Sequence[Measured], having: Sequence[Measured], of: Callable[[Measured], float]
) -> _Better:
    pairs = [(of(a), of(b)) for a, b in zip(without, having, strict=True)]
    times = sum(a for a, _ in pairs) / max(1e-9, sum(b for _, b in pairs))
    return _Better(sum(b < a for a, b in pairs), times)


def _deadlines(found: Found) -> Verdict:
    missed = sum(each.loans.deadlines_missed for each in found.measured)
    servers = sum(each.loans.servers_reclaimed for each in found.measured)
    return Verdict("no deadline missed", missed == 0, f"{missed} of {servers:,} servers called back")


# Numbers.


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _beside(printed: float, ours: Sequence[float]) -> str:
    text = f"{_mean(ours):,.0f}"
    if len(ours) > 1:
        text += f" ({min(ours):,.0f}..{max(ours):,.0f})"
    return f"{'-' if math.isnan(printed) else f'{printed:,.0f}'} | {text}"


def _percents(printed: float, ours: Sequence[float]) -> str:
    return f"{_percent(printed)} | {_percent(_mean(ours))}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}%"


def as_json(found: Found) -> dict[str, Any]:
    """The results as JSON, each case by itself; null for a value that is not finite."""
    return {
        "paper": published.PAPER,
        "scale": found.scale,
        "published": {name: _finite(asdict(row)) for name, row in published.ROWS.items()},
        "goals": [asdict(verdict) for verdict in verdicts(found)],
        "cases": [_case(each) for each in found.measured],
        "choices": [_finite(asdict(each)) for each in found.compared],
    }


def _case(measured: Measured) -> dict[str, Any]:
    names = ("mean", "median", "p95")
    told: dict[str, Any] = _finite(
        {
            **asdict(measured.case),
            "queue_s": dict(zip(names, measured.queue_s, strict=True)),
            "jct_s": dict(zip(names, measured.jct_s, strict=True)),
            "preemptions": measured.preemptions,
            "resizes": measured.resizes,
            "overall_use": overall_use(measured),
            "loans": asdict(measured.loans),
            "wall_s": measured.wall_s,
        }
    )
    return told


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
