"""A script's progress: the epochs that it has done, out of the number of epochs that its user declared.

Horovod's elastic scripts keep `epoch` in their state, so that a restored state goes on at that epoch. In
scripts of torch.distributed, passes over the training loader count. Only the user knows the number of epochs
(`flexo run --epochs`). Policies use the progress; training does not.
"""

from __future__ import annotations

import math
import os
from typing import Final

EPOCHS_VARIABLE: Final = "FLEXO_EPOCHS"
"""Environment variable: the number of epochs that the script trains."""


def declare(text: str) -> None:
    """Set the number of epochs for all agents, satellites and workers. Raises ValueError if it is wrong."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"--epochs={text}: a whole number from 1 is allowed")
    os.environ[EPOCHS_VARIABLE] = text


def of(state: object) -> float:
    """The part of the declared epochs that `state` has done, 0 to 1; 0 if it is not known."""
    epoch = getattr(state, "epoch", None)
    if isinstance(epoch, bool) or not isinstance(epoch, int | float) or not math.isfinite(epoch):
        return 0.0
    return of_epochs(epoch)


def of_epochs(done: float) -> float:
    """The part of the declared epochs that `done` epochs are, 0 to 1; 0 if none are declared."""
    declared = os.environ.get(EPOCHS_VARIABLE, "")
    if not declared.isdigit() or int(declared) < 1:
        return 0.0
    return min(1.0, max(0.0, done / int(declared)))
