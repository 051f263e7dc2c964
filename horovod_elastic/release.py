"""The release of this package, as jobs tell it flexod."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """The release; "" if the package is not installed, as in a checkout on PYTHONPATH."""
    try:
        return version("flexo")
    except PackageNotFoundError:
        return ""
