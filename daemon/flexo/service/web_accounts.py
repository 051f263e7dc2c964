"""The accounts of flexo-web that may steer for their viewers ([service] web_steering), by uid."""

from __future__ import annotations

import pwd
from collections.abc import Iterable

import structlog

_log = structlog.get_logger("flexo.service")


def web_accounts(names: Iterable[str]) -> frozenset[int]:
    """The uids of the accounts `names`. It may ask a directory, so it is called at a start and at a reload
    only: a directory that hangs later keeps the status from nobody. An account that there is not, or that
    is root's by another name, may steer for nobody, and is logged."""
    found = set[int]()
    for name in names:
        try:
            uid = pwd.getpwnam(name).pw_uid
        except KeyError:
            _log.warning("[service] web_steering: this host has no such account", account=name)
            continue
        if uid == 0:
            _log.warning("[service] web_steering: the account is root's", account=name)
            continue
        found.add(uid)
    return frozenset(found)
