"""Carries out `flexo whatif`: simulates a dump as its cluster runs it and with elastic jobs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flexo.model.ranges import Range
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo.words import counted
from flexo_cli.output import complain, print_line, print_table
from flexo_cli.site.simulation import setup, summary, words
from flexo_cli.site.simulation.asked import (
    TO_OUTPUT,
    AskedCases,
    AskedCluster,
    AskedElasticity,
    AskedJobs,
    AskedRules,
    Outputs,
)
from flexo_cli.site.simulation.progress import progress
from flexo_cli.site.simulation.run import explained
from flexo_simulation import idle_words, whatif_words
from flexo_simulation.about import About
from flexo_simulation.comparison import TimeLimit, Trial, run_in_time
from flexo_simulation.costs import MEASURED
from flexo_simulation.elasticity import made_elastic
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.formats import sacct_dump, yarn_dump
from flexo_simulation.formats.accounting import AccountingDump, Software, workload_of
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.gpu_types import for_cluster
from flexo_simulation.idle_gpus import IdleGpus, NotTold, idle_gpus
from flexo_simulation.result_words import ORACLE
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.speeds import loaded, with_tables
from flexo_simulation.whatif import (
    Findings,
    NotSimulated,
    Size,
    Window,
    calibrate,
    case_of,
    size_of,
)
from flexo_simulation.workload import Workload

SHARES: Final = ("0%", "5%", "20%", "50%", "100%")
"""Shares of elastic jobs. With 0%, a policy shows the effect of its order of jobs alone."""
IMPORTANT: Final = (0.0, 0.2, 1.0, 0.5, 0.05)
"""Shares in the order in which they are simulated: time may not suffice for all."""
ALWAYS: Final = 3
"""Number of simulations that are done however long they take: what the cluster does, the first policy alone,
and with the most important share."""
POLICIES: Final = ("lyra", "elastic-tiresias")
READERS: Final = {"sacct": sacct_dump.read_dump, "yarn": yarn_dump.read_dump}
"""The readers of dumps, by the names of their formats."""

_MANY_JOBS: Final = 2000
"""A dump of as many jobs is worth several processes."""
_MOST_PROCESSES: Final = 4
"""The most processes that are used unasked: others may be at work on the host."""
_EARLY_S: Final = 10.0
"""The least seconds between two pages that are written early."""
_WRITING_PART: Final = 10.0
"""For each second that an early page took, so many pass without one."""
_SHORT: Final = ("POLICY", "ELASTIC JOBS", "WAITED H", "COMPLETION H", "95% H", "IDLE, WANTED", "IN USE")
"""Short names of `whatif_words.COLUMNS` for a terminal."""


@dataclass(frozen=True, slots=True)
class _Question:
    """One policy with one share of elastic jobs."""

    policy: str
    share: float


def run(
    jobs: AskedJobs,
    elasticity: AskedElasticity,
    cases: AskedCases,
    cluster: AskedCluster,
    rules: AskedRules,
    outputs: Outputs,
) -> None:
    """Carry out the command. Prints the reason of a failure and raises typer.Exit."""
    with explained():
        until = time.monotonic() + words.minutes(cases.within, "--within")
        outputs.check()
        assert jobs.trace is not None
        options = ReadOptions(jobs.skip_bad, None, frozenset(jobs.partitions), jobs.cluster)
        dump = READERS[jobs.format](jobs.trace, options)
        rigid = workload_of(dump)
        size = size_of(dump.runs, cluster.nodes, cluster.gpus_per_node, dump.nodes)
        rigid = for_cluster(rigid, size.nodes)
        questions = _questions(rules.policies or POLICIES, cases.shares or SHARES)
        baseline = _baseline(rigid, size, rules, dump.software)
        trials = (baseline, *(_trial(each, baseline, jobs, elasticity, rules) for each in questions))
        if not outputs.quiet:
            for line in summary.omissions(rigid):
                complain(line)
        costs = baseline.scenario.costs
        of_cluster = size.nodes[0] if cluster.nodes is not None else None
        idle = idle_gpus(dump.holders, dump.software, cluster.gpus_per_node, costs.resize_s, of_cluster)
        facts = tuple(_facts(dump.software, rigid, size, trials))
        about = About(facts, (), outputs.command, tuple(_made_elastic(jobs, elasticity)))
        answer = _Answer(dump, rigid, size, questions, idle, about, outputs)
        findings, simulated = answer.findings(_simulated(trials, outputs, until, answer), at_work=False)
        try:
            _tell(findings, about, simulated, outputs)
        finally:  # a reader such as `head`, who leaves early, does not cost the page
            answer.write(findings, simulated)


def _questions(policies: Sequence[str], shares: Sequence[str]) -> list[_Question]:
    """The cases, by policy and ascending share. Each policy has one without elastic jobs: else nobody could
    tell what its order of jobs does alone."""
    parsed = sorted({0.0, *(words.share(share, "--elastic-share") for share in shares)})
    return [_Question(policy, share) for policy in dict.fromkeys(policies) for share in parsed]


def _most_important_first(questions: Sequence[_Question]) -> list[int]:
    """The places of the questions: policy by policy; without elastic jobs first, then as in IMPORTANT, then
    as asked."""
    policies = list(dict.fromkeys(question.policy for question in questions))

    def rank(place: int) -> tuple[int, int, int]:
        share = questions[place].share
        by_share = IMPORTANT.index(share) if share in IMPORTANT else len(IMPORTANT)
        return policies.index(questions[place].policy), by_share, place

    return sorted(range(len(questions)), key=rank)


def _simulated(
    trials: Sequence[Trial], outputs: Outputs, until: float, answer: _Answer
) -> tuple[SimulatedRun | None, ...]:
    """The outcome of each trial; None: it was left out for lack of time. Trials whose shares draw the same
    jobs are simulated once. The page is written now and then meanwhile."""
    kinds = [(trial.policy.name, trial.scenario, _ranges(trial.workload)) for trial in trials]
    first = [kinds.index(kind) for kind in kinds]
    ordered = [0, *(1 + place for place in _most_important_first(answer.questions))]
    different = list(dict.fromkeys(first[number] for number in ordered))
    outcome_of: dict[int, SimulatedRun] = {}
    early = _EarlyPages(answer)

    def gathered() -> tuple[SimulatedRun | None, ...]:
        return tuple(outcome_of.get(number) for number in first)

    def done(place: int, outcome: SimulatedRun) -> None:
        outcome_of[different[place]] = outcome
        if len(outcome_of) < len(different):
            early.maybe_write(gathered())

    limit = TimeLimit(until, ALWAYS)
    with progress([trials[number].label for number in different], outputs.quiet, until) as told:
        run_in_time(
            [trials[number] for number in different], _processes(outputs, trials[0]), told, limit, done
        )
    return gathered()


def _processes(outputs: Outputs, trial: Trial) -> int:
    """The number of simulations at a time: as asked, else several of a large dump."""
    if outputs.processes:
        return outputs.processes
    return min(_MOST_PROCESSES, len(os.sched_getaffinity(0))) if len(trial.workload.jobs) >= _MANY_JOBS else 1


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is known before anything is simulated, to be told with the outcomes of trials: the baseline's,
    then one per question or None."""

    dump: AccountingDump
    rigid: Workload
    size: Size
    questions: Sequence[_Question]
    idle: IdleGpus | NotTold
    about: About
    outputs: Outputs

    def write(self, findings: Findings, simulated: Sequence[SimulatedRun]) -> None:
        """Write the JSON and the page."""
        if self.outputs.json is not None:
            text = json.dumps(findings.to_json(), indent=2, allow_nan=False) + "\n"
            if self.outputs.json == TO_OUTPUT:
                sys.stdout.write(text)
            else:
                Path(self.outputs.json).write_text(text)
        if self.outputs.report is not None:
            self._write_page(findings, simulated, self.outputs.report)
            if self.outputs.table:
                print_line("")
                print_line(f"the page is {self.outputs.report}")

    def write_early(self, outcomes: Sequence[SimulatedRun | None]) -> None:
        """Write the page while simulations are running."""
        if self.outputs.report is not None:
            self._write_page(*self.findings(outcomes, at_work=True), self.outputs.report)

    def _write_page(self, findings: Findings, simulated: Sequence[SimulatedRun], path: Path) -> None:
        from flexo_simulation.whatif_page import write_page  # matplotlib takes a second to import

        omissions = (*summary.omissions(self.rigid), *summary.unfinished(simulated[:1]))
        write_page(findings, self.dump.runs, simulated, replace(self.about, omissions=omissions), path)

    def findings(
        self, outcomes: Sequence[SimulatedRun | None], at_work: bool
    ) -> tuple[Findings, list[SimulatedRun]]:
        """The findings, and the outcomes that they are about. Of a policy that was not simulated without
        elastic jobs, nobody could tell what elasticity adds: it is left out."""
        baseline, *others = outcomes
        assert baseline is not None
        window = Window.of(self.dump.runs)
        pairs = list(zip(self.questions, others, strict=True))
        alone = {question.policy for question, outcome in pairs if outcome and not question.share}
        told = [(each, outcome) for each, outcome in pairs if outcome and each.policy in alone]
        missing = [each for each, outcome in pairs if not outcome or each.policy not in alone]
        findings = Findings(
            software=self.dump.software,
            size=self.size,
            window_h=window.hours,
            calibration=calibrate(self.dump.runs, window, baseline),
            baseline=case_of(baseline, self.dump.software.baseline, 0.0, window),
            cases=tuple(case_of(outcome, each.policy, each.share, window) for each, outcome in told),
            idle=self.idle,
            not_simulated=tuple(NotSimulated(each.policy, each.share) for each in missing),
            at_work=at_work,
        )
        return findings, [baseline, *(outcome for _, outcome in told)]


