"""The device on which a job trains, as the layer sees it: a GPU, or a pretended one on the CPU."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Protocol

import torch

from horovod_elastic.sharing import relocation
from horovod_elastic.sharing.law import CONTEXT
from horovod_elastic.sharing.layer import universal

COUNTING_SHARE = 1e-3
"""The share of the time that counting tensors may take where PyTorch does not count them."""


class Place(Protocol):
    """A device. Bytes throughout."""

    kind: str

    def used(self) -> int:
        """What this process holds: tensors and cache."""

    def peak(self) -> int:
        """The most that this process has held."""

    def limit(self, limit: int) -> None:
        """Have allocations beyond `limit` fail, if the device can do that."""

    def trim(self) -> None:
        """Give back what is cached (AntMan, section 3.2: freeing cache, level 1)."""

    def drain(self) -> None:
        """Wait until nothing of this process's work is on the device."""


class Cuda:
    """A GPU of this process: its current one."""

    kind = "cuda"

    def used(self) -> int:
        """What PyTorch reserved, and the context."""
        return int(torch.cuda.memory_reserved()) - universal.pinned() + CONTEXT

    def peak(self) -> int:
        """The most that PyTorch reserved, and the context."""
        with_pool = int(torch.cuda.max_memory_reserved()) - universal.pinned()
        return max(with_pool, universal.peak_before()) + CONTEXT

    def limit(self, limit: int) -> None:
        """Lower or raise the fraction of the memory that PyTorch may reserve."""
        physical = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        counted = limit - CONTEXT + universal.pinned()
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, counted / physical)))

    def trim(self) -> None:
        """Empty the cache of PyTorch's allocator."""
        torch.cuda.empty_cache()

    def drain(self) -> None:
        """Wait for all streams."""
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()


class Pretended:
    """A device that exists by declaration. Its memory is that of the tensors on the CPU, counted.

    Counting takes up to a thousandth of the time; in between, the last count holds.
    """

    kind = "cpu"

    def __init__(self) -> None:
        self._count, self._most, self._next = 0, 0, 0.0
        self._libc = ctypes.CDLL(None)

    def used(self) -> int:
        """Bytes of all tensors, as counted last."""
        if time.monotonic() >= self._next:
            self.count()
        return self._count

    def count(self) -> int:
        """Bytes of all tensors, counted now."""
        began = time.monotonic()
        self._count = relocation.live_bytes("cpu")
        self._most = max(self._most, self._count)
        ended = time.monotonic()
        self._next = ended + (ended - began) / COUNTING_SHARE
        return self._count

    def peak(self) -> int:
        """The largest count."""
        self.used()
        return self._most

    def limit(self, limit: int) -> None:
        """Nothing: the cap is checked at the gate."""

    def trim(self) -> None:
        """Collect garbage, and give free memory back to the system."""
        gc.collect()
        if hasattr(self._libc, "malloc_trim"):
            self._libc.malloc_trim(0)
        self._next = 0.0

    def drain(self) -> None:
        """Nothing: work on the CPU is done when its call returns."""


def here() -> Place:
    """The device of this process: a GPU if it uses one."""
    return Cuda() if torch.cuda.is_initialized() else Pretended()
