"""Carries out `flexo simulate`: reads or makes jobs, runs them under policies, prints and writes results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from flexo_cli.exit_codes import ExitCode
from flexo_cli.output import complain, print_line
from flexo_cli.site.simulation import results_out, setup, summary
from flexo_cli.site.simulation.asked import (
    AskedCluster,
    AskedElasticity,
    AskedInference,
    AskedJobs,
    AskedRules,
    Outputs,
)
from flexo_cli.site.simulation.inference import inference
from flexo_cli.site.simulation.progress import progress
from flexo_cli.site.simulation.tables import print_results
from flexo_simulation.about import About
from flexo_simulation.comparison import Trial, run_trials
from flexo_simulation.engine import SimulationStuck
from flexo_simulation.formats import own
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.inference import Inference
from flexo_simulation.results import SimulatedRun
from flexo_simulation.workload import Workload


def run(
    jobs: AskedJobs,
    elasticity: AskedElasticity,
    cluster: AskedCluster,
    beside: AskedInference,
    rules: AskedRules,
    outputs: Outputs,
) -> None:
    """Carry out the command. Prints the reason of a failure and raises typer.Exit."""
    with explained():
        outputs.check()
        nodes = setup.node_groups(cluster)
        workload = setup.workload(jobs, elasticity, nodes)
        trials = setup.trials(jobs, rules, nodes, setup.gpu_speeds(cluster), workload)
        if rules.on_slurm and not beside.lends:
            raise typer.BadParameter("it has no meaning with --on-slurm", param_hint="--no-loaning")
        trials = _with_inference(trials, inference(beside, jobs.seed, workload))
        if outputs.write is not None:
            _write(workload, outputs.write)
        about = About(
            facts=tuple(summary.facts(workload, trials)),
            omissions=tuple(summary.omissions(workload)),
            command=outputs.command,
        )
        _tell_before(about, outputs)
        with progress([trial.label for trial in trials], outputs.quiet) as told:
            outcomes = run_trials(trials, outputs.processes, told)
        about = replace(about, omissions=(*about.omissions, *summary.unfinished(outcomes)))
        _tell_after(outcomes, outputs)
        if outputs.json is not None:
            results_out.write_json(outcomes, outputs.json)
        if outputs.report is not None:
            _write_report(outcomes, about, outputs.report)


def _with_inference(trials: tuple[Trial, ...], beside: Inference | None) -> tuple[Trial, ...]:
    return tuple(replace(trial, scenario=replace(trial.scenario, inference=beside)) for trial in trials)


def _tell_before(about: About, outputs: Outputs) -> None:
    """Print the facts of the simulation, and the omissions on the error output."""
    if not outputs.quiet:
        for line in about.omissions:
            complain(line)
    if outputs.table:
        for line in about.facts:
            print_line(line)


def _tell_after(outcomes: tuple[SimulatedRun, ...], outputs: Outputs) -> None:
    for line in summary.unfinished(outcomes):
        complain(line)
    if outputs.table:
        print_line("")
        print_results(outcomes)


def _write_report(outcomes: tuple[SimulatedRun, ...], about: About, path: Path) -> None:
    from flexo_simulation.report import write_report  # matplotlib takes a second to import

    write_report(outcomes, about, path)


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error into a message and typer.Exit with its exit code."""
    try:
        yield
    except BadTrace as error:
        for problem in error.problems:
            complain(problem)
        raise typer.Exit(ExitCode.REFUSED) from None
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        raise typer.Exit(ExitCode.REFUSED) from None
    except SimulationStuck as error:
        complain(f"the simulation would never end: {error}")
        raise typer.Exit(ExitCode.REFUSED) from None
    except KeyboardInterrupt:
        complain("interrupted; nothing was written")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _write(workload: Workload, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        own.write(workload, file, (workload.name, *workload.notes))
