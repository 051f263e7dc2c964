"""Carries out `flexo whatif`: simulates a dump as its cluster runs it and with elastic jobs."""

from __future__ import annotations

import json
import sys
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
from flexo_simulation.comparison import Trial, run_trials
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
from flexo_simulation.whatif import Findings, Size, Window, calibrate, case_of, size_of
from flexo_simulation.workload import Workload

SHARES: Final = ("0%", "5%", "20%", "50%", "100%")
"""Shares of elastic jobs. With 0%, a policy shows the effect of its order of jobs alone."""
POLICIES: Final = ("lyra", "elastic-tiresias")
READERS: Final = {"sacct": sacct_dump.read_dump, "yarn": yarn_dump.read_dump}
"""The readers of dumps, by the names of their formats."""

_SHORT: Final = ("POLICY", "ELASTIC JOBS", "COMPLETION H", "WAITED H", "95% H", "IDLE, WANTED", "IN USE")
"""Short names of `whatif_words.COLUMNS` for a terminal."""


@dataclass(frozen=True, slots=True)
class _Question:
    """One policy with one share of elastic jobs."""

    policy: str
    share: float


def run(
    jobs: AskedJobs,
    elasticity: AskedElasticity,
    shares: tuple[str, ...],
    cluster: AskedCluster,
    rules: AskedRules,
    outputs: Outputs,
) -> None:
    """Carry out the command. Prints the reason of a failure and raises typer.Exit."""
    with explained():
        outputs.check()
        assert jobs.trace is not None
        options = ReadOptions(jobs.skip_bad, None, frozenset(jobs.partitions), jobs.cluster)
        dump = READERS[jobs.format](jobs.trace, options)
        rigid = workload_of(dump)
        size = size_of(dump.runs, cluster.nodes, cluster.gpus_per_node, dump.nodes)
        rigid = for_cluster(rigid, size.nodes)
        questions = [
            _Question(policy, words.share(share, "--elastic-share"))
            for policy in rules.policies or POLICIES
            for share in shares or SHARES
        ]
        baseline = _baseline(rigid, size, rules, dump.software)
        trials = (baseline, *(_trial(each, baseline, jobs, elasticity, rules) for each in questions))
        if not outputs.quiet:
            for line in summary.omissions(rigid):
                complain(line)
        outcomes = _simulated(trials, outputs)
        costs = baseline.scenario.costs
        idle = idle_gpus(dump.holders, dump.software, cluster.gpus_per_node, costs.resize_s)
        findings = _findings(dump, size, questions, outcomes, idle)
        omissions = (*summary.omissions(rigid), *summary.unfinished(outcomes[:1]))
        facts = tuple(_facts(dump.software, rigid, size, trials))
        about = About(facts, omissions, outputs.command, tuple(_made_elastic(jobs, elasticity)))
        try:
            _tell(findings, about, outcomes, outputs)
        finally:  # a reader such as `head`, who leaves early, does not cost the page
            _write(findings, dump, outcomes, about, outputs)


def _simulated(trials: Sequence[Trial], outputs: Outputs) -> tuple[SimulatedRun, ...]:
    """The outcome of each trial. Trials whose shares draw the same jobs are simulated once."""
    kinds = [(trial.policy.name, trial.scenario, _ranges(trial.workload)) for trial in trials]
    first = [kinds.index(kind) for kind in kinds]
    different = [trials[number] for number in dict.fromkeys(first)]
    with progress([trial.label for trial in different], outputs.quiet) as told:
        ran = run_trials(different, outputs.processes, told)
    outcome_of = dict(zip(dict.fromkeys(first), ran, strict=True))
    return tuple(outcome_of[number] for number in first)


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


def _findings(
    dump: AccountingDump,
    size: Size,
    questions: Sequence[_Question],
    outcomes: Sequence[SimulatedRun],
    idle: IdleGpus | NotTold,
) -> Findings:
    window = Window.of(dump.runs)
    return Findings(
        software=dump.software,
        size=size,
        window_h=window.hours,
        calibration=calibrate(dump.runs, window, outcomes[0]),
        baseline=case_of(outcomes[0], dump.software.baseline, 0.0, window),
        cases=tuple(
            case_of(outcome, question.policy, question.share, window)
            for question, outcome in zip(questions, outcomes[1:], strict=True)
        ),
        idle=idle,
    )


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


def _write(
    findings: Findings, dump: AccountingDump, outcomes: Sequence[SimulatedRun], about: About, outputs: Outputs
) -> None:
    if outputs.json is not None:
        text = json.dumps(findings.to_json(), indent=2, allow_nan=False) + "\n"
        if outputs.json == TO_OUTPUT:
            sys.stdout.write(text)
        else:
            Path(outputs.json).write_text(text)
    if outputs.report is not None:
        from flexo_simulation.whatif_page import write_page  # matplotlib takes a second to import

        write_page(findings, dump.runs, outcomes, about, outputs.report)
        if outputs.table:
            print_line("")
            print_line(f"the page is {outputs.report}")
