"""Numbers of workers that a script reads once, before its training loop, and uses in it.

Only the simple case is found: a name that is assigned from the number itself, in the function of the loop or
in its module, and not within the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from horovod_elastic.script_check.findings import Finding, Level
from horovod_elastic.script_check.ranks import pairs
from horovod_elastic.script_check.rules import has_backward
from horovod_elastic.script_check.tree import Place

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FINE_IN = frozenset(
    ["DataLoader", "StatefulDataLoader", "DistributedSampler", "print", "debug", "info", "warning", "error"]
)
"""Calls in which the first number does no harm: flexo deals the samples out itself, or it is only shown."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A name that is assigned from the number of workers. `home`: its function, or None for a module."""

    file: str
    home: ast.AST | None
    name: str


def stale_sizes(found: Sequence[Place]) -> Iterator[Finding]:
    """The first use of each such number in a training loop."""
    read = {each for place in found for each in _assigned(place) if _training_loop(place) is None}
    others = {each for place in found for each in _assigned(place, of_size=False)}
    told: set[_Read] = set()
    for place in found:
        use = place.node
        if not isinstance(use, ast.Name) or not isinstance(use.ctx, ast.Load):
            continue
        known = _known_as(place, use.id, read, others)
        loop = _training_loop(place)
        if known is None or known in told or loop is None or _is_fine(place, loop):
            continue
        if _is_bound_in(loop, use.id):
            continue
        told.add(known)
        what = (
            f"{use.id} is the number of workers as it was before the loop, and stays so after a resize. Read"
            " it where you use it: dist.get_world_size()"
        )
        yield Finding(place.source.name, place.line, "stale-size", what, Level.HINT)


def _assigned(place: Place, *, of_size: bool = True) -> Iterator[_Read]:
    """The names that a node assigns from the number of workers; else all other names that it binds."""
    node = place.node
    home = _home(place)
    if isinstance(node, ast.arg):
        if not of_size:
            yield _Read(place.source.name, home, node.arg)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            for name, value in pairs(target, node.value):
                if place.ranks.asks_for_size(value) is of_size:
                    yield _Read(place.source.name, home, name)


def _known_as(place: Place, name: str, read: set[_Read], others: set[_Read]) -> _Read | None:
    """The number that a name stands for here; None if it stands for something else, or may."""
    for home in (_home(place), None):
        here = _Read(place.source.name, home, name)
        if here in others:
            return None
        if here in read:
            return here
    return None


def _home(place: Place) -> ast.AST | None:
    return next((outer for outer in reversed(place.around) if isinstance(outer, _FUNCTIONS)), None)


def _training_loop(place: Place) -> ast.For | ast.While | None:
    """The outermost loop around a node that trains."""
    return next((loop for loop in reversed(place.loops()) if has_backward(loop)), None)


def _is_fine(place: Place, loop: ast.AST) -> bool:
    inside = place.around[place.around.index(loop) :]
    return any(_last_name(each.func) in _FINE_IN for each in inside if isinstance(each, ast.Call))


def _last_name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_bound_in(loop: ast.AST, name: str) -> bool:
    names = (each for each in ast.walk(loop) if isinstance(each, ast.Name) and each.id == name)
    return any(isinstance(each.ctx, ast.Store) for each in names)
