"""`flexo doctor`: prints findings and how to fix them. The examination itself is in flexo.doctor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flexo.doctor.finding import Finding, Level
from flexo.doctor.flexod import AnsweredAggregator, FlexodAnswer, PoolAnswer
from flexo.words import needs_restart
from flexo_cli.connection import (
    ADDRESS_VARIABLE,
    CONFIG_VARIABLE,
    DEFAULT_CONFIG,
    Address,
    Daemon,
    Refusal,
    Unreachable,
)
from flexo_cli.exit_codes import ExitCode
from flexo_cli.output import Json, print_json, print_line
from flexo_protos.v1 import admin_pb2

_WIDTH = 14
"""Width of the first column."""


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="flexod's configuration; else $FLEXO_CONFIG, else /etc/flexo/flexo.toml.",
        ),
    ] = None,
    daemon: Annotated[
        str | None,
        typer.Option("--daemon", metavar="HOST:PORT", help="flexod's address; else the configuration's."),
    ] = None,
    slurm_conf: Annotated[
        Path | None,
        typer.Option(
            "--check-slurm-conf",
            metavar="FILE",
            help="Examine this slurm.conf alone, before slurmctld is restarted with it.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is not ok.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Is this cluster set up for flexo? Says how to fix what is wrong, and changes nothing itself."""
    path = config or Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    if slurm_conf and daemon:
        raise typer.BadParameter("it does nothing with --check-slurm-conf", param_hint="--daemon")
    findings = _examined_file(slurm_conf, path) if slurm_conf else _examined(path, config is not None, daemon)
    if as_json:
        print_json(findings_as_json(findings))
    else:
        print_findings(findings, quiet)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(ExitCode.REFUSED)


def _examined_file(slurm_conf: Path, config: Path) -> Sequence[Finding]:
    from flexo.doctor.before_restart import examine_slurm_conf  # imports more than other commands need

    return examine_slurm_conf(slurm_conf, config)


def _examined(config: Path, named: bool, daemon: str | None) -> Sequence[Finding]:
    """`named`: on the command line. Such a configuration gives the address of its flexod."""
    from flexo.doctor.examination import examine  # imports more modules than other commands need

    elsewhere = daemon or (None if named else os.environ.get(ADDRESS_VARIABLE))
    source = "--daemon" if daemon else f"${ADDRESS_VARIABLE}" if elsewhere else str(config)
    return examine(config, lambda address: _asked(Address(address, source)), elsewhere or "")


def _asked(address: Address) -> FlexodAnswer:
    try:
        reply = Daemon(address).own_status()
    except (Refusal, Unreachable) as error:
        return FlexodAnswer(silent=str(error))
    restart = needs_restart(reply.needs_restart)
    return FlexodAnswer(
        version=reply.flexod_version,
        trouble="; ".join(filter(None, (reply.trouble or reply.availability.trouble, restart))),
        dry_run=reply.dry_run,
        stands_by=reply.HasField("availability") and not reply.availability.active,
        pool=_pool(reply.pool) if reply.HasField("pool") else None,
    )


def _pool(view: admin_pb2.PoolView) -> PoolAnswer:
    aggregators = tuple(
        AnsweredAggregator(each.name, each.flexo_version, each.memory_limit_bytes)
        for each in view.aggregators
    )
    return PoolAnswer(aggregators, view.wanted)


def print_findings(findings: Sequence[Finding], quiet: bool) -> None:
    """Print findings, and how many there are of each level. `quiet`: only what is not ok, and
    the names of what was not checked."""
    for finding in findings:
        if quiet and finding.level in (Level.OK, Level.NOT_CHECKED):
            continue
        print_line(f"{_words(finding.level):{_WIDTH}}{finding.check}: {finding.what}")
        if finding.fix and finding.level is not Level.OK:
            print_line(f"{'':{_WIDTH}}-> {finding.fix}")
    counted = Counter(finding.level for finding in findings)
    left_out = dict.fromkeys(each.check for each in findings if quiet and each.level is Level.NOT_CHECKED)
    names = f" ({', '.join(left_out)})" if left_out else ""
    print_line(", ".join(f"{counted[level]} {_words(level)}" for level in Level) + names)


def _words(level: Level) -> str:
    return level.value.replace("_", " ")


def findings_as_json(findings: Sequence[Finding]) -> dict[str, Json]:
    """Findings with stable keys."""
    counted = Counter(finding.level for finding in findings)
    return {
        "counts": {level.value: counted[level] for level in Level},
        "findings": [
            {"check": each.check, "level": each.level.value, "what": each.what, "fix": each.fix or None}
            for each in findings
        ],
    }
