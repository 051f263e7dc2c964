"""`flexo check`: prints what keeps a script from being resized. The analysis is in horovod_elastic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flexo_cli.connection import Refusal
from flexo_cli.exit_codes import ExitCode
from flexo_cli.options import JsonOption
from flexo_cli.output import Json, print_json, print_line
from horovod_elastic.script_check.examine import check as examine
from horovod_elastic.script_check.findings import Finding, Level, Report


def check(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training script, a Python file.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARG", help="The script's arguments, as flexo run gets them."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What keeps a training script from being resized? Names each construct with its line, before you submit.

    The check is static: it reads SCRIPT and the modules beside it that it imports, and runs nothing. So it
    misses what installed packages do and what is decided at run time, and it may name code that your run does
    not reach. It ends with 0 if it finds nothing that keeps the job at the size of its base, and with 5
    otherwise. Such a script still runs under flexo run, at the size of its base.
    """
    report = examined(script, arguments or [])
    if as_json:
        print_json(report_as_json(report))
    else:
        print_report(report)
    if not report.elastic:
        raise typer.Exit(ExitCode.FIXED_SIZE)


def examined(script: Path, arguments: list[str]) -> Report:
    """Examine a script. Raises BadParameter for what is an option, Refusal for what is no script."""
    if str(script).startswith("-"):
        raise typer.BadParameter(f"no such option: {script}", param_hint="SCRIPT")
    try:
        return examine(script, arguments)
    except OSError as error:
        raise Refusal(f"{script}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def print_report(report: Report) -> None:
    """Print a report for people: what it is, each finding, and what follows."""
    print_line(f"{report.script}: {report.tier.value}; {_count(len(report.files), 'file')} read")
    for finding in report.findings:
        print_line(f"{_where(finding)}: {finding.level.value}: {finding.what} [{finding.rule}]")
    keeps = sum(finding.level is Level.KEEPS for finding in report.findings)
    if keeps:
        print_line(f"an elastic job with it would stay at the size of its base: {_count(keeps, 'reason')}")
    else:
        print_line("nothing found that keeps it from being resized")


def report_as_json(report: Report) -> Json:
    """The report with stable keys."""
    return {
        "script": report.script,
        "tier": report.tier.value,
        "elastic": report.elastic,
        "files": list(report.files),
        "findings": [
            {
                "rule": finding.rule,
                "level": finding.level.value,
                "file": finding.file,
                "line": finding.line,
                "what": finding.what,
            }
            for finding in report.findings
        ],
    }


def _where(finding: Finding) -> str:
    return f"{finding.file}:{finding.line}" if finding.file else "the arguments"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
