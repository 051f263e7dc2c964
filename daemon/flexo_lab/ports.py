"""Free TCP ports for a lab: not in use, not promised to another lab, and not in the kernel's ephemeral range.

An outgoing connection may take a port of the ephemeral range between choosing and listening.
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
    """`count` ports that are free and not in `promised`. Raises LabFailed."""
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            return found
        if port not in promised and _is_free(port):
            found.append(port)
    raise LabFailed(f"no {count} TCP ports are free between {_LOWEST} and {_HIGHEST} on this machine")


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """True if a process on this machine accepts connections on `port` of `host`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def _candidates() -> Iterator[int]:
    low, high = (int(word) for word in _EPHEMERAL.read_text().split())
    ports = [port for port in range(_LOWEST, _HIGHEST) if not low <= port <= high]
    # start at a random port, so that labs under different roots rarely choose the same ports
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
