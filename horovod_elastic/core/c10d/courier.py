"""Carries tensors between two members over Gloo; from and to a GPU through memory, one after the other.

What is to be received should be asked for before it is sent, as much of it as there can be: until it is,
Gloo's thread asks the kernel again and again, which takes the time of a processor that others need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from horovod_elastic.core.c10d.groups import Groups
from horovod_elastic.core.c10d.requests import GLOBAL_SET

TAG = 2
"""Of its messages; those of collectives have others."""


class GlooCourier:
    """See interface.Courier."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def send(self, tensor: Any, to: int) -> Callable[[], object]:
        """See Courier.send."""
        if not tensor.numel():
            return _done
        transfer = self._groups.gloo(GLOBAL_SET).send([_bytes(tensor).cpu()], to, TAG)
        if tensor.is_cuda:  # so that there are never two copies
            transfer.wait()
            return _done
        return transfer.wait  # type: ignore[no-any-return]

    def receive(self, tensor: Any, source: int) -> Callable[[], object]:
        """See Courier.receive."""
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
