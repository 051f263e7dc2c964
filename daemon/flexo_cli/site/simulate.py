"""`flexo simulate`: simulates a trace or made-up jobs under one policy or several, in virtual time.

This module has the options only. Their meaning is in `simulation`, which the command imports when it runs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flexo.policies.gpu_speeds import MIXED_EFFICIENCY
from flexo_cli.site.simulation.asked import (
    AskedCluster,
    AskedElasticity,
    AskedInference,
    AskedJobs,
    AskedRules,
    Outputs,
)
from flexo_cli.site.simulation.idle import refuse_idle

_jobs = partial(typer.Option, rich_help_panel="Jobs")
_elasticity = partial(typer.Option, rich_help_panel="What is taken of the jobs")
_cluster = partial(typer.Option, rich_help_panel="Cluster")
_beside = partial(typer.Option, rich_help_panel="Inference cluster, which lends idle servers")
_rules = partial(typer.Option, rich_help_panel="Policies and rules")
_output = partial(typer.Option, rich_help_panel="Output")

_LONGEST_S = 1e12
"""Upper limit of every option that is a time: 31,700 years."""


TraceOption = Annotated[
    Path | None,
    _jobs("--trace", metavar="FILE", help="File with the jobs; - is the standard input."),
]
FormatOption = Annotated[
    str,
    _jobs(
        "--format",
        metavar="NAME",
        help="Format of the file: own, sacct, yarn, pollux, philly, itp or tiresias.",
    ),
]
BadLinesOption = Annotated[
    str,
    _jobs("--bad-lines", metavar="refuse|skip", help="Refuse a file with bad lines, or skip them."),
]
PartitionOption = Annotated[
    list[str] | None,
    _jobs(
        "--partition", metavar="NAME", help="sacct, yarn: only jobs of this partition or queue; repeatable."
    ),
]
SlurmClusterOption = Annotated[
    str, _jobs("--cluster", metavar="NAME", help="sacct: only jobs of this cluster.")
]
ProfilesOption = Annotated[
    Path | None,
    _jobs(
        "--profiles",
        metavar="DIR",
        help="Measured speeds: Pollux' profiles for pollux, else ElasticFlow's tables.",
    ),
]
ModelOption = Annotated[
    str,
    _jobs(
        "--model",
        metavar="NAME",
        help="Table of --profiles for all elastic jobs; else drawn for each.",
    ),
]
SeedOption = Annotated[int, _jobs("--seed", min=0, help="Seed of everything that is drawn at random.")]
ElasticOfOption = Annotated[
    str,
    _elasticity("--elastic-of", metavar="multi|all", help="Make jobs of 2 GPUs and more elastic, or all."),
]
MinFactorOption = Annotated[
    float,
    _elasticity("--min-factor", min=0.0, help="Least size of elastic jobs, as a part of their own."),
]
MaxFactorOption = Annotated[
    float,
    _elasticity("--max-factor", min=1.0, max=1e6, help="Largest size of elastic jobs, in their own."),
]
MinOption = Annotated[
    int | None,
    _elasticity("--min", min=1, help="Least GPUs of elastic jobs, instead of a factor."),
]
MaxOption = Annotated[int | None, _elasticity("--max", min=1, help="Most GPUs of elastic jobs.")]
NodesOption = Annotated[
    int | None, _cluster("--nodes", min=1, max=1_000_000, help="Number of nodes.", show_default="16")
]
GpusOption = Annotated[
    int | None, _cluster("--gpus-per-node", min=1, max=1024, help="GPUs of each node.", show_default="4")
]
PolicyOption = Annotated[
    list[str] | None,
    _rules("--policy", metavar="NAME", help="Policy to simulate; repeat it to compare.", show_default="lyra"),
]
StartCostOption = Annotated[
    float | None,
    _rules("--start-cost", metavar="S", min=0.0, max=_LONGEST_S, help="Seconds that each start costs a job."),
]
ResizeCostOption = Annotated[
    float | None,
    _rules(
        "--resize-cost", metavar="S", min=0.0, max=_LONGEST_S, help="Seconds that each resize costs a job."
    ),
]
EstimatesOption = Annotated[
    str | None,
    _rules(
        "--estimates",
        metavar="oracle|history|limit|progress",
        help="Source of the running times that policies see.",
        show_default="history; of oracles: oracle",
    ),
]
JsonOption = Annotated[
    str | None,
    _output("--json", metavar="[FILE|-]", help="Write JSON with stable keys."),
]
QuietOption = Annotated[bool, _output("--quiet", "-q", help="No table, no progress.")]
ProcessesOption = Annotated[
    int,
    _output("--jobs", "-j", metavar="N", min=1, max=256, help="Number of simulations at a time."),
]


def skips(bad_lines: str) -> bool:
    """True if --bad-lines is skip. Raises typer.BadParameter unless it is refuse or skip."""
    if bad_lines not in ("refuse", "skip"):
        raise typer.BadParameter(f"'{bad_lines}' is neither refuse nor skip", param_hint="--bad-lines")
    return bad_lines == "skip"


def simulate(
    context: typer.Context,
    trace: TraceOption = None,
    trace_format: FormatOption = "",
    bad_lines: BadLinesOption = "refuse",
    partition: PartitionOption = None,
    slurm_cluster: SlurmClusterOption = "",
    profiles: ProfilesOption = None,
    model: ModelOption = "",
    generate: Annotated[
        int | None,
        _jobs(
            "--generate",
            metavar="N",
            min=1,
            max=10_000_000,
            help="Generate N jobs instead of reading a file.",
        ),
    ] = None,
    arrivals: Annotated[
        str,
        _jobs("--arrivals", metavar="poisson|bursty", help="How generated jobs arrive."),
    ] = "poisson",
    load: Annotated[
        float,
        _jobs("--load", min=0.001, max=1e6, help="GPU time of the jobs over that of the cluster."),
    ] = 0.8,
    rate: Annotated[
        float | None,
        _jobs("--rate", min=1e-6, max=1e9, help="Jobs an hour, instead of --load."),
    ] = None,
    longest: Annotated[
        float | None,
        _jobs(
            "--longest",
            metavar="S",
            min=1.0,
            max=_LONGEST_S,
            help="Longest running time of a job, in seconds.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        _jobs("--write", metavar="FILE", help="Write the jobs to a file in the format own."),
    ] = None,
    seed: SeedOption = 0,
    batch: Annotated[
        str,
        _jobs(
            "--batch",
            metavar="auto|user|job",
            help="pollux: who sets a job's batch; auto: the job under goodput.",
        ),
    ] = "auto",
    undeclared: Annotated[
        bool,
        _jobs("--undeclared", help="pollux: jobs do not say their epochs."),
    ] = False,
    caution: Annotated[
        float,
        _jobs(
            "--caution",
            min=0.0,
            max=10.0,
            help="pollux: error of speeds at untried sizes, in standard errors.",
        ),
    ] = 0.0,
    elastic_share: Annotated[
        str | None,
        _elasticity(
            "--elastic-share",
            metavar="SHARE",
            help="Share of elastic jobs, as in 0.2 or 20%; else as in the file.",
        ),
    ] = None,
    elastic_of: ElasticOfOption = "multi",
    min_factor: MinFactorOption = 0.5,
    max_factor: MaxFactorOption = 2.0,
    min_gpus: MinOption = None,
    max_gpus: MaxOption = None,
    fungible_share: Annotated[
        str | None,
        _elasticity("--fungible-share", metavar="SHARE", help="Share of jobs that may use any GPU type."),
    ] = None,
    heterogeneous_share: Annotated[
        str | None,
        _elasticity(
            "--heterogeneous-share", metavar="SHARE", help="Share of jobs that may mix GPU types in one run."
        ),
    ] = None,
    nodes: NodesOption = None,
    gpus_per_node: GpusOption = None,
    gpu_types: Annotated[
        str,
        _cluster("--gpu-types", metavar="TYPES", help="Nodes by GPU type, as in v100:16x8,t4:4x8."),
    ] = "",
    on_loan: Annotated[
        list[str] | None,
        _cluster("--on-loan", metavar="TYPE", help="Nodes of this type are inference servers."),
    ] = None,
    gpu_speed: Annotated[
        list[str] | None,
        _cluster(
            "--gpu-speed",
            metavar="TYPE=SPEED",
            help="Speed of a GPU type, as in t4=0.33; 1 for types not named; repeatable.",
            show_default="t4=0.333",
        ),
    ] = None,
    mixed_efficiency: Annotated[
        float,
        _cluster("--mixed-efficiency", help="Part of the summed speed left when a run mixes types."),
    ] = MIXED_EFFICIENCY,
    inference_nodes: Annotated[
        int | None,
        _beside(
            "--inference-nodes",
            metavar="N",
            min=1,
            max=1_000_000,
            help="Servers of an inference cluster; else there is none.",
        ),
    ] = None,
    inference_gpus: Annotated[
        int, _beside("--inference-gpus", metavar="N", min=1, max=1024, help="GPUs of each server.")
    ] = 8,
    inference_type: Annotated[
        str, _beside("--inference-type", metavar="TYPE", help="GPU type of the servers, as in t4.")
    ] = "",
    inference_demand: Annotated[
        str,
        _beside(
            "--inference-demand",
            metavar="FILE|generated",
            help="CSV file, time,servers, with the demand; else it is generated.",
        ),
    ] = "generated",
    loaning: Annotated[bool, _beside("--loaning/--no-loaning", help="Lend servers, or do not.")] = True,
    loan_interval: Annotated[
        float,
        _beside("--loan-interval", metavar="S", min=1.0, help="Seconds between two decisions on loans."),
    ] = 300.0,
    headroom: Annotated[
        str,
        _beside("--headroom", metavar="SHARE", help="Servers kept back beyond one, as a part of the demand."),
    ] = "5%",
    reclaim_within: Annotated[
        float,
        _beside("--reclaim-within", metavar="S", min=1.0, help="Seconds until a reclaimed server is back."),
    ] = 300.0,
    reclaim: Annotated[
        str,
        _beside(
            "--reclaim",
            metavar="heuristic|exact|random|smallest",
            help="Rule that chooses which servers to reclaim from jobs.",
        ),
    ] = "heuristic",
    policy: PolicyOption = None,
    settings: Annotated[
        list[str] | None,
        _rules(
            "--set",
            metavar="POLICY.SETTING=VALUE",
            help="Setting of a policy, as in lyra.stay_s=300; repeatable.",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        _rules(
            "--interval",
            metavar="S",
            min=0.0,
            max=_LONGEST_S,
            help="Seconds between decisions; 0: decide at every event.",
            show_default="0; pollux: 60",
        ),
    ] = None,
    start_cost: StartCostOption = None,
    resize_cost: ResizeCostOption = None,
    estimates: EstimatesOption = None,
    quota: Annotated[
        list[str] | None,
        _rules("--quota", metavar="TENANT=GPUS", help="antman: GPUs guaranteed to a tenant; repeatable."),
    ] = None,
    utilization: Annotated[
        str | None,
        _rules(
            "--utilization",
            metavar="50%",
            help="antman with shared GPUs: time in which jobs of unknown models keep their GPUs busy.",
        ),
    ] = None,
    time_limits: Annotated[bool, _rules("--time-limits", help="End jobs at their time limits.")] = False,
    checkpoints: Annotated[
        bool,
        _rules("--checkpoints/--no-checkpoints", help="A preempted job continues, or begins again."),
    ] = True,
    on_slurm: Annotated[
        bool,
        _rules("--on-slurm", help="Resize as flexod does on Slurm: by satellites."),
    ] = False,
    warm_up: Annotated[
        float | None,
        _rules(
            "--warm-up",
            metavar="S",
            min=0.0,
            help="--on-slurm: seconds from a satellite's start until it trains.",
        ),
    ] = None,
    as_json: JsonOption = None,
    report: Annotated[
        Path | None,
        _output("--report", metavar="FILE.html", help="Write an HTML page with charts."),
    ] = None,
    quiet: QuietOption = False,
    processes: ProcessesOption = 1,
) -> None:
    """Run a trace under policies in virtual time, and compare what comes of it."""
    refuse_idle(context)
    if trace is not None and generate is not None:
        raise typer.BadParameter("say one of --trace and --generate", param_hint="--trace")
    asked_jobs = AskedJobs(
        trace=trace,
        format=trace_format,
        skip_bad=skips(bad_lines),
        partitions=tuple(partition or ()),
        cluster=slurm_cluster,
        profiles=profiles,
        model=model,
        generate=generate,
        arrivals=arrivals,
        load=load,
        rate=rate,
        longest_s=longest,
        seed=seed,
        batch=batch,
        undeclared=undeclared,
        caution=caution,
    )
    asked_elasticity = AskedElasticity(
        share=elastic_share,
        of=elastic_of,
        min_factor=min_factor,
        max_factor=max_factor,
        min_workers=min_gpus,
        max_workers=max_gpus,
        fungible_share=fungible_share,
        heterogeneous_share=heterogeneous_share,
    )
    asked_cluster = AskedCluster(
        nodes, gpus_per_node, gpu_types, tuple(on_loan or ()), tuple(gpu_speed or ()), mixed_efficiency
    )
    asked_inference = AskedInference(
        nodes=inference_nodes,
        gpus=inference_gpus,
        gpu_type=inference_type,
        demand=inference_demand,
        lends=loaning,
        interval_s=loan_interval,
        headroom=headroom,
        reclaim_s=reclaim_within,
        reclaim=reclaim,
    )
    asked_rules = AskedRules(
        policies=tuple(policy or ()),
        settings=tuple(settings or ()),
        interval_s=interval,
        start_cost_s=start_cost,
        resize_cost_s=resize_cost,
        estimates=estimates,
        quotas=tuple(quota or ()),
        utilization=utilization,
        time_limits=time_limits,
        checkpoints=checkpoints,
        on_slurm=on_slurm,
        warm_up_s=warm_up,
    )
    outputs = Outputs(write, as_json, report, quiet, processes, context.obj)
    from flexo_cli.site.simulation.run import run

    run(asked_jobs, asked_elasticity, asked_cluster, asked_inference, asked_rules, outputs)
