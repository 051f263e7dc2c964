"""How far a script is: the epoch that its state stands in, of those that its user declared.

Horovod's elastic scripts keep `epoch` in their state, so that a restored one goes on where it was; how many
there will be only the user knows (`flexo run --epochs`). Policies go by it; training never does.
"""

from __future__ import annotations

import math
import os
from typing import Final

EPOCHS_VARIABLE: Final = "FLEXO_EPOCHS"
"""How many epochs the script trains."""


def declare(text: str) -> None:
    """So many epochs, for all agents, satellites and workers. Raises ValueError for no number of them."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"--epochs={text}: a whole number from 1 is allowed")
    os.environ[EPOCHS_VARIABLE] = text


def of(state: object) -> float:
    """The part that is done, 0 to 1; 0 where it is not known."""
    declared = os.environ.get(EPOCHS_VARIABLE, "")
    epoch = getattr(state, "epoch", None)
    if not declared.isdigit() or int(declared) < 1 or isinstance(epoch, bool):
        return 0.0
    if not isinstance(epoch, int | float) or not math.isfinite(epoch):
        return 0.0
    return min(1.0, max(0.0, epoch / int(declared)))
