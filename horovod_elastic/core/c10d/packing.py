"""Packs tensors that are reduced together into one flat buffer, which is kept for the next time.

Training steps reduce the same tensors again and again, so the views into the buffer are kept as well.

Copying and scaling use few calls and no helper threads. Each call releases Python's lock and has to get it
back from the training thread. PyTorch works on large tensors with a team of threads. Here, that team would be
one more beside the training thread's own team, on the same cores, and slower. So tensors are split into parts
just small enough for one thread, and one call works on all parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from horovod_elastic.core.c10d import torchs_own

PART = 32_704
"""Elements of a part. From 32,768 elements on, PyTorch works on a tensor in memory with several threads."""
KEPT_BYTES = 128 << 20
"""The limit of a kept buffer, in bytes. Larger buffers are not kept. The value is Horovod's own fusion
threshold."""
KEPT_PACKINGS = 64
"""The number of combinations of tensors whose views are kept."""

Shapes = tuple[tuple[int, ...], ...]


class Packing:
    """A flat buffer with one view per tensor."""

    def __init__(self, flat: torch.Tensor, shapes: Shapes) -> None:
        """`flat`: a buffer with exactly as many elements as tensors of these shapes have together."""
        self.flat = flat
        sizes = [math.prod(shape) for shape in shapes]
        self.views = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
        self._parts = parts(self.views)

    def fill(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Copy these tensors into the buffer, one per view; None is zeros. Converts to the buffer's type."""
        given = [tensor for tensor in tensors if tensor is not None]
        if len(given) < len(tensors):
            torchs_own.zero_each(self._parts)
        if given:
            torchs_own.copy_each(self._parts_of_given(tensors), parts(given))

    def scale(self, factor: float) -> None:
        """Multiply all elements by `factor`."""
        scale(self._parts, factor)

    def copy_to(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Copy the buffer into these tensors, one per view; None is skipped. Converts to their type."""
        given = [tensor for tensor in tensors if tensor is not None]
        if given:
            torchs_own.copy_each(parts(given), self._parts_of_given(tensors))

    def _parts_of_given(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        if all(tensor is not None for tensor in tensors):
            return self._parts
        return parts(view for view, tensor in zip(self.views, tensors, strict=True) if tensor is not None)


class Packings:
    """The packings that were used lately."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._packings: dict[tuple[Shapes, torch.dtype, torch.device], Packing] = {}

    def of(self, shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Packing:
        """A packing for tensors of these shapes. It may overwrite the values in another packing."""
        key = (shapes, dtype, device)
        packing = self._packings.get(key)
        if packing is None:
            size = sum(map(math.prod, shapes))
            if size * dtype.itemsize > KEPT_BYTES:
                return Packing(torch.empty(size, dtype=dtype, device=device), shapes)
            if len(self._packings) >= KEPT_PACKINGS:
                self._packings.clear()
            packing = self._packings[key] = Packing(self._buffer(size, dtype, device), shapes)
        return packing

    def _buffer(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        buffer = self._buffers.get((dtype, device))
        if buffer is None or buffer.numel() < size:
            # Views of the smaller buffer would keep it alive.
            self._packings = {key: kept for key, kept in self._packings.items() if key[1:] != (dtype, device)}
            buffer = self._buffers[dtype, device] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size]


def parts(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, with large tensors in memory split into parts."""
    found = []
    for tensor in tensors:
        if tensor.numel() <= PART or tensor.is_cuda:
            found.append(tensor)
        else:
            found.extend(tensor.view(-1).split(PART))
    return found


def scale(tensors: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply each tensor in place. Half-precision tensors are computed in single precision.

    Integers are computed in double precision and rounded towards zero.
    """
    if factor == 1.0:
        return
    dtype = tensors[0].dtype
    if dtype in (torch.float32, torch.float64):
        torchs_own.multiply_each(tensors, factor)
        return
    wide = torch.float32 if dtype.is_floating_point else torch.float64
    # PyTorch would round the factor to half precision.
    torchs_own.copy_each(tensors, [tensor.to(wide).mul_(factor) for tensor in tensors])
