"""Walks the syntax trees of a script: each node with what is around it, without code that nobody calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from horovod_elastic.script_check.ranks import Ranks
from horovod_elastic.script_check.sources import Source

_HOLDS = re.compile(
    r"__name__|cuda|((is|use)_)?(dist|distributed|ddp)(_(mode|run|training|enabled))?"
    r"|(\w+_)?is_(available|initialized|available_and_initialized)",
    re.IGNORECASE,
)
"""Names in conditions that hold in a job with several workers."""
_DYNAMIC = {"globals", "getattr", "locals", "eval", "exec"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a file, and the nodes around it, from the outermost."""

    source: Source
    ranks: Ranks
    node: ast.AST
    around: tuple[ast.AST, ...]

    @property
    def line(self) -> int:
        """The line of the node."""
        return int(getattr(self.node, "lineno", 1))

    def conditional(self) -> bool:
        """Whether the node is carried out only if a condition holds of which the check knows nothing."""
        for outer in self.around:
            if isinstance(outer, ast.If | ast.IfExp) and not self._holds(outer.test):
                return True
        return False

    def loops(self) -> list[ast.For | ast.While]:
        """The loops around the node in its function, from the innermost."""
        found: list[ast.For | ast.While] = []
        for outer in reversed(self.around):
            if isinstance(outer, (*_FUNCTIONS, ast.Lambda)):
                break
            if isinstance(outer, ast.For | ast.While):
                found.append(outer)
        return found

    def _holds(self, test: ast.expr) -> bool:
        nodes = list(ast.walk(test))
        names = [name for node in nodes if (name := _last_name(node))]
        return any(_HOLDS.fullmatch(name) for name in names) or any(
            self.ranks.is_rank(node) or self.ranks.is_size(node) for node in nodes
        )


def places(sources: Sequence[Source]) -> Iterator[Place]:
    """All nodes of these files but those of functions whose names nobody uses."""
    used = _names_used(sources)
    for source in sources:
        ranks = Ranks(source)
        waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(source.tree, ())]
        while waiting:
            node, around = waiting.pop(0)
            if isinstance(node, _FUNCTIONS) and len(around) == 1 and _unused(node, used):
                continue
            yield Place(source, ranks, node, around)
            waiting += [(child, (*around, node)) for child in ast.iter_child_nodes(node)]


def _unused(function: ast.FunctionDef | ast.AsyncFunctionDef, used: set[str]) -> bool:
    return not function.decorator_list and function.name not in used and not used & _DYNAMIC


def _names_used(sources: Sequence[Source]) -> set[str]:
    return {name for source in sources for node in ast.walk(source.tree) if (name := _last_name(node))} | {
        name.rpartition(".")[2] for source in sources[:1] for name in source.imported.values()
    }


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
