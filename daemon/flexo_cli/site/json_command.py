"""A command whose `--json` takes a file, or no value for the output."""

from __future__ import annotations

import shlex

import typer

from flexo_cli.help_pages import Command


class JsonCommand(Command):
    """A command whose `--json` without a value means -, the output. It keeps the command line as typed."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Insert the - if `--json` has no value."""
        ctx.obj = shlex.join(["flexo", str(ctx.info_name), *args])
        whole: list[str] = []
        for at, argument in enumerate(args):
            whole.append(argument)
            following = args[at + 1] if at + 1 < len(args) else "--"
            if argument == "--json" and following.startswith("-") and following != "-":
                whole.append("-")
        return super().parse_args(ctx, whole)