class _EarlyPages:
    """Writes the page while simulations are running, so that a command that is killed leaves what was done.
    Mutable."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._next_at = time.monotonic() + _EARLY_S

    def maybe_write(self, outcomes: Sequence[SimulatedRun | None]) -> None:
        """Write it, unless it was written a moment ago, or the baseline is missing."""
        begun_at = time.monotonic()
        if outcomes[0] is None or begun_at < self._next_at:
            return
        self._answer.write_early(outcomes)
        took_s = time.monotonic() - begun_at
        self._next_at = time.monotonic() + max(_EARLY_S, _WRITING_PART * took_s)


def _ranges(workload: Workload) -> tuple[Range, ...]:
    return tuple(job.workers for job in workload.jobs)


def _baseline(rigid: Workload, size: Size, rules: AskedRules, software: Software) -> Trial:
    """The trial of the cluster's own behaviour (Slurm: backfilling by time limits), without elastic jobs."""
    scenario = Scenario(size.nodes, setup.costs_of(rules, MEASURED), estimates=Estimates(Mode.LIMIT))
    return Trial(
        f"as {software.name} does", setup.make_policy(software.baseline, {}, GpuSpeeds()), rigid, scenario
    )


def _trial(
    question: _Question, baseline: Trial, jobs: AskedJobs, elasticity: AskedElasticity, rules: AskedRules
) -> Trial:
    policy = setup.make_policy(question.policy, {}, GpuSpeeds())
    wish = replace(setup.wish_of(elasticity), share=question.share)
    workload = made_elastic(baseline.workload, wish, jobs.seed)
    tables = loaded(jobs.profiles)
    if tables is not None:
        workload = with_tables(workload, tables, jobs.model, jobs.seed)
    mode = setup.mode_of(rules, policy)
    scenario = replace(baseline.scenario, estimates=Estimates(mode))
    return Trial(f"{question.policy} {question.share:.0%}", policy, workload, scenario)


