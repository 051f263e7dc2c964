"""Moves live tensors from a device to the host's memory and back, bit by bit, while the script holds
them.

A tensor's storage gives up its memory with `resize_(0)` and gets memory again with `resize_`. The
storage as an object stays. So views, aliases, parameters, gradients and the state of optimizers stay
what they are, and autograd's counts of changes do not move. AntMan (OSDI'20) never moves live tensors;
it frees cache only.

Nobody may use the tensors between `move_out` and `back`: the caller holds the only thread that does.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


class NoRoom(MemoryError):
    """The device has no room for the tensors now. They stay in the host's memory, complete."""


@dataclass(frozen=True, slots=True)
class _Moved:
    storage: Any
    size: int
    copy: Any


class Relocated:
    """Tensors that are in the host's memory. `size`: their bytes."""

    def __init__(self, moved: list[_Moved], buffers: HostBuffers) -> None:
        self._moved, self._buffers = moved, buffers
        self.size = sum(each.size for each in moved)

    def __len__(self) -> int:
        return len(self._moved)

    def back(self) -> None:
        """Move everything back. Raises NoRoom; then everything is still out, and may be moved back
        later.
        """
        try:
            for each in self._moved:
                each.storage.resize_(each.size)
        except RuntimeError as error:  # PyTorch's OutOfMemoryError is one
            for each in self._moved:
                each.storage.resize_(0)
            raise NoRoom(str(error)) from error
        for each in self._moved:
            _bytes_of(each.storage).copy_(each.copy, non_blocking=True)
        _finish(self._moved)
        self._buffers.keep([each.copy for each in self._moved])
        self._moved = []
        self.size = 0


def move_out(device: str, kept: HostBuffers | None = None) -> Relocated:
    """Move all live tensors of a kind of device ("cuda", "cpu") to the host's memory, into blocks of
    `kept`.

    If the host's memory does not suffice, a part of them moves. Storages that PyTorch does not own, that
    other processes share, or that no Python object refers to stay where they are.
    """
    buffers = kept or HostBuffers()
    moved = []
    with torch.no_grad(), contextlib.suppress(MemoryError, RuntimeError):
        for storage in live_storages(device):
            size = storage.nbytes()
            copy = buffers.take(size, pinned=device == "cuda")
            copy.copy_(_bytes_of(storage), non_blocking=True)
            moved.append(_Moved(storage, size, copy))
    _finish(moved)
    for each in moved:
        each.storage.resize_(0)
    return Relocated(moved, buffers)


def live_bytes(device: str) -> int:
    """Bytes of all live tensors of a kind of device that Python objects refer to."""
    return sum(storage.nbytes() for storage in live_storages(device))


def live_storages(device: str) -> list[Any]:
    """The storages behind all tensors of a kind of device that Python objects refer to, each once."""
    found: dict[int, Any] = {}
    for tensor in _tensors():
        with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
            storage = tensor.untyped_storage()
            if _is_ours(storage, device):
                found.setdefault(storage.data_ptr(), storage)
    return list(found.values())


def _tensors() -> Iterator[Any]:
    """All live tensors, and their gradients. A class is asked for, not the object: proxies would answer."""
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            yield each
            with contextlib.suppress(Exception):
                if each.is_leaf and each.grad is not None:
                    yield each.grad


def _is_ours(storage: Any, device: str) -> bool:
    if storage.device.type != device or storage.nbytes() == 0 or not storage.resizable():
        return False
    # On CUDA every storage counts as shared; on the CPU those in shared memory do.
    return storage.data_ptr() != 0 and (device == "cuda" or not storage.is_shared())


def _bytes_of(storage: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _finish(moved: list[_Moved]) -> None:
    if any(each.storage.device.type == "cuda" for each in moved):
        torch.cuda.synchronize()


class HostBuffers:
    """Blocks of the host's memory that are kept from one move to the next: pinning them is slow."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._most, self._size = most_bytes, 0
        self._free: dict[int, list[Any]] = {}

    def take(self, size: int, pinned: bool) -> Any:
        """A block of `size` bytes. Raises RuntimeError or MemoryError if there is no memory."""
        if blocks := self._free.get(size):
            self._size -= size
            return blocks.pop()
        if pinned:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return torch.frombuffer(bytearray(size), dtype=torch.uint8)  # counts as no memory of a device

    def keep(self, blocks: list[Any]) -> None:
        """Keep blocks for the next move, up to the limit."""
        for block in blocks:
            if self._size + block.numel() <= self._most:
                self._size += block.numel()
                self._free.setdefault(block.numel(), []).append(block)
