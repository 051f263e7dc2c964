"""Makes jobs, cluster, rules and policies of a simulation from the options of the command line.

Raises typer.BadParameter for invalid options, BadTrace for files that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import typer

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies import registry
from flexo.policies.base import Policy
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo_cli.site.simulation import words
from flexo_cli.site.simulation.asked import AskedCluster, AskedElasticity, AskedJobs, AskedRules
from flexo_simulation.comparison import Trial
from flexo_simulation.costs import MEASURED, Costs
from flexo_simulation.elasticity import Elasticity, Of, made_elastic
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.formats import pollux
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.registry import FORMATS, TraceFormat
from flexo_simulation.generate import LONGEST_S, Arrivals, Recipe, generate
from flexo_simulation.gpu_types import for_cluster
from flexo_simulation.on_slurm.times import MEASURED as SLURM_MEASURED
from flexo_simulation.on_slurm.times import SlurmTimes
from flexo_simulation.scenario import Scenario
from flexo_simulation.seats import GpuSharing
from flexo_simulation.speeds import loaded, with_tables
from flexo_simulation.workload import Workload

DEFAULT_NODES: Final = 16
DEFAULT_GPUS: Final = 4
DEFAULT_POLICY: Final = "lyra"
_CHOOSE_THEIR_BATCH: Final = frozenset({"goodput"})
"""Policies under which jobs choose their aggregate batch themselves, unless --batch says otherwise."""


def node_groups(asked: AskedCluster) -> tuple[NodeGroup, ...]:
    """The cluster's nodes."""
    if asked.gpu_types:
        if asked.nodes is not None or asked.gpus_per_node is not None:
            raise typer.BadParameter(
                "it says nodes and GPUs already: leave out --nodes and --gpus-per-node",
                param_hint="--gpu-types",
            )
        return words.node_groups(asked.gpu_types, asked.on_loan)
    return (NodeGroup(asked.nodes or DEFAULT_NODES, asked.gpus_per_node or DEFAULT_GPUS),)


def gpu_speeds(asked: AskedCluster) -> GpuSpeeds:
    """The speeds of GPUs by type: the default ones, overridden by the options."""
    said = dict(map(words.gpu_speed, asked.gpu_speeds))
    usual = {gpu_type.casefold(): speed for gpu_type, speed in GpuSpeeds().speeds.items()}
    try:
        return GpuSpeeds(usual | said, asked.mixed_efficiency)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--mixed-efficiency") from error


def workload(jobs: AskedJobs, elasticity: AskedElasticity, nodes: Sequence[NodeGroup]) -> Workload:
    """The jobs that all policies get."""
    raw = _generated(jobs, nodes) if jobs.trace is None else _read(jobs)
    ready = made_elastic(for_cluster(raw, nodes), wish_of(elasticity), jobs.seed)
    tables = loaded(jobs.profiles) if jobs.format not in ("itp", "pollux") else None
    if tables is None:
        return ready
    return with_tables(ready, tables, jobs.model, jobs.seed)


def format_of(jobs: AskedJobs) -> TraceFormat | None:
    """The format of the trace; None if jobs are generated."""
    if jobs.trace is None:
        return None
    if jobs.format not in FORMATS:
        there_are = ", ".join(FORMATS)
        problem = f"'{jobs.format}' is none of {there_are}" if jobs.format else f"say which: {there_are}"
        raise typer.BadParameter(problem, param_hint="--format")
    return FORMATS[jobs.format]


def _read(jobs: AskedJobs) -> Workload:
    trace_format = format_of(jobs)
    assert trace_format is not None
    assert jobs.trace is not None
    options = ReadOptions(jobs.skip_bad, jobs.profiles, frozenset(jobs.partitions), jobs.cluster)
    return trace_format.read(jobs.trace, options)


def _generated(jobs: AskedJobs, nodes: Sequence[NodeGroup]) -> Workload:
    if jobs.generate is None:
        raise typer.BadParameter("say --trace FILE, or --generate N", param_hint="--trace")
    return generate(
        Recipe(
            jobs.generate,
            sum(group.count * group.gpus for group in nodes),
            jobs.seed,
            words.choice(Arrivals, jobs.arrivals, "--arrivals"),
            jobs.rate,
            jobs.load,
            jobs.longest_s or LONGEST_S,
        )
    )


def wish_of(asked: AskedElasticity) -> Elasticity:
    """The elasticity that the simulation assumes of the jobs."""
    if asked.min_factor > 1 or asked.max_factor < 1:
        raise typer.BadParameter(
            "--min-factor is at most 1, --max-factor at least 1", param_hint="--min-factor"
        )
    least, most = asked.min_workers, asked.max_workers
    if least is not None and most is not None and least > most:
        raise typer.BadParameter(f"--min {least} is above --max {most}", param_hint="--min")
    return Elasticity(
        share=_share(asked.share, "--elastic-share"),
        of=words.choice(Of, asked.of, "--elastic-of"),
        min_factor=asked.min_factor,
        max_factor=asked.max_factor,
        min_workers=asked.min_workers,
        max_workers=asked.max_workers,
        fungible_share=_share(asked.fungible_share, "--fungible-share"),
        heterogeneous_share=_share(asked.heterogeneous_share, "--heterogeneous-share"),
    )


def _share(text: str | None, option: str) -> float | None:
    return None if text is None else words.share(text, option)


