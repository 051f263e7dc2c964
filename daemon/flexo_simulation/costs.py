"""The costs of starting and resizing a job: seconds in which it holds its GPUs and does not train.

The values are settings: measured with `make bench-runtime` for flexo itself, or those that a paper charges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexo.model.training import NodeShare
from flexo.policies.resize_benefit import PAUSE_S, START_S


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds without training. If another change follows while they pass, they start anew."""

    start_s: float = 0.0
    """The cost of the first start, and of each start after a preemption."""
    resize_s: float = 0.0
    """The cost of any change of where workers are while the job runs."""
    join_s: float | None = None
    """The cost of a change that only adds workers; None: `resize_s`."""
    leave_s: float | None = None
    """The cost of a change that only removes workers; None: `resize_s`."""

    def of_change(self, before: Sequence[NodeShare], after: Sequence[NodeShare]) -> float:
        """The cost of going from `before` to `after`; 0 if they are the same, or nothing is left."""
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
"""The costs in the simulator of Pollux (OSDI 2021, section 5.3): 30 s at the first start, too."""

MEASURED: Final = Costs(start_s=START_S, resize_s=PAUSE_S)
"""The costs of flexo's own jobs, as `make bench-runtime` measured them with 11.8 million parameters
(docs/evidence/resize-cost.md).

At a resize, a job stands still for 0.09 s; new workers start while the others train. The cost of a start is
the time for stopping, writing a checkpoint and starting anew. Both grow with the model: set your own
values."""
