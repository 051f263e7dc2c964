"""Relative standard errors of speeds that were never tried.

The figures are the errors of `allreduce.fit` for the six applications that Pollux' authors measured
(docs/explanation/scalability.md, "What is not known"). Nothing but such errors is calculated from these
figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

PER_DOUBLING: Final = 0.12
"""The error for each factor of two between the number of workers and the nearest observed number."""
ANOTHER_BATCH: Final = 0.13
"""The error for an observed number of workers, with another batch."""
NEVER_WITHIN: Final = 0.2
"""The error for several workers on one node, if only single workers were observed."""
NEVER_BETWEEN: Final = 0.8
"""The error for workers on several nodes, if no exchange between nodes was observed."""


def of_size(workers: int, seen: Iterable[int]) -> float:
    """The error for this number of workers, if only the numbers in `seen` (at least one) have run."""
    return PER_DOUBLING * min(abs(math.log2(workers / count)) for count in seen)
