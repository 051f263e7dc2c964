"""`flexo yarn`: commands for YARN clusters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flexo.doctor.finding import Level
from flexo_cli.doctor import findings_as_json, print_findings
from flexo_cli.exit_codes import ExitCode
from flexo_cli.output import print_json

CONF_VARIABLE = "HADOOP_CONF_DIR"
DEFAULT_CONF = "/etc/hadoop/conf"

app = typer.Typer(help="Commands for YARN clusters (jobs do not run there yet).", no_args_is_help=True)


@app.callback()
def commands() -> None:
    """Commands for YARN clusters (jobs do not run there yet)."""


@app.command()
def doctor(
    conf: Annotated[
        Path | None,
        typer.Option(
            "--conf",
            metavar="FOLDER",
            help="The ResourceManager's configuration; else $HADOOP_CONF_DIR, else /etc/hadoop/conf.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is not ok.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Are YARN's configuration files as flexo needs them? Asks nothing of the cluster."""
    from flexo.doctor.yarn import examine_yarn  # imports more modules than other commands need

    findings = examine_yarn(conf or Path(os.environ.get(CONF_VARIABLE) or DEFAULT_CONF))
    if as_json:
        print_json(findings_as_json(findings))
    else:
        print_findings(findings, quiet)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(ExitCode.REFUSED)
