"""Sentences about a simulation: its jobs, cluster and rules, and the jobs and lines that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.model.measured import Source
from flexo.words import counted
from flexo_cli.site.simulation.inference import described
from flexo_simulation.comparison import Trial
from flexo_simulation.on_slurm.times import SlurmTimes
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

_SHOWN: Final = 3
"""Number of bad lines that are shown."""
_NAMED: Final = 5
"""Number of jobs that are named."""


def facts(workload: Workload, trials: Sequence[Trial]) -> Iterator[str]:
    """One sentence each about the jobs, the cluster and the rules."""
    yield jobs(workload)
    yield from workload.notes
    yield f"{cluster(trials[0].scenario.nodes)}; {rules(trials[0])}"
    if trials[0].scenario.inference is not None:
        yield described(trials[0].scenario.inference)
    yield from gpu_speeds(trials[0].scenario)
    yield estimates(trials)


def cluster(nodes: Sequence[NodeGroup]) -> str:
    """The cluster: ``"16 nodes of 8 v100, 4 nodes of 8 t4"``."""
    return ", ".join(
        f"{counted(group.count, 'node')} of "
        + (f"{group.gpus} {group.gpu_type}" if group.gpu_type else counted(group.gpus, "GPU"))
        + (" on loan" if group.features else "")
        for group in nodes
    )


def gpu_speeds(scenario: Scenario) -> Iterator[str]:
    """The speeds of GPUs: ``"v100 1, t4 0.333; ..."``; nothing if all GPUs have the same speed."""
    groups = (*scenario.nodes, *((scenario.inference.servers,) if scenario.inference else ()))
    speeds = {group.gpu_type: scenario.gpu_speeds.of(group.gpu_type) for group in groups}
    if len(set(speeds.values())) > 1:
        each = ", ".join(f"{gpu_type} {speed:.3g}" for gpu_type, speed in speeds.items())
        mixed = f"a heterogeneous run on several does {scenario.gpu_speeds.mixed_efficiency:g} of their sum"
        yield f"speeds of GPUs: {each}; {mixed}; jobs that ask for no type took as long as on the fastest"


def jobs(workload: Workload) -> str:
    """The jobs: ``"160 jobs, 106 of them elastic: F"``."""
    elastic = sum(1 for job in workload.jobs if job.workers.min < job.workers.max)
    share = f"{elastic} of them elastic" if elastic else "none elastic"
    number = len(workload.jobs)
    return f"{number} {'job' if number == 1 else 'jobs'}, {share}: {workload.name}"


def rules(trial: Trial) -> str:
    """The rules: ``"policies decide every 60 s; a start costs 30 s, a resize 30 s"``."""
    scenario = trial.scenario
    if scenario.on_slurm is not None:
        return on_slurm(scenario.on_slurm)
    when = "whenever something happens" if scenario.interval_s is None else f"every {scenario.interval_s:g} s"
    costs = f"a start costs {scenario.costs.start_s:g} s, a resize {scenario.costs.resize_s:g} s"
    return f"policies decide {when}; {costs}"


def on_slurm(times: SlurmTimes) -> str:
    """The delays on Slurm."""
    return (
        f"Slurm starts bases, and policies decide about satellites every {times.look_s:g} s; a base boots"
        f" for {times.boot.first_s:g} s, a satellite warms up for {times.warm.first_s:g} s while the others"
        f" train, and all stand still for {times.join_s:g} s when it joins"
    )


def estimates(trials: Sequence[Trial]) -> str:
    """The source of running times, for each policy if the sources differ."""
    if trials[0].scenario.on_slurm is not None:
        return "running times come from: what flexod knows (progress, like jobs before, time limits)"
    if any(job.training.begin().source is Source.PROGRESS for job in trials[0].workload.jobs[:1]):
        return "running times come from: what the jobs report of their progress"
    modes = {trial.label: trial.scenario.estimates.mode.value for trial in trials}
    if len(set(modes.values())) == 1:
        return f"running times come from: {next(iter(modes.values()))}"
    told = ", ".join(f"{label}: {mode}" for label, mode in modes.items())
    return f"running times come from: {told}"


def omissions(workload: Workload) -> Iterator[str]:
    """Sentences about lines and jobs of the file that are not simulated."""
    if workload.skipped:
        number = len(workload.skipped)
        yield f"skipped {'1 line that makes' if number == 1 else f'{number:,} lines that make'} no sense:"
        for bad in workload.skipped[:_SHOWN]:
            yield f"  {workload.name}:{bad.line}: {bad.why}"
        if number > _SHOWN:
            yield f"  ... and {number - _SHOWN} more"
    for each in workload.left_out:
        yield f"left out because they {each.why}: {each.jobs:,} {'job' if each.jobs == 1 else 'jobs'}"


def unfinished(outcomes: Sequence[SimulatedRun]) -> Iterator[str]:
    """Sentences about jobs that never fit or never started. Equal lists of misfits give one sentence."""
    said: set[tuple[str, ...]] = set()
    for outcome in outcomes:
        never_fit = outcome.result.never_fit
        if never_fit and never_fit not in said:
            said.add(never_fit)
            yield f"can never fit on this cluster and were left out: {_named(never_fit)}"
        if never_started := outcome.result.never_started:
            yield f"never started under {outcome.policy}: {_named(never_started)}"


def _named(jobs: tuple[str, ...]) -> str:
    names = ", ".join(jobs[:_NAMED])
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    return f"{'job' if len(jobs) == 1 else f'{len(jobs)} jobs:'} {names}{more}"
