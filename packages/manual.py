"""Writes the manual pages: python packages/manual.py FOLDER. Everything in them is the commands' own help.

One page for `flexo`, one for each of its commands (those of a group share one), and one for `flexod`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup

import flexo
from flexo.cli.app import app
from flexo.cli.connection import ADDRESS_VARIABLE, CONFIG_VARIABLE
from flexo.cli.exit_codes import ExitCode
from flexo.config import DEFAULT_PATH
from flexo.service.flexod import FAILED, USAGE, make_parser
from flexo_protos.credentials import SOCKET_VARIABLE
from horovod_elastic import hosts, launcher

_USAGES = {"run": launcher.USAGE, "hosts": hosts.USAGE}
"""Commands whose help is not made of options."""
_TYPE = re.compile(r"(?<=\S) <(?:int|float|str|int range|float range)>$")
"""What typer adds to the name of what is said to be something already."""
_ENVIRONMENT = (
    (ADDRESS_VARIABLE, "flexod's address, HOST:PORT."),
    (CONFIG_VARIABLE, f"flexod's configuration, instead of {DEFAULT_PATH}."),
    (SOCKET_VARIABLE, "munged's socket, where it is not MUNGE's default."),
)


@dataclass(frozen=True, slots=True)
class Page:
    """One manual page."""

    name: str
    section: int
    text: str
    """roff."""

    @property
    def path(self) -> Path:
        """Below the folder of manual pages."""
        return Path(f"man{self.section}") / f"{self.name}.{self.section}"


def pages() -> list[Page]:
    """All of them."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return [
        _overview(group),
        *(_page_of(name, command) for name, command in _commands(group)),
        _flexod(),
    ]


def _commands(group: TyperGroup) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """In the order of their names."""
    for name, command in sorted(group.commands.items()):
        assert isinstance(command, TyperCommand | TyperGroup)
        yield name, command


def _overview(group: TyperGroup) -> Page:
    lines = [
        *_head("flexo", 1, str(group.help)),
        ".SH SYNOPSIS",
        r".B flexo\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
        ".SH COMMANDS",
    ]
    for name, command in _commands(group):
        lines += [".TP", rf".BR flexo\-{_roff(name)} (1)", _roff(_summary(command))]
    return _page("flexo", 1, [*lines, *_foot(["flexod(8)"])])


def _page_of(name: str, command: TyperCommand | TyperGroup) -> Page:
    title = f"flexo-{name}"
    lines = _head(title, 1, _summary(command))
    if name in _USAGES:
        lines += [".SH DESCRIPTION", ".nf", *map(_roff, _USAGES[name].splitlines()), ".fi"]
        return _page(title, 1, [*lines, *_see_also(["flexo(1)"])])
    if isinstance(command, TyperGroup):
        lines += [".SH DESCRIPTION", _roff(_help(command))]
        for sub, each in _commands(command):
            lines += [f".SH FLEXO {name.upper()} {sub.upper()}", *_synopsis(f"flexo {name} {sub}", each)]
            lines += ["", _roff(_help(each)), *_options(each)]
    else:
        lines += [".SH SYNOPSIS", *_synopsis(f"flexo {name}", command)]
        lines += [".SH DESCRIPTION", _roff(_help(command))]
        if options := list(_options(command)):
            lines += [".SH OPTIONS", *options]
    return _page(title, 1, [*lines, *_foot(["flexo(1)", "flexod(8)"])])


def _flexod() -> Page:
    parser = make_parser()
    lines = [*_head("flexod", 8, str(parser.description)), ".SH SYNOPSIS"]
    lines += [r".B flexod\fR [\fIOPTIONS\fR]", ".SH OPTIONS", *_parser_options(parser)]
    lines += [
        ".SH EXIT STATUS",
        *_pairs(
            [
                ("0", "ended by SIGTERM or SIGINT"),
                (str(FAILED), "it cannot start or go on; the sentence on the error output says why"),
                (str(USAGE), "the command line or the configuration is wrong"),
            ]
        ),
        *_environment(),
        ".SH FILES",
        *_pairs([(str(DEFAULT_PATH), "the configuration; each key is explained there")]),
    ]
    return _page("flexod", 8, [*lines, *_see_also(["flexo(1)", "flexo-doctor(1)"])])


def _parser_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()  # the only one that knows how argparse writes an option
    for action in parser._actions:
        yield ".TP"
        yield rf"\fB{_roff(formatter._format_action_invocation(action))}\fR"
        yield _roff(formatter._expand_help(action))


def _synopsis(called: str, command: TyperCommand | TyperGroup) -> Iterator[str]:
    context = typer.Context(command, info_name=called)
    yield rf"\fB{_roff(called)}\fR {_roff(' '.join(command.collect_usage_pieces(context)))}"


def _options(command: TyperCommand | TyperGroup) -> Iterator[str]:
    context = typer.Context(command)
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        record = parameter.get_help_record(context)
        if record is not None:
            name = re.sub(_TYPE, "", record[0])
            yield from (".TP", rf"\fB{_roff(name)}\fR", _roff(record[1]) or r"\&")


def _foot(others: Iterable[str]) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    yield from _pairs((str(code.value), code.meaning) for code in ExitCode)
    yield from _environment()
    yield from _see_also(others)


def _environment() -> Iterator[str]:
    yield ".SH ENVIRONMENT"
    yield from _pairs(_ENVIRONMENT)


def _see_also(others: Iterable[str]) -> Iterator[str]:
    yield ".SH SEE ALSO"
    yield _roff(", ".join(others))


def _pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in pairs:
        yield from (".TP", rf"\fB{_roff(name)}\fR", _roff(text))


def _head(title: str, section: int, summary: str) -> list[str]:
    name = f'.TH "{_roff(title.upper())}" {section} "" "flexo {_roff(flexo.__version__)}" "flexo"'
    return [name, ".SH NAME", rf"{_roff(title)} \- {_roff(summary.rstrip('.'))}"]


def _page(name: str, section: int, lines: Iterable[str]) -> Page:
    return Page(name, section, "\n".join(lines) + "\n")


def _help(command: TyperCommand | TyperGroup) -> str:
    return command.help or ""


def _summary(command: TyperCommand | TyperGroup) -> str:
    """The first sentence of the help."""
    return re.split(r"(?<=[.?])\s", _help(command), maxsplit=1)[0]


def _roff(text: str) -> str:
    """`text` as roff prints it: nothing in it is a command, and a hyphen can be copied as one."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Entry point; `arguments`: the folder, which gets man1 and man8."""
    if len(arguments) != 1:
        sys.stderr.write(f"usage: {Path(__file__).name} FOLDER\n")
        return 2
    for page in pages():
        path = Path(arguments[0]) / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
