"""Random numbers in the worker processes of a DataLoader, in reproducible mode: anew for each batch.

Such a process draws random numbers for one batch after the other. After a move of its virtual worker,
another process loads only the batches that are left. So the generators are seeded before each batch, from the
DataLoader's own seed and the samples of the batch.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from horovod_elastic.worker.ddp import torchs_own


class BatchSeeds:
    """The first function that runs in a worker process. `own`: that of the script, if there is one."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker_id: int) -> None:
        """Prepare this worker process."""
        if self._own is not None:
            self._own(worker_id)
        torchs_own.before_every_fetch(functools.partial(seed, get_worker_info().seed - worker_id))


def seed(of_loader: int, samples: Any) -> None:
    """Seed this process's generators for a batch of these samples."""
    digest = hashlib.sha256(f"{of_loader} {samples}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    random.seed(number)
    torch.manual_seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number % 2**32)
