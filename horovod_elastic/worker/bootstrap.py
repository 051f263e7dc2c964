"""Prepares a training process before its script runs: signals, and hooks that wait for imports.

The preparation costs next to nothing until the script imports Horovod. gRPC, too, is imported only then.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from horovod_elastic import patching
from horovod_elastic.core import choice
from horovod_elastic.worker import (
    departure,
    gradients,
    left_out,
    plain_samplers,
    sigterm,
)
from horovod_elastic.worker.ddp import endless, frameworks, own_workers

_PATCHED = {
    "horovod.common.basics": "patch_basics",
    "horovod.common.elastic": "patch_elastic",
    "horovod.common.process_sets": "patch_process_sets",
    "horovod.torch.elastic.sampler": "patch_sampler",
    "horovod.torch.elastic.state": "patch_state",
    "horovod.torch.functions": "patch_functions",
}

_MAKE_SCHEDULERS_AND_SCALERS = (
    "torch.optim.lr_scheduler",
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",  # before PyTorch 2.3 not a subclass of the one above
)


def install() -> None:
    """Make the process outlive SIGTERM on satellites, and patch Horovod's modules once they are imported."""
    sigterm.prepare()
    if "FLEXO_WORKER_ID" not in os.environ:
        return
    own_workers.began_as_worker()  # notes the variables as they are now
    endless.install()
    departure.install()
    patching.after_import({module: _hook(name) for module, name in _PATCHED.items()})
    patching.after_import({"torch.utils.data.distributed": lambda: plain_samplers.patch_distributed})
    patching.after_import({"torch": _torch_hook, "torch._dynamo.trace_rules": _dynamo_hook})
    patching.after_import({"torch.distributed.fsdp._fully_shard._fully_shard": _fully_shard_hook})
    patching.after_import(frameworks.patches())
    patching.after_import({module: lambda: left_out.patch for module in _MAKE_SCHEDULERS_AND_SCALERS})
    patching.after_import({"horovod.torch.optimizer": lambda: gradients.patch})
    if choice.is_on_torch():
        from horovod_elastic.core.c10d import standin

        standin.install()


def _torch_hook() -> patching.Patch:
    from horovod_elastic.worker.ddp import hooks

    return hooks.patch_torch


def _fully_shard_hook() -> patching.Patch:
    from horovod_elastic.worker.ddp import hooks

    return hooks.patch_fully_shard


def _dynamo_hook() -> patching.Patch:
    from horovod_elastic.worker.ddp import torchs_own

    return torchs_own.compile_nothing_of_flexo


def _hook(name: str) -> Callable[[], patching.Patch]:
    def patch() -> patching.Patch:
        from horovod_elastic.worker import hooks

        return getattr(hooks, name)  # type: ignore[no-any-return]

    return patch
