"""Where flexod is, for its callers, if there are several: their addresses, and how one refers to another.

Shared, so that jobs and the flexo command cannot differ in whom they ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from flexo_protos import keepalive

STANDS_BY_KEY = "flexo-stands-by"
"""Trailing metadata of UNAVAILABLE: a flexod is there, and one is active or will be soon."""
SEVERAL_OPTIONS = (
    ("grpc.min_reconnect_backoff_ms", 5_000),  # it bounds a dial too: a host that is off does not answer
    *keepalive.noticing(quiet_s=6.0, answer_s=4.0),
)
"""For channels, where another flexod is worth asking soon. Each option comes once in a channel's."""


def configured(tree: Mapping[str, Any]) -> tuple[str, str] | None:
    """Addresses, "host:port" with commas between, and the key that says so, in a flexo.toml that was read.

    None: it says nothing. Raises ValueError, which names the key.
    """
    available, service = tree.get("high_availability", {}), tree.get("service", {})
    if isinstance(available, dict) and (hosts := available.get("hosts")):
        key = "[high_availability] hosts"
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise ValueError(f'{key} is not a list of texts "HOST:PORT"')
        return ",".join(hosts), key
    if not isinstance(service, dict) or "address" not in service:
        return None
    if not isinstance(service["address"], str):
        raise ValueError('[service] address is not a text "HOST:PORT"')
    return service["address"], "[service] address"


def several(address: str) -> tuple[str, ...]:
    """The single addresses in what `configured` returns, or a user has set."""
    return tuple(part.strip() for part in address.split(",") if part.strip())


def options_for(
    addresses: tuple[str, ...], options: tuple[tuple[str, object], ...]
) -> tuple[tuple[str, object], ...]:
    """A channel's `options`, with those of SEVERAL_OPTIONS instead where there are several."""
    if len(addresses) == 1:
        return options
    replaced = {name for name, _ in SEVERAL_OPTIONS}
    return (*(option for option in options if option[0] not in replaced), *SEVERAL_OPTIONS)


def stands_by(error: grpc.RpcError) -> bool:
    """Whether a call failed because the flexod that was asked stands by."""
    trailing = getattr(error, "trailing_metadata", lambda: None)() or ()
    return any(key == STANDS_BY_KEY for key, _ in trailing)
