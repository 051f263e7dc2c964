"""Adapters for frameworks over torch.distributed: each is loaded when a script imports its framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from horovod_elastic import patching

_PATCHES = {
    "accelerate.state": ("accelerate", "patch_state"),
    "accelerate.data_loader": ("accelerate", "patch_data_loader"),
    "accelerate.scheduler": ("accelerate", "patch_scheduler"),
    "accelerate.accelerator": ("accelerate", "patch_accelerator"),
    "transformers.trainer": ("transformers", "patch_trainer"),
    "transformers.trainer_callback": ("transformers", "patch_callbacks"),
    # Lightning comes as one package, and as two with the same modules.
    "lightning.fabric.plugins.environments.torchelastic": ("lightning", "patch_environment"),
    "lightning_fabric.plugins.environments.torchelastic": ("lightning", "patch_environment"),
    "lightning.fabric.strategies.ddp": ("lightning", "patch_strategy"),
    "lightning_fabric.strategies.ddp": ("lightning", "patch_strategy"),
    "lightning.pytorch.strategies.ddp": ("lightning", "patch_strategy"),
    "pytorch_lightning.strategies.ddp": ("lightning", "patch_strategy"),
    "lightning.pytorch.trainer.call": ("lightning", "patch_calls"),
    "pytorch_lightning.trainer.call": ("lightning", "patch_calls"),
    "lightning.pytorch.loops.fit_loop": ("lightning", "patch_loop"),
    "pytorch_lightning.loops.fit_loop": ("lightning", "patch_loop"),
}
"""By module of a framework: the adapter, and its function that patches the module."""


def patches() -> Mapping[str, Callable[[], patching.Patch]]:
    """See patching.after_import."""
    return {module: _adapter(*patch) for module, patch in _PATCHES.items()}


def _adapter(name: str, function: str) -> Callable[[], patching.Patch]:
    def patch() -> patching.Patch:
        return getattr(import_module(f"{__name__}.{name}"), function)  # type: ignore[no-any-return]

    return patch
