"""Reports flexod's state to systemd (sd_notify(3)), at the socket that systemd names. Elsewhere nothing
happens.

flexod has its own code for this, as sd_notify(3) recommends for so small a protocol. sdnotify and
systemd-python have no wheels. systemd-watchdog uses the wall clock, so that a clock that is set back keeps it
silent.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

import structlog

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_ALIVE: Final = "WATCHDOG=1"
_VARIABLE: Final = "NOTIFY_SOCKET"

_log = structlog.get_logger("flexo.service")


def tell(state: str) -> None:
    """Report READY or STOPPING. If the service manager cannot be told, flexod logs that and goes on."""
    try:
        _send(state)
    except OSError as error:
        address = os.environ.get(_VARIABLE)
        _log.warning(f"systemd was not told {state}: ${_VARIABLE} is {address}: {error.strerror}")


def watchdog_s() -> float | None:
    """The time that systemd waits for a sign of life before it ends this process; None: systemd does not
    watch it."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    is_for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 1e6 if is_for_us and microseconds.isdecimal() and int(microseconds) else None


def alive() -> None:
    """Give systemd a sign of life. Neither waits nor logs: the caller must not get stuck itself."""
    with suppress(OSError):
        _send(_ALIVE, socket.MSG_DONTWAIT)


def _send(state: str, flags: int = 0) -> None:
    address = os.environ.get(_VARIABLE)
    if not address:
        return
    # a leading @ stands for the abstract namespace, whose names begin with a zero byte
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_systemd:
        to_systemd.sendto(state.encode(), flags, path)
