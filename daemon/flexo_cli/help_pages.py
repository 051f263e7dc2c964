"""How help is printed: commands in sections, and values by a word, without Python's types and ranges.

The message about a wrong value names the range. Manual pages and the reference have it, too.
"""

from __future__ import annotations

import enum
import re
from copy import copy
from typing import TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_Parameter = TypeVar("_Parameter")


class Section(enum.StrEnum):
    """The sections of `flexo --help`."""

    YOUR_JOBS = "Your jobs"
    IN_A_JOB = "In a job script"
    ADMINISTRATION = "Administration"
    PLANNING = "Planning"
    LAB = "Lab"
    ITSELF = "This command"


class PlainHelp:
    """What commands and groups of them have in common. It stands before typer's class among the bases."""

    def get_params(self, ctx: typer.Context) -> list[object]:
        """All parameters, `--help` among them; options without a word for their value get one."""
        params: list[object] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if isinstance(each, TyperOption) and each.metavar is None:
                each.metavar = _word(each)
        return params


class Command(PlainHelp, TyperCommand):  # type: ignore[misc]
    """A command whose help has no ranges."""

    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # type: ignore[override]
        """Print the help. A command that prints its help reads no values afterwards."""
        self.params = [_plain(each) for each in self.params]
        self.help = "\n\n".join(" ".join(text.split()) for text in (self.help or "").split("\n\n"))
        super().format_help(ctx, formatter)  # type: ignore[arg-type]

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """The words of the usage, without the braces that typer puts around a required argument, and without
        second brackets."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"^\{(.+)\}$|^\[(\[.+\])\]$", r"\1\2", piece) for piece in pieces]


class Group(PlainHelp, TyperGroup):  # type: ignore[misc]
    """A group of commands whose options have no types."""


def with_plain_help(app: typer.Typer) -> None:
    """Have `app`, its commands and its groups print plain help. A class that a command has is kept."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = command.cls if command.cls not in (None, TyperCommand) else Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            with_plain_help(group.typer_instance)


def _word(option: TyperOption) -> str | None:
    """The word for an option's value; "" for a flag, None where typer lists the choices."""
    of = option.type_descriptor
    if option.is_flag:
        return ""
    if of.is_choice:
        return None
    if of.is_path:
        return "FILE"
    return "N" if of.annotation in (int, float) or of.is_ranged else "TEXT"


def _plain(parameter: _Parameter) -> _Parameter:
    """A copy of `parameter` that shows no range; of an argument one that shows no type either."""
    plain = copy(parameter)
    if isinstance(plain, TyperOption | TyperArgument):
        plain.min = plain.max = None
    if isinstance(plain, TyperArgument):
        plain.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
    return plain
