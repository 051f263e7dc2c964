"""The help of the commands as data, for the manual pages and the reference on the site.

The help comes from the parsers: typer's for `flexo`, argparse's for `flexod` and `flexo aggregator`. Some
commands parse their arguments themselves; their usage text is taken as it is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

import typer
from typer.core import TyperCommand, TyperGroup

from flexo.config import DEFAULT_PATH
from flexo.service.flexod import FAILED, USAGE, make_parser
from flexo_cli.app import application
from flexo_cli.connection import ADDRESS_VARIABLE, CONFIG_VARIABLE
from flexo_cli.exit_codes import ExitCode
from flexo_protos.credentials import SCHEME_VARIABLE, SOCKET_VARIABLE
from flexo_protos.web_login import DEFAULT_URL, URL_VARIABLE
from horovod_elastic import hosts, launcher
from horovod_elastic.aggregation import pool
from horovod_elastic.sharing import command as share

_USAGES = {"run": launcher.USAGE, "hosts": hosts.USAGE, "share": share.USAGE}
"""Usage texts of the commands that parse their arguments themselves."""
_TYPE = re.compile(r"(?<=\S) <[^<>]+>$")
"""The text that typer adds to the name of an argument whose type is known."""
_BRACES = re.compile(r"\{(\w+)\}")
"""The braces that typer puts around a required argument."""


@dataclass(frozen=True, slots=True)
class Term:
    """A word and what it means: an option, an argument, an exit code, a variable."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """One command."""

    name: str
    """Full name, as typed: "flexo lab up"."""
    text: str
    usage: str
    """Usage after the name; "" if `verbatim` holds the usage."""
    options: tuple[Term, ...]
    """Options and arguments, in the order of the command's own help."""
    verbatim: str = ""
    """Full usage text of a command that parses its arguments itself; "" for all others."""
    commands: tuple[CommandHelp, ...] = ()
    """Subcommands of a group; empty for all others."""

    @property
    def summary(self) -> str:
        """The first sentence of the help."""
        return re.split(r"(?<=[.?])\s", self.text, maxsplit=1)[0]

    @property
    def word(self) -> str:
        """The last word of the name."""
        return self.name.rpartition(" ")[2]


ENVIRONMENT = (
    Term(ADDRESS_VARIABLE, "flexod's address, HOST:PORT."),
    Term(CONFIG_VARIABLE, f"flexod's configuration, instead of {DEFAULT_PATH}."),
    Term(SCHEME_VARIABLE, "How callers prove who they are, instead of the configured way: munge or slurm."),
    Term(SOCKET_VARIABLE, "munged's socket, where it is not MUNGE's default."),
    Term(URL_VARIABLE, f"flexo-web's URL, instead of {DEFAULT_URL}."),
)
"""Variables that the commands read."""
EXIT_CODES = tuple(Term(str(code.value), code.meaning) for code in ExitCode)
"""Exit codes of `flexo`."""
FLEXOD_EXIT_CODES = (
    Term("0", "ended by SIGTERM or SIGINT"),
    Term(str(FAILED), "it cannot start or go on; the sentence on the error output says why"),
    Term(str(USAGE), "the command line or the configuration is wrong"),
)


def flexo() -> CommandHelp:
    """The command `flexo` with all of its commands, in the order of their names."""
    return _command("flexo", typer.main.get_command(application()))


def flexod() -> CommandHelp:
    """The command `flexod`."""
    parser = make_parser()
    return CommandHelp("flexod", str(parser.description), "[OPTIONS]", tuple(_parser_options(parser)))


def _command(called: str, command: object) -> CommandHelp:
    assert isinstance(command, TyperCommand | TyperGroup)
    name, text = called.rpartition(" ")[2], command.help or ""
    if name in _USAGES:
        return CommandHelp(called, text, "", (), verbatim=_USAGES[name])
    if name == "aggregator":
        return CommandHelp(called, text, "[OPTIONS]", tuple(_parser_options(pool.make_parser())))
    context = typer.Context(command, info_name=called)
    usage = _BRACES.sub(r"\1", " ".join(command.collect_usage_pieces(context)))
    if not isinstance(command, TyperGroup):
        return CommandHelp(called, text, usage, tuple(_options(command)))
    shown = sorted((name, each) for name, each in command.commands.items() if not each.hidden)
    below = tuple(_command(f"{called} {name}", each) for name, each in shown)
    return CommandHelp(called, text, usage, (), commands=below)


def _options(command: TyperCommand) -> Iterator[Term]:
    context = typer.Context(command)
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        record = parameter.get_help_record(context)
        if record is not None:
            yield Term(re.sub(_TYPE, "", record[0]), record[1])


def _parser_options(parser: argparse.ArgumentParser) -> Iterator[Term]:
    formatter = parser._get_formatter()  # only argparse's formatter knows how argparse writes an option
    for action in parser._actions:
        yield Term(formatter._format_action_invocation(action), formatter._expand_help(action))
