"""What came of a soak: build/soak/report.json, and a table for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from soak.meter import Sample
from soak.slopes import Slope, fit, samples_needed


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the things that must not grow."""

    name: str
    unit: str
    bound: float
    """Of the slope's upper 95% bound; an hour."""
    of: Callable[[Sample], float]
    relative: bool = False


MEASURES = (
    Measure("memory_mib", "MiB/h", 2.0, lambda sample: sample.memory_mib),
    Measure("descriptors", "/h", 0.5, lambda sample: sample.descriptors),
    Measure("threads", "/h", 0.5, lambda sample: sample.threads),
    Measure("cycle_cpu_percent", "%/h", 10.0, lambda sample: sample.cycle_cost, relative=True),
)

COMPARED = {
    "CPU seconds of a cycle": lambda sample: sample.cycle_cpu_s,
    "CPU seconds of the fixed work": lambda sample: sample.reference_cpu_s,
}
"""What `cycle_cpu_percent` consists of, not judged: it tells whether the machine or flexod was slow."""


@dataclass(frozen=True, slots=True)
class Soak:
    """A whole soak, or as much of it as there was."""

    seed: int
    minutes: float
    warm_up_minutes: float
    rounds: int
    jobs: int
    satellites: int
    failures: dict[str, int]
    """How often each was carried out."""
    violations: tuple[str, ...]
    warm_up: tuple[Sample, ...]
    samples: tuple[Sample, ...]
    """After the warm-up: what slopes are fitted to."""
    event_store_budget: int
    """Bytes."""
    interrupted: bool = False

    @property
    def slopes(self) -> dict[str, Slope]:
        """By name, as in the report."""
        at = [sample.at for sample in self.samples]
        return {
            each.name: fit(
                at, [each.of(sample) for sample in self.samples], each.bound, relative=each.relative
            )
            for each in MEASURES
        }

    @property
    def store_bytes(self) -> int:
        """The most that the event store took at any quiet point."""
        return max((sample.event_store_bytes for sample in (*self.warm_up, *self.samples)), default=0)

    @property
    def well(self) -> bool:
        """Nothing grows, and nothing happened that must not."""
        return (
            not self.violations and not self.interrupted and all(each.flat for each in self.slopes.values())
        )


def write(soak: Soak, path: Path) -> None:
    """The file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = asdict(soak)
    document = {
        "minutes": round(soak.minutes, 2),
        "slopes": {name: _slope(slope) for name, slope in soak.slopes.items()},
        "violations": len(soak.violations),
        "violated": fields.pop("violations"),
        "event_store": {"most_bytes": soak.store_bytes, "budget_bytes": fields.pop("event_store_budget")},
        **{name: value for name, value in fields.items() if name != "minutes"},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _slope(slope: Slope) -> dict[str, float | bool | None]:
    return {
        "per_hour": slope.per_hour, "upper95": slope.upper95, "flat": slope.flat, "bound": slope.bound,
        "samples": slope.samples, "mean": slope.mean, "noise": slope.noise,
    }  # fmt: skip


def table(soak: Soak) -> list[str]:
    """Lines for people."""
    lines = [f"{'':20}{'mean':>10}{'slope':>12}{'upper 95%':>12}{'allowed':>12}"]
    for measure in MEASURES:
        slope = soak.slopes[measure.name]
        row = f"{measure.name:20}{_number(slope.mean):>10}{_number(slope.per_hour):>12}"
        row += f"{_number(slope.upper95):>12}{f'{measure.bound:g} {measure.unit}':>12}"
        lines.append(f"{row}  {_verdict(slope, soak.samples)}")
    for name, of in COMPARED.items():
        lines.append(_compared(name, soak.samples, of))
    most, budget = soak.store_bytes / 2**20, soak.event_store_budget / 2**20
    lines.append(f"event store: {most:.2f} MiB at most, {budget:.2f} are allowed")
    failures = ", ".join(f"{what} {count}" for what, count in sorted(soak.failures.items()))
    lines.append(
        f"{soak.rounds} rounds, {soak.jobs} jobs, {soak.satellites} satellites; {failures or 'no failures'}"
    )
    lines += [f"violated: {what}" for what in soak.violations]
    return lines


def _compared(name: str, samples: Sequence[Sample], of: Callable[[Sample], float]) -> str:
    slope = fit([each.at for each in samples], [of(each) for each in samples], math.inf, relative=True)
    if slope.mean is None:
        return f"{name}: -"
    return f"{name}: {1000 * slope.mean:.2f} ms, {_number(slope.per_hour)} %/h, noise {_number(slope.noise)}%"


def _verdict(slope: Slope, samples: Sequence[Sample]) -> str:
    if slope.flat:
        return "flat"
    if slope.per_hour is None or slope.noise is None:
        return f"NOT shown to be flat: {slope.samples} samples are too few"
    if slope.per_hour > slope.bound:
        return "GROWS"
    hours = (samples[-1].at - samples[0].at) / 3600
    needed = samples_needed(slope.noise, slope.bound, 50 / 60)
    return (
        f"NOT shown to be flat by {slope.samples} samples in {60 * hours:.0f} min; "
        f"with this noise, about {needed} in 50 min would"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
