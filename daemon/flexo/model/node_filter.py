"""The nodes that a job accepts: by its features, by its exclusions, and by those named for its growth.

The features of a job are an expression such as ``a100``, ``a100&ib``, ``a100|h100`` or ``(a100&ib)|h100``.
Only what one node can meet by itself is read here. An expression about several nodes (``[rack1|rack2]``,
``a100*2``), or one that mixes & and | without parentheses, is left to the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from flexo.model.nodes import Node

_TOKEN = re.compile(r"[()&|]|[^()&|\s]+")
_OF_SEVERAL_NODES = re.compile(r"[\[\]*]")
_DEEPEST: Final = 8
"""The most parentheses within each other that are read. Users write these expressions."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Features, or groups of features, of which a node needs all or any."""

    members: tuple[_Group | str, ...]
    any_of: bool

    def is_met_by(self, features: frozenset[str]) -> bool:
        """Whether a node with these features is accepted."""
        met = (
            each in features if isinstance(each, str) else each.is_met_by(features) for each in self.members
        )
        return any(met) if self.any_of else all(met)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes that a job accepts."""

    features: str = ""
    """The expression of the features that a node must have; "": any node will do."""
    excluded: frozenset[str] = frozenset()
    """The nodes that the job must not have."""
    only: frozenset[str] = frozenset()
    """The nodes to which its owner lets it grow; empty: to any."""

    def permits(self, node: Node) -> bool:
        """Whether the job accepts the node. True if that cannot be read from the expression."""
        if node.name in self.excluded or (self.only and node.name not in self.only):
            return False
        group = _read(self.features) if self.features else None
        return group is None or group.is_met_by(node.features)

    def why_not(self, node: Node) -> str:
        """The reason why the job does not accept the node, after "but"; "" if it does."""
        if self.permits(node):
            return ""
        if node.name in self.excluded:
            return "the job excludes this node"
        if self.only and node.name not in self.only:
            return f"its owner lets it grow on {', '.join(sorted(self.only))} only"
        return f"the job requires other features: {self.features}"


ANY_NODE: Final = NodeFilter()


@lru_cache(maxsize=256)
def _read(expression: str) -> _Group | None:
    """The expression, as far as one node can meet it; None: it cannot be read."""
    if _OF_SEVERAL_NODES.search(expression):
        return None
    tokens = _TOKEN.findall(expression)
    try:
        group, end = _group(tokens, 0, 0)
    except (IndexError, ValueError):
        return None
    return group if end == len(tokens) else None


def _group(tokens: Sequence[str], at: int, depth: int) -> tuple[_Group, int]:
    """The group that begins at a token, and the index of the token after it. Raises ValueError and IndexError
    where the tokens are none."""
    members: list[_Group | str] = []
    operators: set[str] = set()
    while True:
        member, at = _member(tokens, at, depth)
        members.append(member)
        if at == len(tokens) or tokens[at] == ")":
            break
        operators.add(tokens[at])
        at += 1
    if len(operators) > 1 or operators - {"&", "|"}:
        raise ValueError
    return _Group(tuple(members), any_of=operators == {"|"}), at


def _member(tokens: Sequence[str], at: int, depth: int) -> tuple[_Group | str, int]:
    token = tokens[at]
    if token == "(" and depth < _DEEPEST:
        group, end = _group(tokens, at + 1, depth + 1)
        if tokens[end] != ")":
            raise ValueError
        return group, end + 1
    if token in ("(", ")", "&", "|"):
        raise ValueError
    return token, at + 1
