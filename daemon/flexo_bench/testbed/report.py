"""Writes the comparison of the testbed as a table, as JSON and as a picture, and reads that JSON again."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexo_bench.fidelity.earlier import calibration_of, life_of
from flexo_bench.testbed import printed, workload
from flexo_bench.testbed.figures import GOAL, Course, Loans, Pair
from flexo_bench.testbed.simulating import SCHEMES, Variant, simulated_course, variants

SEEDS = (1, 2, 3, 4, 5)
"""Seeds of the jobs that are simulated alone."""
_COLOURS = {"lab": "#1f4e79", "simulator": "#e08a3c"}
_ROWS = {"baseline": printed.BASELINE, "basic": printed.LYRA}
CHOSEN = (
    "GPUs of jobs, times of submission, how jobs that are not elastic take GPUs, the range of elastic jobs",
    "a fungible job has one T4 in place of each V100, and takes three times as long",
    "a preempted job begins anew; flexod orders pending jobs by the policy, in both schemes",
    "inference needs whole servers of 4 T4, and its day is pressed into the eight hours",
)


@dataclass(frozen=True, slots=True)
class Found:
    """All results of the benchmark."""

    command: str
    machine: dict[str, Any]
    pairs: tuple[Pair, ...]
    variants: tuple[Variant, ...] = ()
    """Scheme Basic in the simulator, with other jobs."""


def table(found: Found) -> Iterator[str]:
    """The comparison as lines for people. Times are in seconds of the slides: ours are multiplied."""
    yield (
        f"\n{'':22}{'queueing':>16}{'completion':>16}{'preempted':>11}{'scalings':>10}"
        f"{'use on loan':>13}{'loans':>7}{'reclaims':>14}"
    )
    yield f"{'scheme':22}{'mean, median':>16}{'mean, median':>16}"
    for pair in found.pairs:
        row = _ROWS[pair.scheme]
        yield (
            f"{pair.scheme + ', printed':22}{_two(row.queue.mean, row.queue.median):>16}"
            f"{_two(row.jct.mean, row.jct.median):>16}{row.preempted:11.0%}"
            + (_printed_loans() if pair.scheme == "basic" else "")
        )
        for name, course in (("lab", pair.lab), ("simulator", pair.simulator)):
            yield _row(f"{pair.scheme}, {name}", course, printed.SECONDS / pair.seconds)
    for pair in found.pairs:
        verdict = "within" if pair.within else "MISSED"
        yield (
            f"{pair.scheme}, seed {pair.seed}: the simulator to the lab, means: queueing {pair.queue:+.1%},"
            f" completion {pair.jct:+.1%}: {verdict} {GOAL:.0%};"
            f" the machine's load {pair.lab.load:.1f} on average, {pair.lab.highest_load:.1f} at most"
        )
    if found.variants:
        yield f"in the simulator, seeds {SEEDS[0]} to {SEEDS[-1]}, use on loan and preempted:"
    for variant in found.variants:
        yield f"  {variant.what}: {_spread(variant.uses)}, {_spread(variant.preempted)}"
    yield "chosen, because the slides do not print it: " + "; ".join(CHOSEN)


def _row(title: str, course: Course, times: float) -> str:
    queue, jct = course.queue_s, course.jct_s
    line = (
        f"{title:22}{_two(statistics.fmean(queue) * times, statistics.median(queue) * times):>16}"
        f"{_two(statistics.fmean(jct) * times, statistics.median(jct) * times):>16}"
        f"{course.preempted:11.1%}{course.scalings:10}"
    )
    loans = course.loans
    if loans is None:
        return line
    return line + f"{loans.use:13.1%}{loans.loans:7}{f'{loans.reclaims} of {loans.servers_reclaimed}':>14}"


def _printed_loans() -> str:
    reclaims = f"{printed.RECLAIMS} of {printed.SERVERS_RECLAIMED}"
    return f"{printed.SCALINGS:10}{printed.ON_LOAN_USE:13.0%}{printed.LOANS:7}{reclaims:>14}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1%} ({min(values):.1%}..{max(values):.1%})"


def _two(mean: float, median: float) -> str:
    return f"{mean:,.0f}, {median:,.0f}"


def write(found: Found, path: Path) -> None:
    """Write the JSON: differences first, then every job and every sample of the calibration."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(found), indent=1) + "\n")


