"""The name of the nodes with a label, for one queue: "flex@inference"; "flex" for nodes without one."""

from __future__ import annotations

from typing import Final

_AT: Final = "@"


def nodes_of(queue: str, label: str) -> str:
    """The name of the nodes with this label, for this queue."""
    return f"{queue}{_AT}{label}" if label else queue


def label_of(nodes: str, queue: str) -> str:
    """The inverse: the label in a name that `nodes_of` has made for this queue; "" if there is none."""
    prefix = f"{queue}{_AT}"
    return nodes.removeprefix(prefix) if nodes.startswith(prefix) else ""
