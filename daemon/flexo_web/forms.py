"""Forms: read within bounds, and believed only if a page of this site in the same session sent them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request

from flexo_protos import web_login

TOKEN: Final = "token"
"""The name of the field that has the form's token."""
_PORTS: Final = {"http": 80, "https": 443}
_MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
_MOST_BYTES: Final = 4096
_MOST_FIELDS: Final = 8
_WITHIN_S: Final = 10.0


class BadForm(Exception):
    """What was sent is no form of this site's; the message says why."""


def own_origins(url: str) -> frozenset[str]:
    """The origins of the pages that people open at `url`. A loopback address has two names."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    hosts = web_login.LOOPBACK if host in web_login.LOOPBACK else {host}
    return frozenset(_origin(parts.scheme, host, parts.port) for host in hosts)


def from_own_page(request: Request, origins: frozenset[str]) -> bool:
    """Whether a form was sent from a page of this site, which has these origins. Browsers say where a form is
    from. The request's own Host says nothing: the client chooses it, and a proxy may leave its port out."""
    try:
        parts = urlsplit(request.headers.get("origin", ""))
        return _origin(parts.scheme, parts.hostname or "", parts.port) in origins
    except ValueError:
        return False


def _origin(scheme: str, host: str, port: int | None) -> str:
    return f"{scheme}://{host}:{port or _PORTS.get(scheme, 0)}"


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form. Raises BadForm, also for one that is too large or takes too long."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _MEDIA_TYPE:
        raise BadForm(f"only {_MEDIA_TYPE} is a form here")
    try:
        async with asyncio.timeout(_WITHIN_S):
            body = await _bounded(request)
    except (TimeoutError, ClientDisconnect):
        raise BadForm(f"the form was not whole after {_WITHIN_S:.0f} s") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise BadForm(f"at most {_MOST_FIELDS} fields of UTF-8 are a form here") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadForm("each field of a form is sent once")
    return fields


async def _bounded(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise BadForm(f"at most {_MOST_BYTES} bytes are a form here")
    return body


class FormTokens:
    """Says which forms this process has shown in a session. A restart ends them all, as it ends sessions."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, session: str, path: str) -> str:
        """The token of the form at `path` in `session`: the same each time, so that a page without news does
        not change."""
        return hmac.new(self._key, f"{session}\0{path}".encode(), hashlib.sha256).hexdigest()

    def fits(self, token: str, session: str, path: str) -> bool:
        """Whether `token` is that of the form."""
        return hmac.compare_digest(token.encode(), self.of(session, path).encode())
