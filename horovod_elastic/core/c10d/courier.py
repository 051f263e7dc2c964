"""Carries tensors between two members over Gloo, in chunks: what passes through memory stays small."""

from __future__ import annotations

from typing import Any

import torch

from horovod_elastic.core.c10d.groups import Groups
from horovod_elastic.core.c10d.requests import GLOBAL_SET

TAG = 2
"""Of its messages; those of collectives have others."""
CHUNK_BYTES = 32 << 20


class GlooCourier:
    """See interface.Courier."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def send(self, tensor: Any, to: int) -> None:
        """See Courier.send."""
        group = self._groups.gloo(GLOBAL_SET)
        for chunk in _chunks(tensor):
            group.send([chunk.cpu()], to, TAG).wait()

    def receive(self, tensor: Any, source: int) -> None:
        """See Courier.receive."""
        group = self._groups.gloo(GLOBAL_SET)
        for chunk in _chunks(tensor):
            landing = torch.empty_like(chunk, device="cpu") if chunk.is_cuda else chunk
            group.recv([landing], source, TAG).wait()
            if landing is not chunk:
                chunk.copy_(landing)


def _chunks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Of its bytes; none if it is empty."""
    return list(tensor.data.view(-1).view(torch.uint8).split(CHUNK_BYTES)) if tensor.numel() else []
