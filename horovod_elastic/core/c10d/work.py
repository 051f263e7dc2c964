"""One request of this rank with its tensors, from the call that makes it to the call that waits for it."""

from __future__ import annotations

import threading
from typing import Any

import torch

from horovod_elastic.core.c10d.requests import Request


class Work:
    """A request with its tensors. The thread that carries out collectives finishes it or fails it."""

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
        """For all-reduce and broadcast: tensors of the inputs' shapes, perhaps the very same tensors.
        For other operations: empty tensors, which the thread that carries out the operation resizes
        (torch.Tensor.resize_)."""
        self.received_splits = received_splits
        """For an all-to-all: an empty int32 tensor in memory, which is resized to the number of members."""
        self.result = -1
        """See Response.result."""
        self.error: Exception | None = None
        self.submitted_on: Any = _event_now(inputs)
        """For tensors on a GPU: the event after which the inputs have their values; otherwise None."""
        self._done = threading.Event()

    def done(self) -> bool:
        """Whether the work is finished, successfully or not."""
        return self._done.is_set()

    def done_within(self, seconds: float) -> bool:
        """Wait for at most this time, then return whether the work is finished."""
        return self._done.wait(seconds)

    def finish(self, error: Exception | None = None) -> None:
        """Finish the work, with `error` if it has failed. A second call changes nothing."""
        if not self._done.is_set():
            self.error = error
            self._done.set()

    def wait(self) -> None:
        """Wait until the work is finished. Raises the error that it was finished with."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        for tensor in self.outputs:
            if tensor.is_cuda:  # its memory may belong to the stream that computed it
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _event_now(tensors: tuple[torch.Tensor, ...]) -> Any:
    on_gpu = next((tensor for tensor in tensors if tensor.is_cuda), None)
    if on_gpu is None:
        return None
    with torch.cuda.device(on_gpu.device):
        event = torch.cuda.Event()
        event.record()
    return event
