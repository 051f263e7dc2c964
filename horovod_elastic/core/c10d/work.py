"""One request of this rank with its tensors, from the call that makes it to the one that waits for it."""

from __future__ import annotations

import threading
from typing import Any

import torch

from horovod_elastic.core.c10d.requests import Request


class Work:
    """Finished, well or with an error, by the thread that carries out collectives."""

    def __init__(
        self,
        request: Request,
        inputs: tuple[torch.Tensor, ...] = (),
        outputs: tuple[torch.Tensor, ...] = (),
        received_splits: torch.Tensor | None = None,
    ) -> None:
        self.request = request
        self.inputs = inputs
        self.outputs = outputs
        """Of the same shape as inputs for all-reduce and broadcast, and then perhaps the very same tensors.
        Of other operations they are empty, and resized (torch.Tensor.resize_) by whoever carries it out."""
        self.received_splits = received_splits
        """Of an all-to-all: an empty int32 tensor in memory, resized to the number of members."""
        self.result = -1
        """As Response.result."""
        self.error: Exception | None = None
        self.submitted_on: Any = _event_now(inputs)
        """Of tensors on a GPU: the event after which the inputs have their values."""
        self._done = threading.Event()

    def done(self) -> bool:
        """Whether it is finished, well or not."""
        return self._done.is_set()

    def done_within(self, seconds: float) -> bool:
        """The same, after waiting for so long at most."""
        return self._done.wait(seconds)

    def finish(self, error: Exception | None = None) -> None:
        """Once: a second call changes nothing."""
        if not self._done.is_set():
            self.error = error
            self._done.set()

    def wait(self) -> None:
        """Until it is finished. Raises the error it was finished with."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        for tensor in self.outputs:
            if tensor.is_cuda:  # their memory may be of the stream that they were computed on
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _event_now(tensors: tuple[torch.Tensor, ...]) -> Any:
    on_gpu = next((tensor for tensor in tensors if tensor.is_cuda), None)
    if on_gpu is None:
        return None
    with torch.cuda.device(on_gpu.device):
        event = torch.cuda.Event()
        event.record()
    return event
