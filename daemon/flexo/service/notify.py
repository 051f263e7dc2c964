"""Tells systemd how flexod does (sd_notify(3)), by the socket that it names. Elsewhere nothing happens."""

from __future__ import annotations

import os
import socket
from typing import Final

import structlog

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_VARIABLE: Final = "NOTIFY_SOCKET"

_log = structlog.get_logger("flexo.service")


def tell(state: str) -> None:
    """Say READY or STOPPING. A service manager that cannot be told is no reason to stop: it is logged."""
    address = os.environ.get(_VARIABLE)
    if not address:
        return
    # a leading @ stands for the abstract namespace, whose names begin with a zero byte
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_systemd:
            to_systemd.sendto(state.encode(), path)
    except OSError as error:
        _log.warning(f"systemd was not told {state}: ${_VARIABLE} is {address}: {error.strerror}")
