"""How tables and pictures name and colour the rivals, and write several values as one text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexo_bench.runtime.results import CORE_TORCH, OURS, RESTART, STOCK, median

RIVALS = (STOCK, RESTART, OURS, CORE_TORCH)
WORDS = {
    STOCK: "stock elastic Horovod", RESTART: "stop, checkpoint, restart",
    OURS: "flexo, Horovod's core", CORE_TORCH: "flexo, core on torch",
}  # fmt: skip
COLOURS = {STOCK: "#e08a3c", RESTART: "#8c8c8c", OURS: "#1f4e79", CORE_TORCH: "#3d8b40"}


def spread(values: Sequence[float], digits: int = 3) -> str:
    """A text: median (least to most)."""
    found = sorted(value for value in values if math.isfinite(value))
    if not found:
        return "-"
    return f"{median(found):.{digits}f} ({found[0]:.{digits}f} to {found[-1]:.{digits}f})"
