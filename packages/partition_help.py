"""What flexo-partition says of itself, as data: its manual page is made of it.

Read from its source, which is no module of ours: it is installed as it is and imports nothing of flexo's.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from command_help import Term

SOURCE = Path(__file__).resolve().parents[1] / "slurm_plugin" / "flexo_partition.py"
_CODE = re.compile(r"(\d) (.+?)(?:, (?=\d)|\.)")


@dataclass(frozen=True, slots=True)
class PartitionHelp:
    """The helper that edits the partitions of lent servers."""

    usage: str
    """With its name, in one line."""
    summary: str
    text: str
    exit_codes: tuple[Term, ...]
    config: str
    """The path of its configuration."""
    keys: tuple[Term, ...]
    """As they are written with their defaults; alone where there is none."""


def flexo_partition() -> PartitionHelp:
    """What stands in its docstrings and constants."""
    module = ast.parse(SOURCE.read_text(encoding="utf-8"))
    first, text, codes = (ast.get_docstring(module) or "").split("\n\n")
    words = codes.removeprefix("Exit codes: ").replace("\n", " ")
    return PartitionHelp(
        usage=" ".join(_constant(module, "USAGE").removeprefix("usage: ").split()),
        summary=first.partition(": ")[2],
        text=text,
        exit_codes=tuple(Term(*found) for found in _CODE.findall(words)),
        config=_constant(module, "CONFIG"),
        keys=_keys(module),
    )


def _constant(module: ast.Module, name: str) -> str:
    """The value of `name` in `module`."""
    (found,) = (
        each.value for each in module.body if isinstance(each, ast.Assign) and _is(each.targets[0], name)
    )
    return str(ast.literal_eval(found))


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _keys(module: ast.Module) -> tuple[Term, ...]:
    """Of the class Settings, each with the docstring after it."""
    (settings,) = (each for each in module.body if isinstance(each, ast.ClassDef) and each.name == "Settings")
    found = []
    for field, said in zip(settings.body[1:], settings.body[2:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value:
            default = ast.literal_eval(field.value)
            shown = default if isinstance(default, str) else ", ".join(default)
            assert isinstance(said, ast.Expr), f"{field.target.id} has no docstring"
            written = f"{field.target.id} = {shown}" if shown else field.target.id
            found.append(Term(written, str(ast.literal_eval(said.value))))
    return tuple(found)
