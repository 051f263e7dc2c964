"""Every private call of PyTorch but those of the front end, which has its own (worker/ddp/torchs_own.py)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def copy_each(into: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy each of the values into the tensor at the same place. Converts to its type and device."""
    torch._foreach_copy_(into, values)


def zero_each(tensors: Sequence[torch.Tensor]) -> None:
    """Set all elements of all tensors to zero."""
    torch._foreach_zero_(tensors)


def multiply_each(tensors: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply all elements of all tensors by `factor`."""
    torch._foreach_mul_(tensors, factor)


def gloo_group(store: Any, place: int, size: int, device: Any, timeout: timedelta) -> Any:
    """A ProcessGroupGloo on this device, with PyTorch's own number of threads."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [device]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, place, size, options)


def set_timeout(options: Any, timeout: timedelta) -> None:
    """Have the group that is made with these options wait for its members as long."""
    options._timeout = timeout


def begin_step(scaler: Any) -> None:
    """Have a gradient scaler begin its step anew: an interrupted one takes scaled gradients for unscaled."""
    if scaler.is_enabled():
        scaler._per_optimizer_states.clear()
