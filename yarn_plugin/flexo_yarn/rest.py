"""The REST interface of the ResourceManager, for what its protocols do not tell: requests, versions."""

from __future__ import annotations

import base64
import json
import socket
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from flexo_yarn.failover import Servers, first_answer
from flexo_yarn.ipc.connection import Address
from flexo_yarn.ipc.errors import Refused, Unreachable
from flexo_yarn.kerberos import SPNEGO, Kerberos, SecurityContext

LARGEST: Final = 64 << 20
"""The longest answer that is read, in bytes."""
_NEGOTIATE: Final = "Negotiate "


def get(
    address: Address,
    path: str,
    query: Mapping[str, str],
    timeout_s: float,
    kerberos: Kerberos | None = None,
) -> Any:
    """The answer to GET /ws/v1/cluster/PATH, from JSON. Raises Unreachable, Refused.

    `query`: among others `user.name`, who asks where there is no Kerberos. `kerberos`: proves who asks, and
    has the server prove itself (SPNEGO, RFC 4559).
    """
    host, port = address
    context = None if kerberos is None else _context(host, kerberos)
    url = f"http://{host}:{port}/ws/v1/cluster/{path}?{urlencode(query)}"
    headers = {"Accept": "application/json"}
    if context is not None:
        headers["Authorization"] = f"{_NEGOTIATE}{base64.b64encode(context.step(None)).decode()}"
    request = urllib.request.Request(url, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is for the web
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            if context is not None:
                _check(context, answer.headers.get("WWW-Authenticate", ""), url)
            text = answer.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise Unreachable(f"{url}: the answer has more than {LARGEST >> 20} MiB")
        return json.loads(text)
    except (OSError, ValueError) as error:  # of urllib, of sockets, of JSON
        raise Unreachable(f"{url}: {error}") from error


def get_from_active(
    servers: Servers,
    path: str,
    query: Mapping[str, str],
    timeout_s: float,
    kerberos: Kerberos | None = None,
) -> Any:
    """The answer of the active one of several ResourceManagers; see get. Raises Unreachable.

    One on standby redirects to the active one, except where it is asked about itself (`info`).
    """

    def ask(address: Address) -> Any:
        answer = get(address, path, query, timeout_s, kerberos)
        if isinstance(answer, dict) and (answer.get("clusterInfo") or {}).get("haState") == "STANDBY":
            raise Unreachable(f"{address[0]}:{address[1]} is on standby")
        return answer

    return first_answer(servers, ask)


def _context(host: str, kerberos: Kerberos) -> SecurityContext:
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise Unreachable(f"{host}: {error}") from error
    return kerberos.tickets.context(kerberos.web_server(address), SPNEGO)


def _check(context: SecurityContext, said: str, url: str) -> None:
    """Whether the server has proved itself in its answer. Raises Refused, ValueError."""
    if said.startswith(_NEGOTIATE):
        context.step(base64.b64decode(said.removeprefix(_NEGOTIATE)))
    if not context.complete:
        raise Refused(f"{url}: the server has not proved by Kerberos who it is")
