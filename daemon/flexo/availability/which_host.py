"""Finds out which of flexod's hosts this one is: all of them have the same configuration."""

from __future__ import annotations

import socket
from collections.abc import Sequence


class NotOneOfThem(Exception):
    """flexod cannot tell which of the hosts this one is; the message says why and what to do."""


def own_address(hosts: Sequence[str], named: str) -> str:
    """The one of `hosts` (host:port) that is this host, or that was `named`. Raises NotOneOfThem."""
    if named:
        if named not in hosts:
            raise NotOneOfThem(f"--address {named} is none of [high_availability] hosts: {', '.join(hosts)}")
        return named
    own = [host for host in hosts if _is_here(host.rpartition(":")[0].strip("[]"))]
    if len(own) != 1:
        which = f"{' and '.join(own)} are all this host" if own else "none is this host"
        raise NotOneOfThem(
            f"[high_availability] hosts = {', '.join(hosts)}: {which};"
            " flexod --address HOST:PORT says which one it is"
        )
    return own[0]


def _is_here(host: str) -> bool:
    """Whether the name stands for an address of this host: nobody can bind an address of another host."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_binds(family, endpoint) for family, _, _, _, endpoint in found)


def _binds(family: int, endpoint: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(endpoint)
        except OSError:
            return False
    return True
