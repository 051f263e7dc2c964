"""Import hooks: patch a module right after its import, or put another module in its place."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

Patch = Callable[[ModuleType], None]


def after_import(patches: Mapping[str, Callable[[], Patch]]) -> None:
    """Patch modules right after their import.

    `patches`: by a module's full name, a function that returns the patch. The function is called only after
    the module's import. So nothing that the patch needs is imported before.
    """
    sys.meta_path.insert(0, _PatchingFinder(patches))


def instead_of_import(name: str, make: Callable[[], ModuleType]) -> None:
    """Have every import of `name` get the module that `make` returns, even if a file `name` exists."""
    sys.meta_path.insert(0, _StandInFinder(name, make))


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Lets the finders after it find the module. If they patch the module too, their patches run first."""

    def __init__(self, patches: Mapping[str, Callable[[], Patch]]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._patches:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PatchingLoader(spec.loader, self._patches[fullname])
                return spec
        return None


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, patch: Callable[[], Patch]) -> None:
        self._loader = loader
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch()(module)


class _StandInFinder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, make: Callable[[], ModuleType]) -> None:
        self._name = name
        self._make = make

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(fullname, _StandInLoader(self._make))


class _StandInLoader(importlib.abc.Loader):
    def __init__(self, make: Callable[[], ModuleType]) -> None:
        self._make = make

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._make()

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete as it was made."""
