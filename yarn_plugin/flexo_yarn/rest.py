"""The REST interface of the ResourceManager, for what its protocols do not tell: requests, versions."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from flexo_yarn.failover import Servers, first_answer
from flexo_yarn.ipc.connection import Address
from flexo_yarn.ipc.errors import Unreachable

LARGEST: Final = 64 << 20
"""The longest answer that is read, in bytes."""


def get(address: Address, path: str, query: Mapping[str, str], timeout_s: float) -> Any:
    """The answer to GET /ws/v1/cluster/PATH, from JSON. Raises Unreachable.

    `query`: among others `user.name`, who asks where there is no Kerberos.
    """
    host, port = address
    url = f"http://{host}:{port}/ws/v1/cluster/{path}?{urlencode(query)}"
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is for the web
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            text = answer.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise Unreachable(f"{url}: the answer has more than {LARGEST >> 20} MiB")
        return json.loads(text)
    except (OSError, ValueError) as error:  # of urllib, of sockets, of JSON
        raise Unreachable(f"{url}: {error}") from error


def get_from_active(servers: Servers, path: str, query: Mapping[str, str], timeout_s: float) -> Any:
    """The answer of the active one of several ResourceManagers; see get. Raises Unreachable.

    One on standby redirects to the active one, except where it is asked about itself (`info`).
    """

    def ask(address: Address) -> Any:
        answer = get(address, path, query, timeout_s)
        if isinstance(answer, dict) and (answer.get("clusterInfo") or {}).get("haState") == "STANDBY":
            raise Unreachable(f"{address[0]}:{address[1]} is on standby")
        return answer

    return first_answer(servers, ask)
