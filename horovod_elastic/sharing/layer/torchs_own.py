"""Every private name of PyTorch that GPU sharing uses. tests/unit/horovod_elastic/test_torchs_own.py
tries them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def when_cuda_begins(call: Callable[[], None]) -> None:
    """Have `call` run when this process begins to use CUDA, before its first allocation."""
    torch.cuda._lazy_call(call)  # at once if it has begun


def cuda_is_in_use() -> bool:
    """Whether this process uses CUDA, and is no fork of one that did: that one must not touch it."""
    return torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
