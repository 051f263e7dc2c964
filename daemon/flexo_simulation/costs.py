"""What starting and resizing cost a job: seconds in which it holds its GPUs and does not train.

The values are settings: measured with `make bench-runtime` for flexo itself, or those that a paper charges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexo.model.training import Share
from flexo.policies.payoff import PAUSE_S, START_S


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds without training. While they pass, another change begins to pay anew."""

    start_s: float = 0.0
    """At the first start, and at each one after a preemption."""
    resize_s: float = 0.0
    """At any change of where its workers are while it runs."""
    join_s: float | None = None
    """Where it only gains workers; None: `resize_s`."""
    leave_s: float | None = None
    """Where it only loses workers; None: `resize_s`."""

    def of_change(self, before: Sequence[Share], after: Sequence[Share]) -> float:
        """What going from `before` to `after` costs; nothing where they are the same, or nothing is left."""
        if not after:
            return 0.0
        if not before:
            return self.start_s
        had = {share.node: share.workers for share in before}
        has = {share.node: share.workers for share in after}
        if had == has:
            return 0.0
        nodes = had.keys() | has.keys()
        joined = any(has.get(node, 0) > had.get(node, 0) for node in nodes)
        left = any(has.get(node, 0) < had.get(node, 0) for node in nodes)
        if joined and left:
            return self.resize_s
        special = self.join_s if joined else self.leave_s
        return self.resize_s if special is None else special


POLLUX: Final = Costs(start_s=30.0, resize_s=30.0)
"""As the simulator of Pollux charges (OSDI 2021, section 5.3): 30 s at the first start too."""

MEASURED: Final = Costs(start_s=START_S, resize_s=PAUSE_S)
"""What flexo's own jobs pay, as `make bench-runtime` found it with 11.8 million parameters (docs/resize.md).

A resize stands still for 0.09 s; the new workers start while the others train. A start is what stopping,
writing a checkpoint and starting anew took there. Both grow with the model: say your own.
"""
