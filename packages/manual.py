"""Writes the manual pages: python packages/manual.py FOLDER. All their text comes from the programs.

There is one page for `flexo`, one for each of its commands or groups of commands, one for `flexod` and one
for flexo.toml. One more is for `flexo-partition`, which comes with the plugin.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import command_help
import partition_help
import settings_help
from command_help import CommandHelp, Term

import flexo
from flexo.config import DEFAULT_PATH


@dataclass(frozen=True, slots=True)
class Page:
    """One manual page."""

    name: str
    section: int
    text: str
    """The page as roff source."""

    @property
    def path(self) -> Path:
        """Path relative to the folder of manual pages."""
        return Path(f"man{self.section}") / f"{self.name}.{self.section}"


def pages() -> list[Page]:
    """Manual pages of the daemon and of the command."""
    overview = command_help.flexo()
    return [_overview(overview), *map(_page_of, overview.commands), _flexod(), _configuration()]


def plugin_pages() -> list[Page]:
    """Manual pages of the programs that are installed with the plugin."""
    return [_partition()]


def _overview(command: CommandHelp) -> Page:
    lines = [
        *_head("flexo", 1, command.text),
        ".SH SYNOPSIS",
        r".B flexo\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
        ".SH COMMANDS",
    ]
    for each in command.commands:
        lines += [".TP", rf".BR flexo\-{_roff(each.word)} (1)", _roff(each.summary)]
    return _page("flexo", 1, [*lines, *_foot(["flexod(8)"])])


def _page_of(command: CommandHelp) -> Page:
    title = f"flexo-{command.word}"
    lines = _head(title, 1, command.summary)
    if command.verbatim:
        lines += [".SH DESCRIPTION", ".nf", *map(_roff, command.verbatim.splitlines()), ".fi"]
        return _page(title, 1, [*lines, *_see_also(["flexo(1)"])])
    if command.commands:
        lines += [".SH DESCRIPTION", _roff(command.text)]
        for each in command.commands:
            lines += [f".SH {each.name.upper()}", _synopsis(each), "", _roff(each.text)]
            lines += _pairs(each.options)
    else:
        lines += [".SH SYNOPSIS", _synopsis(command), ".SH DESCRIPTION", _roff(command.text)]
        if command.options:
            lines += [".SH OPTIONS", *_pairs(command.options)]
    return _page(title, 1, [*lines, *_foot(["flexo(1)", "flexod(8)"])])


def _flexod() -> Page:
    command = command_help.flexod()
    lines = [*_head("flexod", 8, command.text), ".SH SYNOPSIS"]
    lines += [r".B flexod\fR [\fIOPTIONS\fR]", ".SH OPTIONS", *_pairs(command.options)]
    lines += [".SH EXIT STATUS", *_pairs(command_help.FLEXOD_EXIT_CODES), *_environment()]
    lines += [".SH FILES", *_pairs([Term(str(DEFAULT_PATH), "the configuration: see flexo.toml(5)")])]
    return _page("flexod", 8, [*lines, *_see_also(["flexo(1)", "flexo-doctor(1)", "flexo.toml(5)"])])


def _configuration() -> Page:
    lines = [*_head("flexo.toml", 5, "flexod's configuration"), ".SH SYNOPSIS", _roff(str(DEFAULT_PATH))]
    lines += [".SH DESCRIPTION", "TOML. Every key has a default; flexod \\-\\-check\\-config checks a file."]
    for section in settings_help.sections():
        lines += [f".SH [{_roff(section.name)}]", _roff(section.text)]
        for key in section.keys:
            lines += [".TP", rf"\fB{_roff(key.name)}\fR = {_roff(key.default)}", _roff(key.text)]
            lines += [".br", f"Takes {_roff(key.takes)}."]
    return _page("flexo.toml", 5, [*lines, *_see_also(["flexod(8)", "flexo-doctor(1)"])])


def _partition() -> Page:
    helper = partition_help.flexo_partition()
    name, _, usage = helper.usage.partition(" ")
    lines = [*_head(name, 8, helper.summary), ".SH SYNOPSIS", rf"\fB{_roff(name)}\fR {_roff(usage)}"]
    lines += [".SH DESCRIPTION", _roff(helper.text), ".SH EXIT STATUS", *_pairs(helper.exit_codes)]
    lines += [".SH FILES", f".SS {_roff(helper.config)}"]
    lines += ["Lines KEY = VALUE; # begins a comment. File and folder have to be root's, and writable by"]
    lines += ["root alone. Where there is none, these defaults hold:"]
    lines += [*_pairs(helper.keys), *_see_also(["flexod(8)", "flexo.toml(5)", "sudoers(5)", "scontrol(1)"])]
    return _page(name, 8, lines)


def _synopsis(command: CommandHelp) -> str:
    return rf"\fB{_roff(command.name)}\fR {_roff(command.usage)}"


def _foot(others: Iterable[str]) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    yield from _pairs(command_help.EXIT_CODES)
    yield from _environment()
    yield from _see_also(others)


def _environment() -> Iterator[str]:
    yield ".SH ENVIRONMENT"
    yield from _pairs(command_help.ENVIRONMENT)


def _see_also(others: Iterable[str]) -> Iterator[str]:
    yield ".SH SEE ALSO"
    yield _roff(", ".join(others))


def _pairs(terms: Iterable[Term]) -> Iterator[str]:
    for term in terms:
        yield from (".TP", rf"\fB{_roff(term.name)}\fR", _roff(term.text) or r"\&")


def _head(title: str, section: int, summary: str) -> list[str]:
    name = f'.TH "{_roff(title.upper())}" {section} "" "flexo {_roff(flexo.__version__)}" "flexo"'
    return [name, ".SH NAME", rf"{_roff(title)} \- {_roff(summary.rstrip('.'))}"]


def _page(name: str, section: int, lines: Iterable[str]) -> Page:
    return Page(name, section, "\n".join(lines) + "\n")


def _roff(text: str) -> str:
    """`text` escaped for roff: no line is a roff command, and a hyphen can be copied as a hyphen."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Entry point. `arguments`: the folder in which man1, man5 and man8 are made."""
    if len(arguments) != 1:
        sys.stderr.write(f"usage: {Path(__file__).name} FOLDER\n")
        return 2
    for page in [*pages(), *plugin_pages()]:
        path = Path(arguments[0]) / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
