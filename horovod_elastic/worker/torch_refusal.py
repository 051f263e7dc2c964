"""Tells the user of a torch.distributed script that `flexo run` starts Horovod scripts only.

Without this module, PyTorch's own error asks for the variable RANK, which no reader of the error has to set.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

_VARIABLES = {"RANK": "rank", "WORLD_SIZE": "world_size", "MASTER_ADDR": "", "MASTER_PORT": ""}
"""The environment variables that PyTorch reads, each with the argument that may give its value instead."""


def patch_rendezvous(module: ModuleType) -> None:
    """Have torch.distributed.rendezvous refuse an environment that no launcher of PyTorch has filled."""
    original = module.rendezvous

    @functools.wraps(original)
    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **options: Any) -> Any:
        given = {"rank": rank, "world_size": world_size}
        if isinstance(url, str) and url.startswith("env://"):
            _check(os.environ, {name for name, value in given.items() if value is not None and value >= 0})
        return original(url, rank, world_size, **options)

    module.rendezvous = rendezvous  # type: ignore[attr-defined]


def _check(environment: Mapping[str, str], given: set[str]) -> None:
    """Raise ValueError, as PyTorch does, if a process group cannot be made from `environment`."""
    missing = [name for name, argument in _VARIABLES.items() if not {name, argument} & {*environment, *given}]
    if missing:
        raise ValueError(
            f"torch.distributed.init_process_group(): {', '.join(missing)} not set. `flexo run` starts "
            "Horovod scripts (import horovod.torch as hvd; hvd.init()), and elastic ones grow "
            "(hvd.elastic.run). It does not start scripts of torch.distributed (DDP, FSDP) yet. Start this "
            "one with torchrun, without flexo run and without --elastic. Or port it to Horovod, as "
            "examples/digits/train.py shows."
        )
