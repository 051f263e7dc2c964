"""Free TCP ports for a lab: none in use now, none promised to another lab, none the kernel hands out.

The kernel's own range is left alone because any outgoing connection may take a port from it between
choosing and listening.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Set
from pathlib import Path

from flexo_lab.errors import LabFailed

_LOWEST, _HIGHEST = 10000, 65000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, promised: Set[int]) -> list[int]:
    """`count` ports that nobody listens on, without `promised`. Raises LabFailed."""
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            return found
        if port not in promised and _is_free(port):
            found.append(port)
    raise LabFailed(f"no {count} TCP ports are free between {_LOWEST} and {_HIGHEST} on this machine")


def is_listening(port: int) -> bool:
    """Whether something on this machine accepts connections on `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _candidates() -> Iterator[int]:
    low, high = (int(word) for word in _EPHEMERAL.read_text().split())
    ports = [port for port in range(_LOWEST, _HIGHEST) if not low <= port <= high]
    # from a random place on, so that labs under different roots hardly ever meet
    start = random.randrange(len(ports)) if ports else 0
    yield from ports[start:]
    yield from ports[:start]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
