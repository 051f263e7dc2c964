"""The thoroughness of a run: `make test-all` draws all random examples, other runs draw an eighth of them."""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = bool(os.environ.get("FLEXO_THOROUGH"))
LEAST: Final = 5


def examples(number: int) -> int:
    """Number of examples to draw in this run. `number`: the examples of a thorough run."""
    return number if THOROUGH else max(LEAST, number // 8)
