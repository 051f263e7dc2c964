"""Carries tensors between two members over Gloo. Tensors on a GPU go through memory, one after the other.

Call `receive` before the other member calls `send`, and for a tensor as large as possible. While a message
arrives that no `receive` waits for, Gloo's thread asks the kernel again and again. That takes processor time
from other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from horovod_elastic.core.c10d.groups import Groups
from horovod_elastic.core.c10d.requests import GLOBAL_SET

TAG = 2
"""The tag of the transport's messages. Messages of collectives have other tags."""


class GlooTransport:
    """A TensorTransport over Gloo."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def send(self, tensor: Any, to: int) -> Callable[[], object]:
        """See TensorTransport.send."""
        if not tensor.numel():
            return _done
        transfer = self._groups.gloo(GLOBAL_SET).send([_bytes(tensor).cpu()], to, TAG)
        if tensor.is_cuda:  # wait, so that there are never two copies in memory
            transfer.wait()
            return _done
        return transfer.wait  # type: ignore[no-any-return]

    def receive(self, tensor: Any, source: int) -> Callable[[], object]:
        """See TensorTransport.receive."""
        if not tensor.numel():
            return _done
        target = _bytes(tensor)
        landing = torch.empty_like(target, device="cpu") if target.is_cuda else target
        transfer = self._groups.gloo(GLOBAL_SET).recv([landing], source, TAG)
        if target.is_cuda:
            transfer.wait()
            target.copy_(landing)
            return _done
        return transfer.wait  # type: ignore[no-any-return]


def _done() -> None:
    pass


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data.view(-1).view(torch.uint8)
