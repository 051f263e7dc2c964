"""How wrong a speed may be that was never tried: relative standard errors.

The figures are how far `allreduce.fit` was off for the six applications that Pollux' authors measured
(docs/scalability.md, "What is not known"); nothing but such errors is calculated from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

PER_DOUBLING: Final = 0.12
"""For each factor of two between the number of workers and the nearest that was seen."""
ANOTHER_BATCH: Final = 0.13
"""Of a number of workers that was seen, with another batch."""
NEVER_WITHIN: Final = 0.2
"""Of several workers on one node, where only single ones were seen."""
NEVER_BETWEEN: Final = 0.8
"""Of workers on several nodes, where no exchange between nodes was seen."""


def of_size(workers: int, seen: Iterable[int]) -> float:
    """Of so many workers, when only the numbers in `seen` (at least one) have run."""
    return PER_DOUBLING * min(abs(math.log2(workers / count)) for count in seen)
