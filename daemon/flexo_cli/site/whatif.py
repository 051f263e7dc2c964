"""`flexo whatif`: simulates the jobs of a dump of a cluster's accounting with elasticity.

This module has the options only. Their meaning is in `simulation`, which the command imports when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flexo_cli.site import simulate as options
from flexo_cli.site.simulation.asked import (
    AskedCases,
    AskedCluster,
    AskedElasticity,
    AskedJobs,
    AskedRules,
    Outputs,
)

DEFAULT_REPORT = Path("whatif.html")


def whatif(
    context: typer.Context,
    sacct: Annotated[
        Path | None,
        typer.Option(
            "--sacct",
            metavar="FILE|-",
            help="A dump of Slurm's sacct; docs/howto/what-if.md has the command that makes it.",
        ),
    ] = None,
    yarn: Annotated[
        Path | None,
        typer.Option("--yarn", metavar="FILE|-", help="A dump of YARN's applications: flexo yarn history."),
    ] = None,
    bad_lines: options.BadLinesOption = "refuse",
    partition: options.PartitionOption = None,
    slurm_cluster: options.SlurmClusterOption = "",
    profiles: options.ProfilesOption = None,
    model: options.ModelOption = "",
    seed: options.SeedOption = 0,
    elastic_share: Annotated[
        list[str] | None,
        typer.Option(
            "--elastic-share",
            metavar="SHARE",
            help="Of jobs that are elastic; repeatable.",
            show_default="0%, 5%, 20%, 50%, 100%",
        ),
    ] = None,
    elastic_of: options.ElasticOfOption = "multi",
    min_factor: options.MinFactorOption = 0.5,
    max_factor: options.MaxFactorOption = 2.0,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="How many.", show_default="what the peak needed")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="Of each.", show_default="the most on one node")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", metavar="NAME", help="Repeatable.", show_default="lyra and elastic-tiresias"
        ),
    ] = None,
    start_cost: options.StartCostOption = None,
    resize_cost: options.ResizeCostOption = None,
    estimates: options.EstimatesOption = None,
    as_json: options.JsonOption = None,
    report: Annotated[Path, typer.Option("--report", metavar="FILE.html", help="The page.")] = DEFAULT_REPORT,
    quiet: options.QuietOption = False,
    within: Annotated[
        str,
        typer.Option(
            "--within",
            metavar="MINUTES|all",
            help="Simulate the most important cases first, and leave out those that would end later.",
        ),
    ] = "4",
    processes: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            min=1,
            max=256,
            help="Number of simulations at a time.",
            show_default="1, or up to 4 cores for 2,000 jobs and more",
            rich_help_panel="Output",
        ),
    ] = None,
) -> None:
    """Simulate the jobs of a cluster's accounting with elasticity: a page, and a summary."""
    if (sacct is None) == (yarn is None):
        raise typer.BadParameter("say one of --sacct FILE and --yarn FILE", param_hint="--sacct")
    if slurm_cluster and not sacct:
        raise typer.BadParameter("it does nothing without --sacct", param_hint="--cluster")
    jobs = AskedJobs(
        trace=sacct or yarn,
        format="sacct" if sacct else "yarn",
        skip_bad=options.skips(bad_lines),
        partitions=tuple(partition or ()),
        cluster=slurm_cluster,
        profiles=profiles,
        model=model,
        seed=seed,
    )
    elasticity = AskedElasticity(of=elastic_of, min_factor=min_factor, max_factor=max_factor)
    rules = AskedRules(
        policies=tuple(policy or ()),
        start_cost_s=start_cost,
        resize_cost_s=resize_cost,
        estimates=estimates,
    )
    outputs = Outputs(None, as_json, report, quiet, processes or 0, context.obj)
    from flexo_cli.site.simulation.whatif_run import run

    asked = AskedCases(tuple(elastic_share or ()), within)
    run(jobs, elasticity, asked, AskedCluster(nodes, gpus_per_node), rules, outputs)
