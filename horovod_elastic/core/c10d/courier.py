"""Carries tensors between two members over Gloo; from and to a GPU through memory."""

from __future__ import annotations

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

    def send(self, tensor: Any, to: int) -> None:
        """See Courier.send."""
        if tensor.numel():
            self._groups.gloo(GLOBAL_SET).send([_bytes(tensor).cpu()], to, TAG).wait()

    def receive(self, tensor: Any, source: int) -> None:
        """See Courier.receive."""
        if tensor.numel():
            target = _bytes(tensor)
            landing = torch.empty_like(target, device="cpu") if target.is_cuda else target
            self._groups.gloo(GLOBAL_SET).recv([landing], source, TAG).wait()
            if landing is not target:
                target.copy_(landing)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data.view(-1).view(torch.uint8)
