"""The account of this host that somebody else names: a proxy, or a provider of OpenID Connect."""

from __future__ import annotations

import pwd
import re
from typing import Final

from flexo_web.tokens import Viewer

_ACCOUNT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""The names that are looked up. Digits alone could be taken for a uid."""
_SHOWN: Final = 80
"""The most characters of a refused name that a message has."""


class NoAccount(Exception):
    """The name is not that of one ordinary account; the message says why, without characters of others'."""


def viewer_named(name: str) -> Viewer:
    """The viewer of the account `name`, which is not root's. It may ask a directory. Raises NoAccount."""
    if not _ACCOUNT.fullmatch(name):
        raise NoAccount(f"{name[:_SHOWN]!a} is not the name of one account")
    try:
        uid = pwd.getpwnam(name).pw_uid
        own = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise NoAccount(f"this host has no account '{name}'") from None
    if uid == 0:
        raise NoAccount(f"'{name}' is root, whom nobody else signs in")
    return Viewer(uid, own)
