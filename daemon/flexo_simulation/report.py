"""The report of a comparison: one HTML file with figures, pictures, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from flexo_simulation import page, pictures
from flexo_simulation.about import About
from flexo_simulation.course import span_of
from flexo_simulation.result_words import ORACLE, rows, title
from flexo_simulation.results import SimulatedRun


def write_report(outcomes: Sequence[SimulatedRun], about: About, path: Path) -> None:
    """Write the report to `path`. Raises OSError."""
    path.write_text(page.page("flexo simulate", _parts(outcomes, about)), encoding="utf-8")


def _parts(outcomes: Sequence[SimulatedRun], about: About) -> Iterator[str]:
    yield page.listing(about.facts)
    if about.omissions:
        yield page.paragraph("Not everything in the file was simulated:", "warning")
        yield page.listing(about.omissions)
    yield page.verbatim(about.command)
    yield page.heading("Comparison")
    yield comparison(outcomes)
    yield from distributions(outcomes)
    yield from courses(outcomes)


def comparison(outcomes: Sequence[SimulatedRun]) -> str:
    """The table of figures, with an explanation of its terms."""
    columns = ("figure", *(title(outcome) for outcome in outcomes))
    parts = [page.table(columns, rows(outcomes))]
    if any(outcome.result.oracle for outcome in outcomes):
        parts.append(page.paragraph(ORACLE, "warning"))
    parts.append(
        page.paragraph(
            "Completion time: from submission to completion, of jobs that finished. Waiting time: from "
            "submission until a job first had GPUs. GPUs in use: held by jobs, from the first submission to "
            "the last end. SJS efficiency: what finished jobs would take on one GPU, over the GPU time that "
            "they held.",
            "quiet",
        )
    )
    return "".join(parts)


def distributions(outcomes: Sequence[SimulatedRun]) -> Iterator[str]:
    """The distributions of completion and waiting times, all policies in one picture each."""
    completion = [
        (title(each), [record.jct_s for record in each.records if record.jct_s is not None])
        for each in outcomes
    ]
    waiting = [
        (title(each), [record.queue_s for record in each.records if record.queue_s is not None])
        for each in outcomes
    ]
    yield page.heading("How long jobs took, and how long they waited")
    yield page.beside(
        (
            pictures.distributions(completion, "completion time"),
            pictures.distributions(waiting, "waiting time"),
        )
    )


def courses(outcomes: Sequence[SimulatedRun]) -> Iterator[str]:
    """GPUs over time and a bar for each job, policy by policy, all on one scale."""
    spans = [span_of(outcome.records) for outcome in outcomes]
    span = min(begin for begin, _ in spans), max(end for _, end in spans)
    for outcome in outcomes:
        yield page.heading(title(outcome))
        yield page.heading(f"The {outcome.gpus} GPUs over time", 3)
        yield pictures.gpus_over_time(outcome.records, float(outcome.gpus), span)
        if outcome.loans is not None:
            yield page.heading(f"The {outcome.loans.servers} inference servers over time", 3)
            yield pictures.servers_over_time(outcome.loans, span)
        shown, jobs = len(pictures.thinned(outcome.records)), len(outcome.records)
        which = f"{shown} of the {jobs} jobs, evenly chosen" if shown < jobs else "each job"
        yield page.heading(f"A bar for {which}", 3)
        yield pictures.bars(outcome.records, span)
