"""The page of `flexo whatif`: for administrators who have never heard of elastic jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from flexo_simulation import idle_words, page, pictures, whatif_words
from flexo_simulation.about import About
from flexo_simulation.formats.accounting import AccountedRun
from flexo_simulation.idle_gpus import IdleGpus, NotTold
from flexo_simulation.result_words import ORACLE
from flexo_simulation.results import SimulatedRun
from flexo_simulation.whatif import Findings, Window, waits_of


def write_page(
    findings: Findings,
    runs: Sequence[AccountedRun],
    outcomes: Sequence[SimulatedRun],
    about: About,
    path: Path,
) -> None:
    """Write the page. `outcomes`: the baseline's, then those of the findings' cases. Raises OSError."""
    parts = _parts(findings, runs, outcomes, about)
    write_whole(page.page("What if jobs had been elastic?", parts), path)


def write_whole(text: str, path: Path) -> None:
    """Write the file, or leave the old one as it is: a command that is killed leaves no half of a page.
    Raises OSError."""
    if path.exists() and not path.is_file():  # /dev/stdout, say, cannot be replaced
        path.write_text(text, encoding="utf-8")
        return
    aside = path.resolve()
    aside = aside.with_name(f".{aside.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path.resolve())
    finally:
        aside.unlink(missing_ok=True)


def _parts(
    findings: Findings, runs: Sequence[AccountedRun], outcomes: Sequence[SimulatedRun], about: About
) -> Iterator[str]:
    window = Window.of(runs)
    yield page.paragraph(
        "An elastic job starts with some of the GPUs that it could use, takes idle ones while nobody else "
        "needs them, and gives them back when somebody does. This page says what that would have done for "
        "the jobs in a dump of your own accounting."
    )
    yield page.heading("In short")
    if missing := whatif_words.not_simulated(findings):
        yield page.paragraph(missing, "warning")
    yield page.listing(whatif_words.in_short(findings))
    yield page.listing(whatif_words.policies(findings))
    yield page.heading("How far this can be believed")
    for sentence in whatif_words.trust(findings.calibration, findings.software):
        yield page.paragraph(sentence)
    yield page.heading("Each policy, with more and more elastic jobs")
    yield page.table(whatif_words.COLUMNS, whatif_words.rows(findings))
    yield page.listing(about.elastic)
    yield page.paragraph(
        f"In brackets: the change against what {findings.software.name} does, simulated likewise. Waiting "
        "counts all time in which a job had no GPU, also after a preemption. GPUs in use and idle are "
        f"counted from {window.since} in the dump to {window.until}. The same work is done in "
        "every line, so that GPUs in use differ only as far as it is done earlier.",
        "quiet",
    )
    if any(case.oracle for case in findings.cases):
        yield page.paragraph(ORACLE, "warning")
    yield from _pictures(findings, runs, outcomes)
    yield page.heading(idle_words.HEADING)
    yield from _idle(findings.idle)
    yield page.heading("What was simulated")
    yield page.listing((whatif_words.days(window.begin, window.end), *about.facts))
    if about.omissions:
        yield page.listing(about.omissions)
    yield page.verbatim(about.command)


def _pictures(
    findings: Findings, runs: Sequence[AccountedRun], outcomes: Sequence[SimulatedRun]
) -> Iterator[str]:
    window = Window.of(runs)
    really = [run.waited_s for run in runs if run.ready_at >= window.begin]
    policies = list(dict.fromkeys(case.policy for case in findings.cases))
    for policy in policies:
        curves = [("really", really)] if really else []
        shown = [(findings.software.baseline_words, outcomes[0])]
        shown += [
            (f"{whatif_words.elastic(row)} elastic", outcomes[1 + row.number])
            for row in findings.rows()
            if row.case.policy == policy
        ]
        for label, outcome in shown:
            curves.append((label, waits_of(outcome, window.among(outcome.records))))
        yield page.heading(f"How long jobs wait under {policy}", 3)
        yield pictures.distributions(curves, "waiting time, also after a preemption")
    yield page.heading("GPUs over time")
    for label, outcome in _extremes(findings, outcomes):
        yield page.heading(label, 3)
        yield page.scrollable(
            pictures.gpus_over_time(outcome.records, float(outcome.gpus), window.simulated, window.since)
        )


def _idle(idle: IdleGpus | NotTold) -> Iterator[str]:
    for sentence in idle_words.sentences(idle):
        yield page.paragraph(sentence)
    if isinstance(idle, NotTold) or not (rows := list(idle_words.rows(idle))):
        return
    yield page.table(idle_words.COLUMNS, rows)
    yield page.paragraph(idle_words.EXPLAINED, "quiet")
    curves = [(f"intervals, {each.order.value}", each.percentiles_s) for each in idle.readings]
    curves += [(f"idle GPU time, {each.order.value}", each.time_percentiles_s) for each in idle.readings]
    yield pictures.distributions(curves, "length of idle intervals", "intervals, or of idle GPU time")


def _extremes(findings: Findings, outcomes: Sequence[SimulatedRun]) -> Iterator[tuple[str, SimulatedRun]]:
    """The outcome of the cluster's own behaviour, and that of the first policy with the most elastic jobs."""
    yield findings.software.baseline_words, outcomes[0]
    if not findings.cases:
        return
    first = findings.cases[0].policy
    candidates = [
        (case.elastic_share, number) for number, case in enumerate(findings.cases, 1) if case.policy == first
    ]
    share, number = max(candidates)
    yield f"{first}, {share:.0%} elastic", outcomes[number]
