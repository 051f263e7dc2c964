"""The results of the demo of a pool: counts from the trainings' own logs, a table, and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flexo_demos.elastic.report import CheckedSentence
from flexo_demos.service.cores import CoreSeconds, core_seconds
from flexo_demos.service.steps import BATCH, Counted, Line, count, longest_pause_s
from flexo_demos.service.story import JOBS, Plot, Seen

PAUSE_WITHIN_S = 5.0
"""Seconds after a death in which its pause is looked for."""


@dataclass(frozen=True, slots=True)
class Found:
    """All results. Times in seconds; None: it did not come to this. `failure`: why the story ended early."""

    slurm_version: str
    duration_s: float
    counted: Mapping[str, Counted]
    """By job."""
    losses: Mapping[str, float]
    """By job: the measured part of its speed that sharing costs."""
    shared_after_s: float | None
    """From the submission of the pool's Aggregators until both share one: both are profiled meanwhile."""
    drained: int
    aggregator_pause_s: float | None
    """The longest additional time for a step of either job, by the Aggregator's death."""
    shared_again_s: float | None
    worker_pause_s: float | None
    """The same for the second job's rank 0, by the other worker's death."""
    worker_back_s: float | None
    fell_back: int
    core_seconds: CoreSeconds | None
    failure: str = ""

    @property
    def batches_lost(self) -> int:
        """Of both jobs."""
        return sum(each.batches_lost for each in self.counted.values())

    @property
    def samples_repeated(self) -> int:
        """Of both jobs."""
        return sum(each.samples_repeated for each in self.counted.values())

    @property
    def samples_missing(self) -> int:
        """Of both jobs."""
        return sum(each.samples_missing for each in self.counted.values())


def found_of(
    seen: Seen, plot: Plot, lines: Mapping[str, Sequence[Line]], failure: str, duration_s: float
) -> Found:
    """The results in what the demo has seen, and in the lines that the jobs have logged."""
    pauses = [_pause(lines[name], seen.aggregator_killed_at) for name in JOBS]
    return Found(
        slurm_version=seen.slurm_version,
        duration_s=round(duration_s, 1),
        counted={name: count(lines[name]) for name in JOBS},
        losses=seen.losses,
        shared_after_s=_after(seen.pool_at, seen.shared_at),
        drained=seen.drained,
        aggregator_pause_s=max((pause for pause in pauses if pause is not None), default=None),
        shared_again_s=_after(seen.aggregator_killed_at, seen.shared_again_at),
        worker_pause_s=_pause(lines[JOBS[1]], seen.worker_killed_at),
        worker_back_s=_after(seen.worker_killed_at, seen.worker_back_at),
        fell_back=seen.fell_back,
        core_seconds=core_seconds(seen.uses, seen.aggregators, list(seen.jobs.values()), plot.cores_each),
        failure=failure,
    )


def _pause(lines: Sequence[Line], at: float) -> float | None:
    return longest_pause_s(lines, at, PAUSE_WITHIN_S) if at else None


def _after(first: float, then: float) -> float | None:
    return round(then - first, 1) if first and then else None


def write(found: Found, path: Path) -> None:
    """Write the results as JSON."""
    path.write_text(json.dumps(asdict(found), indent=2) + "\n")


def table(found: Found) -> list[tuple[str, str]]:
    """Names and figures for people."""
    held = found.core_seconds
    losses = ", ".join(f"{name} {loss:.1%}" for name, loss in found.losses.items())
    return [
        ("Slurm", found.slurm_version),
        *(
            (f"Steps of the {name} job", f"{each.steps}, {each.epochs} epochs")
            for name, each in found.counted.items()
        ),
        ("Both shared an Aggregator after", _s(found.shared_after_s)),
        ("Sharing cost of its speed", losses or "not known"),
        ("Pause by the Aggregator's death", _ms(found.aggregator_pause_s)),
        ("  they shared another one after", _s(found.shared_again_s)),
        ("Pause by the worker's death", _ms(found.worker_pause_s)),
        ("  another one trained after", _s(found.worker_back_s)),
        ("Core seconds of the pool", "not known" if held is None else f"{held.pool}, by Slurm's accounting"),
        ("  that the jobs would reserve", "not known" if held is None else str(held.reserved)),
        (
            "  saved",
            "not known" if held is None else f"{held.saved:.0%}, profiling and idle Aggregators included",
        ),
    ]


def claims(found: Found) -> list[CheckedSentence]:
    """The sentences of the story, and whether they hold."""
    return list(_claims(found))


def _claims(found: Found) -> Iterator[CheckedSentence]:
    if found.failure:
        yield CheckedSentence(f"The story was played to its end: {found.failure}", holds=False)
    yield CheckedSentence(
        "flexod profiled both jobs, had them share one Aggregator, and ended the one that was left",
        holds=found.shared_after_s is not None and found.drained > 0,
    )
    yield CheckedSentence(
        "The Aggregator and a worker were killed without warning; both jobs trained on, with Aggregators",
        holds=found.shared_again_s is not None and found.worker_back_s is not None and not found.fell_back,
    )
    steps = sum(each.steps for each in found.counted.values())
    yield CheckedSentence(
        f"Of {steps} mini-batches, {found.batches_lost} were lost", holds=steps > 0 and not found.batches_lost
    )
    yield CheckedSentence(f"{found.samples_repeated} samples were repeated", holds=not found.samples_repeated)
    missing = found.samples_missing
    yield CheckedSentence(
        f"{missing} samples of whole epochs were left out"
        f" (of {BATCH} at most, the dead worker may have died before it logged them)",
        holds=missing <= BATCH,
    )
    held = found.core_seconds
    yield CheckedSentence(
        f"The pool held fewer core seconds than Aggregators of their own ({_of(held)})",
        holds=held is not None and held.saved > 0,
    )


def _of(held: CoreSeconds | None) -> str:
    return "not known" if held is None else f"{held.pool} instead of {held.reserved}"


def _ms(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{max(0.0, 1000 * seconds):.0f} ms"


def _s(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds:.1f} s"
