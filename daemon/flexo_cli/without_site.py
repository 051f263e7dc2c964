"""The commands for sites where flexo-site is not installed. Each says how to install it."""

from __future__ import annotations

import sys
from typing import Final

import typer

from flexo_cli.connection import Refusal
from flexo_cli.help_pages import Section
from flexo_cli.listed import PASSED_ON, Listed
from flexo_protos.installing import Wheel, how_to_install

_SECTIONS: Final = {
    "doctor": Section.ADMINISTRATION,
    "whatif": Section.PLANNING,
    "simulate": Section.PLANNING,
    "forecast": Section.PLANNING,
    "lab": Section.LAB,
}
COMMANDS: Final[tuple[Listed, ...]] = tuple(
    Listed(name, __name__, section, attribute="refuse", settings=PASSED_ON)
    for name, section in _SECTIONS.items()
)
OF_YARN: Final[tuple[Listed, ...]] = (Listed("doctor", __name__, attribute="refuse", settings=PASSED_ON),)
"""Commands of `flexo yarn`."""


def refuse(context: typer.Context) -> None:
    """Not installed here: a command of flexo-site."""
    raise Refusal(
        f"`{context.command_path}` needs the Python package {Wheel.SITES}, and {sys.prefix} lacks it. "
        + how_to_install(Wheel.SITES)
    )
