"""How the command `flexo web` proves to flexo-web who asks for a link. Both ends share this module.

The credential names the flexo-web that it is for. Without that, whoever offers a page of his own could pass a
visitor's credential on to the real flexo-web, and enter there as the visitor.
"""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

URL_VARIABLE: Final = "FLEXO_WEB"
"""Environment variable: the URL under which people open flexo-web."""
DEFAULT_URL: Final = "http://127.0.0.1:6837"
"""Beside flexod's own port."""
LINKS_PATH: Final = "/links"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})


def checked(url: str) -> str:
    """`url` without a slash at the end. Raises ValueError unless it is ``http[s]://HOST[:PORT]``."""
    parts = urlsplit(url)
    parts.port  # noqa: B018 - raises ValueError for a port that is none
    plain = f"{parts.scheme}://{parts.netloc}"
    if parts.scheme not in ("http", "https") or not parts.hostname or set(parts.netloc) & set("@["):
        raise ValueError(
            f"'{url}' is no URL of flexo-web: http://HOST:PORT and https://HOST[:PORT] are allowed"
        )
    if url.rstrip("/") != plain:
        raise ValueError(f"'{url}' has more than http[s]://HOST[:PORT]: no path is allowed")
    return plain


def purpose(url: str) -> str:
    """The method that a credential for the flexo-web at `url` names. Each host has a loopback address of its
    own, so there the host's name belongs to it."""
    here = f" on {socket.gethostname()}" if urlsplit(url).hostname in LOOPBACK else ""
    return f"{LINKS_PATH} of {url}{here}"
