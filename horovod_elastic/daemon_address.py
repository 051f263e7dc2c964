"""flexod's address, from this job's environment or this host's configuration file."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from flexo_protos import flexods

CONFIG = "/etc/flexo/flexo.toml"


def daemon_address() -> str | None:
    """flexod's host:port, or several separated by commas; None if none is configured.

    The address is $FLEXO_DAEMON, else [high_availability] hosts or [service] address in $FLEXO_CONFIG or in
    /etc/flexo/flexo.toml.
    """
    if address := os.environ.get("FLEXO_DAEMON"):
        return address
    try:
        with Path(os.environ.get("FLEXO_CONFIG", CONFIG)).open("rb") as file:
            found = flexods.configured(tomllib.load(file))
    except (OSError, ValueError):  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        return None
    return found[0] if found else None
