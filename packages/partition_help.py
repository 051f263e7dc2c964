"""The help of flexo-partition as data, for its manual page.

The help is parsed from the program's source, which is not imported: flexo-partition is installed as one file
and imports nothing of flexo.
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
    """Usage with the program's name, in one line."""
    summary: str
    text: str
    exit_codes: tuple[Term, ...]
    config: str
    """Path of the configuration file."""
    keys: tuple[Term, ...]
    """Configuration keys, written `key = default`; a key without a default stands alone."""


def flexo_partition() -> PartitionHelp:
    """Read the help from the docstrings and constants in the program's source."""
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
    """Fields of the class Settings, each with the docstring after it."""
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
