"""A GPU that is pretended at PyTorch's boundary: a copy arrives only for a stream that waits for it.

A tensor copied to the GPU holds -1 until a stream waits for an event that was recorded after the copy. So a
consumer that does not wait sees wrong numbers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")


class Event:
    def __init__(self) -> None:
        self.before: list[Callable[[], object]] = []

    def record(self, stream: Stream) -> None:
        self.before = list(stream.pending)


class Stream:
    def __init__(self, device: Any = None) -> None:
        self.device = device
        self.pending: list[Callable[[], object]] = []

    def wait_event(self, event: Event) -> None:
        for arrive in event.before:
            arrive()


class PretendedGpu:
    """What was done with the GPU."""

    def __init__(self) -> None:
        self.consumer = Stream()
        """The stream of training."""
        self.copied: list[Any] = []
        self.copied_by: set[str] = set()
        """Names of the threads that have copied."""
        self.used_on: dict[int, Stream] = {}
        """By tensor, the stream that PyTorch knows to use it."""
        self._now = threading.local()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put it into torch.cuda and torch.Tensor."""
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.cuda, "current_stream", lambda device: self.stream)
        patch.setattr(torch.Tensor, "to", self._to())
        patch.setattr(torch.Tensor, "record_stream", lambda each, stream: self._used(each, stream))

    @property
    def stream(self) -> Stream:
        """The stream of the calling thread."""
        return getattr(self._now, "stream", self.consumer)

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        self._now.stream = stream
        try:
            yield
        finally:
            del self._now.stream

    def _to(self) -> Callable[..., Any]:
        gpu, on_cpu = self, torch.Tensor.to

        def to(tensor: Any, device: Any = None, non_blocking: bool = False, **others: Any) -> Any:
            if device is None:
                return on_cpu(tensor, **others)
            assert device == torch.device("cuda", 0)
            assert non_blocking
            there = torch.full_like(tensor, -1)
            gpu.stream.pending.append(lambda: there.copy_(tensor))
            gpu.copied.append(there)
            gpu.copied_by.add(threading.current_thread().name)
            return there

        return to

    def _used(self, tensor: Any, stream: Stream) -> None:
        self.used_on[id(tensor)] = stream
