"""Puts stand-ins where horovod.torch looks for its native library, which is not loaded and need not exist.

Horovod's Python files use the library at four places. They check that its file exists, import the module of
its functions, open the same file with ctypes, and read which PyTorch it was compiled for.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from horovod_elastic import patching

if TYPE_CHECKING:
    from horovod_elastic.core.c10d.layer import Layer

_LIBRARY = "mpi_lib_v2"
_MODULE = f"horovod.torch.{_LIBRARY}"


def install() -> None:
    """Have horovod.torch find the stand-ins at its import. Raises RuntimeError if it was imported before.

    PyTorch is imported only together with horovod.torch.
    """
    if "horovod.torch.mpi_ops" in sys.modules:
        raise RuntimeError("horovod.torch was imported before its native library could be replaced")
    patching.instead_of_import(_MODULE, lambda: the_layer().mpi_lib)
    patching.after_import(
        {"horovod.common.util": lambda: _patch_util, "horovod.common.basics": lambda: _patch_basics}
    )


@functools.cache
def the_layer() -> Layer:
    """The replacement of Horovod's native library in this process. The first call makes it."""
    from horovod_elastic.core.c10d.layer import Layer

    return Layer()


def _patch_util(module: ModuleType) -> None:
    """Skip the checks that the library's file exists and that it was compiled for this PyTorch."""
    check_extension, check_version = module.check_extension, module.check_installed_version

    def check_other_extensions(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
        if args != (_LIBRARY,):
            check_extension(ext_name, ext_env_var, pkg_path, *args)

    def check_other_versions(name: str, version: str, exception: Exception | None = None) -> None:
        if exception is not None:
            raise exception
        if name != "pytorch":
            check_version(name, version)

    module.check_extension = check_other_extensions  # type: ignore[attr-defined]
    module.check_installed_version = check_other_versions  # type: ignore[attr-defined]


def _patch_basics(module: ModuleType) -> None:
    """Replace ctypes in horovod.common.basics, where HorovodBasics opens the library by its path."""
    module.ctypes = _Ctypes()  # type: ignore[attr-defined]


class _Ctypes:
    """The module ctypes, except that it opens the stand-in instead of Horovod's library."""

    def CDLL(self, name: str, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        if Path(name).name.startswith(f"{_LIBRARY}."):
            return the_layer().library
        return ctypes.CDLL(name, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes, name)
