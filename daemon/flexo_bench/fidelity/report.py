"""Writes the comparison as JSON, as a table for people, and as a picture of the jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from flexo_bench.fidelity.comparison import GOAL, Pair, Side, spread
from flexo_bench.fidelity.running import Life

_ELASTIC, _RIGID, _WAITING = "#3d7ab5", "#e08a3c", "#c4c4c4"
NOT_MODELLED = (
    "workers of several jobs that start at once on one machine, and share its cores",
    "the boundary of mini-batches at which workers join and leave (part of what is measured of joining)",
    "the phase of flexod's and Slurm's clocks: their looks fall otherwise in the lab",
    "epochs: a simulated job tells its progress continuously, a real one after each epoch",
)


@dataclass(frozen=True, slots=True)
class Found:
    """All results of the benchmark."""

    command: str
    machine: dict[str, Any]
    pairs: tuple[Pair, ...]
    seconds: float

    def of(self, policy: str) -> list[Pair]:
        """The repeats of `policy`."""
        return [pair for pair in self.pairs if pair.policy == policy]

    @property
    def policies(self) -> list[str]:
        """Policies in the order in which they ran."""
        return list(dict.fromkeys(pair.policy for pair in self.pairs))


def table(found: Found) -> Iterator[str]:
    """The comparison as lines for people."""
    yield f"\n{'':10}{'mean JCT (s)':>24}{'makespan (s)':>28}{'resizes':>12}{'each JCT':>10}{'load':>6}"
    yield (
        f"{'policy':10}{'lab':>8}{'sim':>8}{'off':>8}{'lab':>12}{'sim':>8}{'off':>8}"
        f"{'lab, sim':>12}{'off':>10}"
    )
    for pair in found.pairs:
        lab, sim = pair.lab, pair.simulator
        yield (
            f"{pair.policy:10}{lab.mean_jct_s:8.1f}{sim.mean_jct_s:8.1f}{pair.mean_jct:+8.1%}"
            f"{lab.makespan_s:12.1f}{sim.makespan_s:8.1f}{pair.makespan:+8.1%}"
            f"{f'{lab.resizes}, {sim.resizes}':>12}{pair.median_of_each:10.1%}{pair.load:6.1f}"
        )
    yield "\noff: simulator to lab, less 1; of each JCT the median of absolute differences over jobs"
    for policy in found.policies:
        yield _verdict(policy, found.of(policy))
    yield "not modelled: " + "; ".join(NOT_MODELLED)


def _verdict(policy: str, pairs: Sequence[Pair]) -> str:
    jct, makespan = spread(pairs, lambda pair: pair.mean_jct), spread(pairs, lambda pair: pair.makespan)
    worst = max(abs(value) for each in (jct, makespan) for value in each)
    verdict = "within" if worst <= GOAL else "MISSED"
    return (
        f"{policy:10} mean JCT {_range(jct)}, makespan {_range(makespan)}: {verdict} {GOAL:.0%}"
        f" ({len(pairs)} repeat{'s' * (len(pairs) != 1)})"
    )


def _range(of: tuple[float, float, float]) -> str:
    middle, low, high = of
    return f"{middle:+.1%}" if low == high else f"{middle:+.1%} ({low:+.1%}..{high:+.1%})"


def write(found: Found, path: Path) -> None:
    """Write the JSON: ratios first, then every job and every sample of the calibrations."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(found), indent=2) + "\n")


def as_json(found: Found) -> dict[str, Any]:
    """The comparison as JSON: differences by policy, then all data."""
    return {
        "goal": f"mean JCT and makespan of the simulator within {GOAL:.0%} of the lab's",
        "off": {policy: _off(found.of(policy)) for policy in found.policies},
        "command": found.command,
        "machine": found.machine,
        "seconds": round(found.seconds, 1),
        "not_modelled": list(NOT_MODELLED),
        "runs": [_run(pair) for pair in found.pairs],
    }


def _off(pairs: Sequence[Pair]) -> dict[str, Any]:
    names = ("median", "least", "greatest")
    return {
        "mean_jct": dict(zip(names, spread(pairs, lambda pair: pair.mean_jct), strict=True)),
        "makespan": dict(zip(names, spread(pairs, lambda pair: pair.makespan), strict=True)),
        "median_of_each_jct": dict(zip(names, spread(pairs, lambda pair: pair.median_of_each), strict=True)),
    }


def _run(pair: Pair) -> dict[str, Any]:
    return {
        "policy": pair.policy,
        "seed": pair.seed,
        "load_average": round(pair.load, 2),
        "lab": _side(pair.lab),
        "simulator": _side(pair.simulator),
        "calibration": {
            "times": asdict(pair.calibration.times),
            "speed": dict(zip(pair.calibration.speed.sizes, pair.calibration.speed.rates, strict=True)),
            "samples": asdict(pair.calibration.samples),
        },
    }


def _side(of: Side) -> dict[str, Any]:
    return {
        "mean_jct_s": of.mean_jct_s,
        "makespan_s": of.makespan_s,
        "mean_wait_s": of.mean_wait_s,
        "resizes": of.resizes,
        "jobs": [asdict(life) | {"jct_s": life.jct_s} for life in of.lives],
    }


def draw(pairs: Sequence[Pair], path: Path) -> None:
    """Draw a column for each policy: the lab's jobs above, the simulator's below."""
    figure = Figure(figsize=(5.6 * len(pairs), 8.4), layout="constrained", dpi=120)
    axes = figure.subplots(2, len(pairs), squeeze=False)
    for column, pair in enumerate(pairs):
        longest = max(pair.lab.makespan_s, pair.simulator.makespan_s)
        both = (*pair.lab.lives, *pair.simulator.lives)
        most = max(size for life in both for _, size in life.sizes)
        for row, (name, one) in enumerate((("lab", pair.lab), ("simulator", pair.simulator))):
            of = axes[row][column]
            _gantt(of, one.lives, longest, most)
            of.set_title(
                f"{pair.policy}, {name}: mean JCT {one.mean_jct_s:.0f} s, makespan {one.makespan_s:.0f} s",
                loc="left",
                fontsize=10,
            )
        axes[1][column].set_xlabel("seconds since the first submission")
    axes[0][0].set_ylabel("jobs, as thick as they have workers")
    handles = [
        Patch(color=_ELASTIC, label="elastic"),
        Patch(color=_RIGID, label="not elastic"),
        Patch(color=_WAITING, label="waits"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _gantt(axes: Axes, lives: Sequence[Life], longest_s: float, most: int) -> None:
    """Draw a row for each job. A bar of `most` workers is as thick as a row."""
    for row, life in enumerate(lives):
        axes.plot([life.submitted_at, life.began_at], [-row, -row], color=_WAITING, linewidth=2)
        ends = [*(at for at, _ in life.sizes[1:]), life.ended_at]
        for (start, size), end in zip(life.sizes, ends, strict=True):
            colour = _ELASTIC if life.job.elastic else _RIGID
            axes.barh(-row, end - start, 0.9 * size / most, left=start, color=colour, linewidth=0)
    axes.set_xlim(0, longest_s * 1.02)
    axes.set_yticks([-row for row in range(len(lives))], [str(life.job.number) for life in lives])
    axes.spines[["top", "right"]].set_visible(False)
