"""The command that installs missing extras. flexo is on no package index, so messages name its wheel."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata


def how_to_install(*extras: str) -> str:
    """A sentence with the command that adds `extras` of flexo to this Python."""
    try:
        version = metadata.version("flexo")
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        version = "VERSION"
    listed = f"[{','.join(extras)}]" if extras else ""
    wheel = shlex.quote(f"flexo-{version}-py3-none-any.whl{listed}")
    return (
        f"Install it with {shlex.quote(sys.executable)} -m pip install {wheel}"
        " (`make wheel` in flexo's repository builds that file)."
    )
