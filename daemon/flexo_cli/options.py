"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DaemonOption = Annotated[
    str | None,
    typer.Option(
        "--daemon", metavar="HOST:PORT", help="flexod's address; else $FLEXO_DAEMON, else the configuration."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
