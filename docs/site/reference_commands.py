"""The commands as Markdown: a section for each, made of its own help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import command_help
from command_help import CommandHelp, Term
from markdown_text import cell, code, escaped, table


def parts() -> Mapping[str, str]:
    """What a page can ask for, by name."""
    flexo = command_help.flexo()
    return {
        "commands of flexo": _overview(flexo),
        "help of flexo": "\n\n".join(text for command in flexo.commands for text in _sections(command)),
        "options of flexod": _terms("option", command_help.flexod().options),
        "exit codes of flexo": _terms("exit code", command_help.EXIT_CODES),
    }


def _overview(flexo: CommandHelp) -> str:
    rows = ((f"[{code(each.name)}](#{anchor(each)})", cell(each.summary)) for each in _leaves(flexo))
    return table(("command", "what it does"), rows)


def _leaves(command: CommandHelp) -> Iterator[CommandHelp]:
    for each in command.commands:
        yield from _leaves(each) if each.commands else (each,)


def _sections(command: CommandHelp) -> Iterator[str]:
    for each in _leaves(command) if command.commands else (command,):
        yield f"### {each.name} {{#{anchor(each)}}}"
        if each.verbatim:
            yield f"```text\n{each.verbatim}\n```"
            continue
        yield f"```text\n{each.name} {each.usage}\n```"
        yield escaped(each.text)
        if each.options:
            yield _terms("option", each.options)


def anchor(command: CommandHelp) -> str:
    """Where a command's section is on the page."""
    return command.name.replace(" ", "-")


def _terms(head: str, terms: Iterable[Term]) -> str:
    return table((head, ""), ((code(term.name), cell(term.text)) for term in terms))
