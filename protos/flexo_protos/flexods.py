"""The addresses of one or several flexods, for their callers, and the answer of a flexod that stands by.

Jobs and the flexo command share this module, so that both ask the same flexod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from flexo_protos import keepalive

DEFAULT_ADDRESS = "127.0.0.1:6836"
"""flexod's address where no configuration has any. The port is beside Slurm's own 6817 to 6820."""
STANDS_BY_KEY = "flexo-stands-by"
"""Key in the trailing metadata of UNAVAILABLE: this flexod stands by, and one is active or will be soon."""
SEVERAL_OPTIONS = (
    ("grpc.min_reconnect_backoff_ms", 5_000),  # it bounds a dial too: a host that is off does not answer
    *keepalive.noticing(quiet_s=6.0, answer_s=4.0),
)
"""Options of channels to several flexods, so that the next one is asked soon. No option comes twice."""


def configured(tree: Mapping[str, Any]) -> tuple[str, str] | None:
    """The addresses in a parsed flexo.toml, as "host:port" separated by commas, and the key that has them.

    None if no key has any. Raises ValueError, which names the key.
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
    """The single addresses in a text from `configured`, or from a user."""
    return tuple(part.strip() for part in address.split(",") if part.strip())


def options_for(
    addresses: tuple[str, ...], options: tuple[tuple[str, object], ...]
) -> tuple[tuple[str, object], ...]:
    """A channel's `options`. For several addresses, SEVERAL_OPTIONS replace options of the same name."""
    if len(addresses) == 1:
        return options
    replaced = {name for name, _ in SEVERAL_OPTIONS}
    return (*(option for option in options if option[0] not in replaced), *SEVERAL_OPTIONS)


def stands_by(error: grpc.RpcError) -> bool:
    """Whether a call failed because the flexod that was asked stands by."""
    trailing = getattr(error, "trailing_metadata", lambda: None)() or ()
    return any(key == STANDS_BY_KEY for key, _ in trailing)