def trials(
    jobs: AskedJobs, rules: AskedRules, nodes: tuple[NodeGroup, ...], speeds: GpuSpeeds, ready: Workload
) -> tuple[Trial, ...]:
    """One trial for each policy, in the order of the command line."""
    names = rules.policies or (DEFAULT_POLICY,)
    if len(set(names)) < len(names):
        raise typer.BadParameter("a policy is named twice", param_hint="--policy")
    scenario = replace(_scenario(jobs, rules, nodes), gpu_speeds=speeds)
    settings = _settings(rules.settings, names)
    made = [
        make_policy(name, settings.get(name, {}), speeds, on_slurm=bool(rules.on_slurm)) for name in names
    ]
    return tuple(
        Trial(
            name,
            policy,
            _as_it_wants_them(jobs, name, ready),
            replace(scenario, estimates=Estimates(mode_of(rules, policy))),
        )
        for name, policy in zip(names, made, strict=True)
    )


def mode_of(rules: AskedRules, policy: Policy) -> Mode:
    """The source of running times: --estimates, else the truth for an oracle, else history."""
    if rules.estimates is not None:
        return words.choice(Mode, rules.estimates, "--estimates")
    return Mode.ORACLE if policy.oracle else Mode.HISTORY


def make_policy(
    name: str, settings: Mapping[str, object], speeds: GpuSpeeds, *, on_slurm: bool = False
) -> Policy:
    """Make the policy, with the speeds of GPUs if it has settings for them. Raises typer.BadParameter.

    `on_slurm`: True to begin with the settings that flexod uses.
    """
    try:
        if not on_slurm and not registry.class_of(name).starts_jobs:
            raise typer.BadParameter(
                f"{name} deals out satellites of jobs that Slurm starts, and starts none itself",
                param_hint="--policy",
            )
        told = {"gpu_speeds": speeds.speeds, "mixed_efficiency": speeds.mixed_efficiency}
        known = {key: value for key, value in told.items() if key in registry.settings_of(name)}
        usual = registry.flexod_settings(name) if on_slurm else {}
        if on_slurm and settings.get("share_gpus"):
            raise typer.BadParameter("no GPU is shared with --on-slurm", param_hint="--set")
        return registry.make(name, **{**usual, **known, **settings})
    except registry.UnknownPolicy as error:
        raise typer.BadParameter(str(error), param_hint="--policy") from error
    except (registry.BadSetting, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error


def _settings(said: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, object]]:
    settings: dict[str, dict[str, object]] = {}
    for text in said:
        policy, name, value = words.setting(text)
        if (policy, name, value) == ("lyra", "order", "slurm"):  # the value's name in 0.1
            typer.echo("--set lyra.order=slurm is called lyra.order=cluster now", err=True)
            value = "cluster"
        if policy not in names:
            raise typer.BadParameter(f"'{policy}' is not among the policies that run", param_hint="--set")
        settings.setdefault(policy, {})[name] = value
    return settings


def _scenario(jobs: AskedJobs, rules: AskedRules, nodes: tuple[NodeGroup, ...]) -> Scenario:
    trace_format = format_of(jobs)
    usual = (trace_format.costs if trace_format else None) or MEASURED
    interval_s = rules.interval_s
    if interval_s is None and trace_format is not None:
        interval_s = trace_format.interval_s
    return Scenario(
        nodes=nodes,
        costs=costs_of(rules, usual),
        interval_s=interval_s or None,
        quotas=tuple(map(words.quota, rules.quotas)),
        sharing=_sharing(rules),
        limits_end_jobs=rules.time_limits,
        checkpoints=rules.checkpoints,
        on_slurm=_slurm_times(rules),
    )


def _sharing(rules: AskedRules) -> GpuSharing:
    """What is assumed of two jobs on one GPU."""
    if rules.utilization is None:
        return GpuSharing()
    return GpuSharing(utilization=words.share(rules.utilization, "--utilization"))


def _slurm_times(rules: AskedRules) -> SlurmTimes | None:
    """The delays on Slurm: measured ones, overridden by the options; None without --on-slurm."""
    if not rules.on_slurm:
        if rules.warm_up_s is not None:
            raise typer.BadParameter("it goes with --on-slurm", param_hint="--warm-up")
        return None
    for option, said in (
        ("--estimates", rules.estimates is not None),
        ("--quota", bool(rules.quotas)),
        ("--utilization", rules.utilization is not None),
        ("--no-checkpoints", not rules.checkpoints),
    ):
        if said:
            raise typer.BadParameter("it has no meaning with --on-slurm", param_hint=option)
    return SLURM_MEASURED.but(
        boot_s=rules.start_cost_s,
        pause_s=rules.resize_cost_s,
        warm_s=rules.warm_up_s,
        look_s=rules.interval_s or None,
    )


def costs_of(rules: AskedRules, usual: Costs) -> Costs:
    """The costs of the options, else the usual ones."""
    start_s = usual.start_s if rules.start_cost_s is None else rules.start_cost_s
    resize_s = usual.resize_s if rules.resize_cost_s is None else rules.resize_cost_s
    return Costs(start_s, resize_s)


def _as_it_wants_them(jobs: AskedJobs, policy: str, ready: Workload) -> Workload:
    """The jobs as `policy` gets them. Under some policies, jobs of Pollux' workloads choose their batch."""
    if jobs.format != "pollux":
        return ready
    if jobs.batch not in ("auto", "user", "job"):
        raise typer.BadParameter(f"'{jobs.batch}' is none of auto, user, job", param_hint="--batch")
    choose = jobs.batch == "job" or (jobs.batch == "auto" and policy in _CHOOSE_THEIR_BATCH)
    return pollux.adapted(ready, choose_batch=choose, declare=not jobs.undeclared, caution=jobs.caution)
