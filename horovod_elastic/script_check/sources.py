"""The files of a script: itself, and the modules beside it that it imports, as syntax trees."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """One file. `name`: as the user would name it."""

    name: str
    tree: ast.Module
    imported: Mapping[str, str]
    """What names in the file stand for: "dist" for "torch.distributed"."""
    stars: tuple[str, ...]
    """The modules of which everything is imported."""

    def full(self, expression: ast.expr | None) -> str:
        """The full name that a name or a chain of attributes stands for; "" for any other expression."""
        if isinstance(expression, ast.Name):
            return self.imported.get(expression.id, expression.id)
        if isinstance(expression, ast.Attribute):
            begin = self.full(expression.value)
            return f"{begin}.{expression.attr}" if begin else ""
        return ""


def read(script: Path) -> list[Source]:
    """The script, and each module beside it that one of the files imports. Raises ValueError or OSError.

    Modules that cannot be parsed are left out. Installed packages are never read.
    """
    found: dict[Path, Source] = {}
    waiting = [script.resolve()]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            if found:
                continue
            where = f"{script}:{error.lineno}" if isinstance(error, SyntaxError) else str(script)
            raise ValueError(f"{where}: no Python of this version ({error})") from error
        found[path] = _source(path, script, tree)
        waiting += _modules_beside(path, tree, script.resolve().parent)
    return list(found.values())


def _source(path: Path, script: Path, tree: ast.Module) -> Source:
    name = os.path.relpath(path, script.resolve().parent)
    imported, stars = _imported(tree)
    return Source(str(script.parent / name), tree, imported, tuple(stars))


def _imported(tree: ast.Module) -> tuple[dict[str, str], list[str]]:
    names: dict[str, str] = {}
    stars: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.partition(".")[0]
                names[each.asname or first] = each.name if each.asname else first
        elif isinstance(node, ast.ImportFrom):
            begin = "." * node.level + (node.module or "")
            for each in node.names:
                if each.name == "*":
                    stars.append(begin)
                else:
                    names[each.asname or each.name] = f"{begin}.{each.name}"
    return names, stars


def _modules_beside(path: Path, tree: ast.Module, folder: Path) -> Iterator[Path]:
    """The files of the modules that a file imports, where they are beside the script or in its package."""
    top = folder
    while (top / "__init__.py").exists() and top != top.parent:
        top = top.parent
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _files_of(each.name, [folder, top])
        elif isinstance(node, ast.ImportFrom):
            roots = [folder, top] if node.level == 0 else [path.parents[node.level - 1]]
            begin = node.module or ""
            yield from _files_of(begin, roots)
            for each in node.names:
                yield from _files_of(f"{begin}.{each.name}".strip("."), roots)


def _files_of(module: str, roots: list[Path]) -> Iterator[Path]:
    if not module:
        return
    for root in dict.fromkeys(roots):
        path = root.joinpath(*module.split("."))
        for file in (path.with_suffix(".py") if path.suffix == "" else path, path / "__init__.py"):
            if file.is_file():
                yield file.resolve()
