"""`flexo yarn doctor`: prints findings on YARN's configuration. The examination itself is in flexo.doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from flexo.doctor.finding import Level
from flexo_cli.exit_codes import ExitCode
from flexo_cli.options import JsonOption
from flexo_cli.output import print_json
from flexo_cli.site.doctor import findings_as_json, print_findings
from flexo_cli.yarn import ConfOption
from flexo_yarn.configuration import default_folder


def doctor(
    conf: ConfOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is not ok.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Are YARN's configuration files as flexo needs them? Asks nothing of the cluster."""
    from flexo.doctor.yarn import examine_yarn  # imports more modules than other commands need

    findings = examine_yarn(conf or default_folder())
    if as_json:
        print_json(findings_as_json(findings))
    else:
        print_findings(findings, quiet)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(ExitCode.REFUSED)
