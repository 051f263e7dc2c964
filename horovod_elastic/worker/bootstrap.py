"""Prepares a training process before its script runs: signals, and hooks that wait for Horovod's import.

Costs nothing until the script imports Horovod: gRPC, too, is only imported then.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from horovod_elastic.worker import sigterm

_PATCHED = {
    "horovod.common.basics": "patch_basics",
    "horovod.common.elastic": "patch_elastic",
    "horovod.torch.functions": "patch_functions",
}


def install() -> None:
    """Outlive SIGTERM on satellites, and patch Horovod's modules once they are imported."""
    sigterm.prepare()
    if "FLEXO_WORKER_ID" in os.environ:
        sys.meta_path.insert(0, _PatchingFinder())


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Lets the ordinary finders find Horovod's modules, and patches each right after it was executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _PATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        from horovod_elastic.worker import hooks

        spec.loader = _PatchingLoader(spec.loader, getattr(hooks, _PATCHED[fullname]))
        return spec


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, patch: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)
