"""A command of `flexo` as a row of a list: its module is imported only when the command is needed.

All modules together take longer to import than `flexo jobs` takes for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import typer

from flexo_cli.help_pages import Command, Section

PASSED_ON: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
"""Settings of a command that passes all its arguments on."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One command, or one group of commands."""

    name: str
    module: str
    section: Section | None = None
    attribute: str = ""
    """The function, or the group's Typer, in the module. "": as the command, with underscores."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of click's context."""
    looks: type[Command] = Command
    """click's class of the command; a group has its own."""
    hidden: bool = False
    """Whether the help leaves it out: an old spelling."""
    more: tuple[Listed, ...] = ()
    """Commands of a group beside those in its own module."""

    def add_to(self, app: typer.Typer) -> None:
        """Import the command, and add it to `app`."""
        found = getattr(import_module(self.module), self.attribute or self.name.replace("-", "_"))
        if isinstance(found, typer.Typer):
            here = {command.name for command in found.registered_commands}
            for each in self.more:
                if each.name not in here:  # a group is one for the whole process
                    each.add_to(found)
            app.add_typer(found, name=self.name, rich_help_panel=self.section)
            return
        app.command(
            self.name,
            cls=self.looks,
            context_settings=dict(self.settings),
            hidden=self.hidden,
            rich_help_panel=self.section,
        )(found)
