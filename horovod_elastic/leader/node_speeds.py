"""How fast the nodes of a heterogeneous job are, as flexod says, if that can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flexo_protos.v1 import jobs_pb2

SLOWEST, FASTEST = 0.001, 1000.0
"""Speeds beyond are a mistake of whoever declared them."""


class NodeSpeeds:
    """What flexod said last. Without it, and of a node that it does not name, nothing is known."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say`: tells the user."""
        self._say = say
        self._of: dict[str, float] = {}
        self._complaint = ""

    def told(self, said: Iterable[jobs_pb2.NodeSpeed]) -> bool:
        """All that flexod says now; whether that is news.

        With anything in it that cannot be, nothing is known; the user hears of it once.
        """
        speeds = {each.node: each.speed for each in said}
        wrong = {node: speed for node, speed in speeds.items() if not SLOWEST <= speed <= FASTEST}
        before, self._of = self._of, {} if wrong else speeds
        complaint = "" if not wrong else _complaint(wrong)
        if complaint and complaint != self._complaint:
            self._say(complaint)
        self._complaint = complaint
        return self._of != before

    def of(self, node: str) -> float:
        """Of its GPUs; 0.0: not known."""
        return self._of.get(node, 0.0)


def _complaint(wrong: dict[str, float]) -> str:
    node, speed = min(wrong.items())
    return (
        f"flexod says that the speed of {node} is {speed:g}; from {SLOWEST:g} to {FASTEST:g} is allowed: "
        f"all workers take the same part of the batch"
    )
