"""Copies mini-batches to the worker's GPU before training asks for them (Amoeba, section 5.3).

A copy is made in a thread, on a CUDA stream that nothing else uses. So it runs beside the kernels of
training. The copies of the next mini-batches are a cache only: shard_reader.py decides what is consumed,
when a mini-batch is handed out. A copy of samples that go to another worker is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from horovod_elastic.data.containers import replaced

Batch = Any


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A mini-batch whose copy to a device has begun."""

    batch: Batch
    tensors: tuple[torch.Tensor, ...]
    """The tensors of `batch` that were copied."""
    copied: Any
    """The event that ends the copies; a torch.cuda.Event."""


class Copier(Protocol):
    """Copies mini-batches to one device."""

    def copy(self, batch: Batch) -> OnDevice:
        """Begin to copy the tensors of a mini-batch."""
        ...

    def receive(self, arriving: OnDevice) -> Batch:
        """The mini-batch, for the thread and the stream of the caller."""
        ...


class CudaCopier:
    """Copies to one GPU, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        """`device` without an index is the current GPU of the calling thread."""
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)

    def copy(self, batch: Batch) -> OnDevice:
        """Begin to copy all strided tensors; everything else stays as it is.

        Copies from pinned memory do not block. PyTorch keeps that memory until they have ended.
        """
        tensors: list[torch.Tensor] = []

        def to_device(each: Any) -> Any:
            if not isinstance(each, torch.Tensor) or each.layout is not torch.strided:
                return each
            tensors.append(each.to(self._device, non_blocking=True))
            return tensors[-1]

        with torch.cuda.stream(self._stream):
            on_device = replaced(batch, to_device)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return OnDevice(on_device, tuple(tensors), copied)

    def receive(self, arriving: OnDevice) -> Batch:
        """The mini-batch: the caller's stream waits for the copies, and the calling thread does not.

        PyTorch does not use the memory again before that stream has done what it had to do when the last
        reference to the mini-batch went.
        """
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(arriving.copied)
        for tensor in arriving.tensors:
            tensor.record_stream(stream)
        return arriving.batch


class DeviceAhead:
    """Begins copies in one thread. The caller holds them, and so decides how many there are."""

    def __init__(self, most: int, make_copier: Callable[[], Copier]) -> None:
        """`most`: mini-batches on the device beside the one that the script has.

        `make_copier` is called once, in the thread that asks for the first copy.
        """
        self.most = most
        self._make_copier = make_copier
        self._copier: Copier | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flexo-device")

    def copy(self, read: Future[Batch]) -> Future[OnDevice]:
        """Copy a mini-batch as soon as it is read, after all earlier ones.

        The future raises what the reader raised.
        """
        if self._copier is None:
            self._copier = self._make_copier()
        copier = self._copier
        return self._thread.submit(lambda: copier.copy(read.result()))

    def receive(self, arriving: OnDevice) -> Batch:
        """The mini-batch of a copy, for the thread and the stream of the caller."""
        assert self._copier is not None
        return self._copier.receive(arriving)

    def close(self) -> None:
        """Finish the copy under way, and cancel all others."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def device_ahead(name: str, device: torch.device | str | None, most: int) -> DeviceAhead | None:
    """The copies to `device` of the dataset `name`; None if mini-batches stay in host memory.

    Raises ValueError if the device is neither a CPU nor a GPU of CUDA that is there.
    """
    wanted = torch.device("cpu" if device is None else device)
    if wanted.type == "cpu":
        return None
    if wanted.type != "cuda":
        raise ValueError(f"'{name}': device is {str(wanted)!r}; allowed: 'cpu', 'cuda' and 'cuda:N'")
    there_are = torch.cuda.device_count()
    if (wanted.index or 0) >= there_are:
        gpus = f", 'cuda', and 'cuda:0' to 'cuda:{there_are - 1}'" if there_are else ""
        raise ValueError(
            f"'{name}': device is {str(wanted)!r}, and PyTorch finds {there_are} GPUs; "
            f"allowed here: 'cpu'{gpus}"
        )
    return DeviceAhead(most, lambda: CudaCopier(wanted))
