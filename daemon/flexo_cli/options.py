"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from flexo_yarn.records import application_number, read_application

DaemonOption = Annotated[
    str | None,
    typer.Option(
        "--daemon", metavar="HOST:PORT", help="flexod's address; else $FLEXO_DAEMON, else the configuration."
    ),
]


def job_number(text: str) -> int:
    """flexo's number of a job, from Slurm's id or YARN's name of its application. Raises BadParameter."""
    if text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 64:
        return int(text)
    try:
        return application_number(read_application(text))
    except ValueError:
        raise typer.BadParameter(
            f"'{text}' is no job; allowed: Slurm's id, or application_TIMESTAMP_NUMBER on YARN"
        ) from None


JobArgument = Annotated[
    int,
    typer.Argument(
        metavar="JOB",
        parser=job_number,
        help="The elastic job (its base): Slurm's id, or YARN's name of it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