def as_json(found: Found) -> dict[str, Any]:
    """The results as JSON, in seconds of the lab."""
    return {
        "goal": f"mean queueing and completion of the simulator within {GOAL:.0%} of the lab's",
        "command": found.command,
        "machine": found.machine,
        "printed": {name: asdict(row) for name, row in _ROWS.items()},
        "chosen": list(CHOSEN),
        "runs": [_pair(pair) for pair in found.pairs],
        "variants": [
            {"what": each.what, "seeds": list(SEEDS), "use": each.uses, "preempted": each.preempted}
            for each in found.variants
        ],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    found = pair.calibration
    return {
        "scheme": pair.scheme,
        "seed": pair.seed,
        "seconds": pair.seconds,
        "queueing_off": pair.queue,
        "completion_off": pair.jct,
        "within": pair.within,
        "lab": _course(pair.lab),
        "simulator": _course(pair.simulator),
        "calibration": {
            "times": asdict(found.times),
            "speed": dict(zip(found.speed.sizes, found.speed.rates, strict=True)),
            "samples": asdict(found.samples),
        },
    }


def _course(course: Course) -> dict[str, Any]:
    return {
        "mean_queue_s": statistics.fmean(course.queue_s),
        "median_queue_s": statistics.median(course.queue_s),
        "mean_jct_s": statistics.fmean(course.jct_s),
        "median_jct_s": statistics.median(course.jct_s),
        "preempted": course.preempted,
        "scalings": course.scalings,
        "makespan_s": course.makespan_s,
        "loans": None if course.loans is None else asdict(course.loans),
        "load": course.load,
        "highest_load": course.highest_load,
        "jobs": [asdict(life) for life in course.lives],
    }


def machine_of(path: Path) -> dict[str, Any]:
    """The machine of the run that wrote this file."""
    facts: dict[str, Any] = json.loads(path.read_text())["machine"]
    return facts


def simulated_anew(path: Path) -> Iterator[Pair]:
    """Pairs with the lab's part of an earlier run, and new simulations."""
    for run in json.loads(path.read_text())["runs"]:
        real, found, scheme = _read(run["lab"]), calibration_of(run["calibration"]), SCHEMES[run["scheme"]]
        jobs = tuple(life.job for life in real.lives)
        ours = simulated_course(jobs, workload.needs(run["seed"], run["seconds"]), scheme, found)
        yield Pair(run["scheme"], run["seed"], run["seconds"], real, ours, found)


def variants_of(pairs: Sequence[Pair]) -> tuple[Variant, ...]:
    """Other jobs in the simulator, with the delays of the first pair of scheme Basic; () if there is none."""
    for pair in pairs:
        if pair.scheme == "basic":
            return tuple(variants(SEEDS, pair.seconds, len(pair.lab.lives), pair.calibration))
    return ()


def _read(told: Mapping[str, Any]) -> Course:
    loans = None if told["loans"] is None else Loans(**told["loans"])
    return Course(tuple(map(life_of, told["jobs"])), loans, told["load"], told["highest_load"])


def draw(found: Found, path: Path) -> None:
    """Draw for each scheme the parts of the jobs that have waited, and taken, no longer than a time."""
    figure = Figure(figsize=(9.6, 3.6 * len(found.pairs)), layout="constrained", dpi=120)
    axes = figure.subplots(len(found.pairs), 2, squeeze=False)
    for row, pair in zip(axes, found.pairs, strict=True):
        times = printed.SECONDS / pair.seconds / 60
        _steps(row[0], pair, lambda course: course.queue_s, times)
        _steps(row[1], pair, lambda course: course.jct_s, times)
        row[0].set_title(f"{pair.scheme}: queueing", loc="left", fontsize=10)
        row[1].set_title(f"{pair.scheme}: completion", loc="left", fontsize=10)
        row[0].set_ylabel("part of the jobs")
        row[0].legend(frameon=False)
    for each in axes[-1]:
        each.set_xlabel("minutes of the slides' eight hours")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _steps(axes: Axes, pair: Pair, of: Callable[[Course], Sequence[float]], times: float) -> None:
    for name, course in (("lab", pair.lab), ("simulator", pair.simulator)):
        values = sorted(times * value for value in of(course))
        parts = [(index + 1) / len(values) for index in range(len(values))]
        axes.step(values, parts, where="post", label=name, color=_COLOURS[name])
    axes.set_ylim(0, 1)
    axes.spines[["top", "right"]].set_visible(False)
