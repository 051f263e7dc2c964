"""Names the commands for sites where flexo-site is not installed. Each says how to install it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import typer

from flexo_cli.connection import Refusal
from flexo_cli.help_pages import Section
from flexo_protos.installing import Wheel, how_to_install

COMMANDS: Final = {
    "doctor": Section.ADMINISTRATION,
    "whatif": Section.PLANNING,
    "simulate": Section.PLANNING,
    "forecast": Section.PLANNING,
    "lab": Section.LAB,
}
_HELP: Final = f"Not installed here: a command of {Wheel.SITES}."
_ANYTHING: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(app: typer.Typer, yarn: typer.Typer) -> None:
    """Add a command that refuses for each of COMMANDS to `app`, and for the doctor to `yarn`."""
    for name, section in COMMANDS.items():
        app.command(name, help=_HELP, rich_help_panel=section, context_settings=_ANYTHING)(_refusing(name))
    yarn.command("doctor", help=_HELP, context_settings=_ANYTHING)(_refusing("yarn doctor"))


def _refusing(name: str) -> Callable[[], None]:
    def refuse() -> None:
        raise Refusal(
            f"`flexo {name}` needs the Python package {Wheel.SITES}, and {sys.prefix} lacks it. "
            + how_to_install(Wheel.SITES)
        )

    return refuse
