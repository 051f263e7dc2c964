"""The commands that install flexo's wheels and their extras. The wheels are on no package index, so messages
name their files."""

from __future__ import annotations

import enum
import shlex
import sys
from importlib import metadata


class Wheel(enum.StrEnum):
    """flexo's wheels, by the names that pip lists."""

    USERS = "flexo"
    """Runs jobs, and has the commands and the Python calls for one's own jobs."""
    SITES = "flexo-site"
    """flexod, flexo-web, labs, simulations, and their commands. It requires USERS of the same version."""


def how_to_install(wheel: Wheel, *extras: str) -> str:
    """A sentence with the command that adds `wheel`, with `extras` of it, to this Python."""
    listed = f"[{','.join(extras)}]" if extras else ""
    file = f"{wheel.replace('-', '_')}-{_version()}-py3-none-any.whl{listed}"
    return (
        f"Install it with {shlex.quote(sys.executable)} -m pip install {shlex.quote(file)}"
        " (`make wheel` in flexo's repository builds that file)."
    )


def _version() -> str:
    try:
        return metadata.version(Wheel.USERS)
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return "VERSION"