def _facts(software: Software, rigid: Workload, size: Size, trials: Sequence[Trial]) -> Iterator[str]:
    yield f"{counted(len(rigid.jobs), 'GPU job')}: {rigid.name}"
    yield from rigid.notes
    yield f"{summary.cluster(size.nodes)} ({size.how}); the simulation begins with an empty cluster"
    yield summary.rules(trials[0])
    yield software.gpus_known
    yield f"of the other policies, {summary.estimates(trials[1:])}"


def _made_elastic(jobs: AskedJobs, elasticity: AskedElasticity) -> Iterator[str]:
    among = "jobs with two GPUs and more" if elasticity.of == "multi" else "all jobs"
    sizes = f"{elasticity.min_factor:g} to {elasticity.max_factor:g} times their GPUs"
    yield f"elastic jobs are drawn by lot (seed {jobs.seed}) among {among}; they can have {sizes}"
    yield (
        f"they scale as measured in {jobs.profiles}"
        if jobs.profiles
        else "they scale linearly, which real jobs do not quite: --profiles takes measured speeds"
    )


def _tell(findings: Findings, about: About, outcomes: Sequence[SimulatedRun], outputs: Outputs) -> None:
    for line in summary.unfinished(outcomes[:1]):
        complain(line)
    if not outputs.table:
        return
    for sentence in (*about.facts, *about.elastic, ""):
        print_line(sentence)
    for sentence in (
        *whatif_words.in_short(findings),
        *filter(None, [whatif_words.not_simulated(findings)]),
        "",
        *whatif_words.trust(findings.calibration, findings.software),
        "",
    ):
        print_line(sentence)
    print_table(_SHORT, list(whatif_words.rows(findings)), right=_SHORT[2:])
    print_line(f"changes against the first line; {whatif_words.EXPLAINED}")
    if any(case.oracle for case in findings.cases):
        print_line(ORACLE)
    _tell_idle(findings.idle)


def _tell_idle(idle: IdleGpus | NotTold) -> None:
    for sentence in ("", *idle_words.sentences(idle)):
        print_line(sentence)
    if isinstance(idle, IdleGpus) and (rows := list(idle_words.rows(idle))):
        print_line("")
        print_table(idle_words.SHORT, rows, right=idle_words.SHORT[1:])
        print_line(idle_words.EXPLAINED)
