"""Many tensors in one: what is reduced together lies in one flat buffer, which is kept for the next time.

A training step asks for the same tensors again and again, so the views into the buffer are kept as well.

Copying and scaling take few calls and no helper threads. Each call gives Python's lock away and has to get it
back from the thread that trains; and PyTorch works on large tensors with a team of threads, here one more
than the training thread's own, on the same cores: it gets slower by that. So tensors go in parts just small
enough for one thread, all parts in one call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

PART = 32_704
"""Elements; from 32,768 on PyTorch works on a tensor in memory with several threads."""
KEPT_BYTES = 128 << 20
"""Larger buffers are not kept: one is Horovod's own fusion threshold."""
KEPT_PACKINGS = 64
"""How many combinations of tensors have their views kept."""

Shapes = tuple[tuple[int, ...], ...]


class Packing:
    """A flat buffer with a view for each of some tensors."""

    def __init__(self, flat: torch.Tensor, shapes: Shapes) -> None:
        """`flat` has just as many elements as tensors of these shapes have together."""
        self.flat = flat
        sizes = [math.prod(shape) for shape in shapes]
        self.views = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
        self._parts = parts(self.views)

    def fill(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """From these tensors, one a view; None is zeros. Converts to the buffer's type."""
        given = [tensor for tensor in tensors if tensor is not None]
        if len(given) < len(tensors):
            torch._foreach_zero_(self._parts)
        if given:
            torch._foreach_copy_(self._parts_of_given(tensors), parts(given))

    def scale(self, factor: float) -> None:
        """Multiply everything."""
        scale(self._parts, factor)

    def copy_to(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Into these tensors, one a view; None is left out. Converts to the tensors' type."""
        given = [tensor for tensor in tensors if tensor is not None]
        if given:
            torch._foreach_copy_(parts(given), self._parts_of_given(tensors))

    def _parts_of_given(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        if all(tensor is not None for tensor in tensors):
            return self._parts
        return parts(view for view, tensor in zip(self.views, tensors, strict=True) if tensor is not None)


class Packings:
    """Those that were used lately."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._packings: dict[tuple[Shapes, torch.dtype, torch.device], Packing] = {}

    def of(self, shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Packing:
        """One for tensors of these shapes; what another one holds may be overwritten."""
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
            # Views of the smaller one would keep it.
            self._packings = {key: kept for key, kept in self._packings.items() if key[1:] != (dtype, device)}
            buffer = self._buffers[dtype, device] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size]


def parts(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, but large ones in memory in parts."""
    found = []
    for tensor in tensors:
        if tensor.numel() <= PART or tensor.is_cuda:
            found.append(tensor)
        else:
            found.extend(tensor.view(-1).split(PART))
    return found


def scale(tensors: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply each in place. Halves are computed in single precision.

    Integers are computed in double precision and rounded towards zero.
    """
    if factor == 1.0:
        return
    dtype = tensors[0].dtype
    if dtype in (torch.float32, torch.float64):
        torch._foreach_mul_(tensors, factor)
        return
    wide = torch.float32 if dtype.is_floating_point else torch.float64
    # PyTorch would round the factor to a half.
    torch._foreach_copy_(tensors, [tensor.to(wide).mul_(factor) for tensor in tensors])
