"""The name of the nodes with a label, for one queue: "flex@inference"; "flex" for nodes without one."""

from __future__ import annotations

from typing import Final

_AT: Final = "@"


def nodes_of(queue: str, label: str) -> str:
    """The name of the nodes with this label, for this queue."""
    return f"{queue}{_AT}{label}" if label else queue


def split(nodes: str) -> tuple[str, str]:
    """The inverse: the queue and the label; "" for nodes without one."""
    queue, _, label = nodes.partition(_AT)
    return queue, label
