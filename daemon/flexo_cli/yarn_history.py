"""`flexo yarn history`: asks YARN for its applications and nodes, as `flexo whatif --yarn` reads them."""

from __future__ import annotations

from typing import Any, Final

from flexo_yarn import rest
from flexo_yarn.configuration import ClientConfiguration

_TIMEOUT_S: Final = 120.0
"""The ResourceManager may write tens of thousands of applications."""
_QUERIES: Final[dict[str, dict[str, str]]] = {"apps": {"deSelects": "resourceRequests"}, "nodes": {}}
"""Requests of running applications can be far longer than all the rest, and tell nothing here (YARN-6871)."""


def history(cluster: ClientConfiguration, user: str) -> dict[str, Any]:
    """The ResourceManager's answers, in one object. `user`: who asks. Raises Unreachable."""
    found: dict[str, Any] = {}
    for path, query in _QUERIES.items():
        found |= rest.get_from_active(cluster.web, path, {**query, "user.name": user}, _TIMEOUT_S)
    return found
