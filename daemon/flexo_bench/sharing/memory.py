"""How fast an opportunistic job gives 16 GB of cache back, and how fast it grows by 16 GB (AntMan, 3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

BLOCKS, BLOCK_BYTES = 64, 250 * 10**6
"""16 GB, in blocks as large as those of large layers."""
LEFT = 1 << 30
"""Bytes of a limit under which no cache can stay."""


class Obeys(Protocol):
    """The memory of the opportunistic job (horovod_elastic.sharing.layer.memory)."""

    def obey(self, limit: int) -> bool:
        """Hold at most `limit` bytes."""


def times_ms(
    memory: Obeys, allocate: Callable[[], object], low: int, high: int, rounds: int
) -> Iterator[tuple[float, float]]:
    """For each round, milliseconds of the trim and of the growth.

    `allocate` makes 16 GB of tensors and waits until the GPU has them. `low` and `high`: limits without and
    with room for these tensors.
    """
    allocate()  # its result is dropped: from now on, all of it is cache
    for _ in range(rounds):
        began = time.perf_counter()
        memory.obey(low)
        trimmed = time.perf_counter()
        memory.obey(high)
        allocate()
        yield (trimmed - began) * 1e3, (time.perf_counter() - trimmed) * 1e3


def on_this_gpu(rounds: int) -> Iterator[tuple[float, float]]:
    """`times_ms` with the layer's memory on the current GPU."""
    from horovod_elastic.sharing.law import CONTEXT
    from horovod_elastic.sharing.layer.memory import Memory
    from horovod_elastic.sharing.layer.place import Cuda

    def allocate() -> None:
        blocks = [torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda") for _ in range(BLOCKS)]
        torch.cuda.synchronize()
        del blocks

    torch.cuda.init()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    yield from times_ms(Memory(Cuda()), allocate, CONTEXT + LEFT, total, rounds)
    torch.cuda.empty_cache()
