"""Who owns an application, and which user's application a shown secret belongs to.

The ResourceManager is the notary: it lists the fingerprint of a job's secret as a tag of an application,
beside the user whom it has authenticated at the submission.
"""

from __future__ import annotations

import hashlib
import pwd
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from flexo.model.queue import Principal
from flexo_protos.credentials import Authenticator, Caller, NotAuthentic
from flexo_protos.job_secret import SHOWN, fingerprint_of
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.records import ALIVE
from flexo_yarn.resource_manager import ResourceManager
from flexo_yarn.tags import KEY

REMEMBERED_S: Final = 300.0
"""How long an answer of the ResourceManager counts. It covers restarts of the ResourceManager."""
_MOST_REMEMBERED: Final = 10_000
_LOOKED_UP_EVERY_S: Final = 60.0
_NO_UID: Final = 1 << 40
"""Users who are unknown on this host get numbers from here on, which no account has."""


def uid_of(user: str) -> int:
    """The user's uid on this host; else a number of flexo's own, which is always the same."""
    return _looked_up(user, int(time.monotonic() // _LOOKED_UP_EVERY_S))


@lru_cache(maxsize=_MOST_REMEMBERED)
def _looked_up(user: str, _turn: int) -> int:
    """Look the user up, once a turn: a poll names hundreds of users, and a directory may take a while."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return _NO_UID + int.from_bytes(hashlib.sha256(user.encode()).digest()[:5], "big")


def owner_of(user: str) -> Principal:
    """The owner of the applications of `user`, as jobs name it."""
    return Principal(str(uid_of(user)))


class NotarizedSecrets:
    """Authenticator of flexod: leaders of jobs show their secret; other callers use `others`.

    Several threads may call it; each question to the ResourceManager opens a connection of its own.
    """

    def __init__(self, open_client: Callable[[], ResourceManager], others: Authenticator) -> None:
        self._open_client = open_client
        self._others = others
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, float]] = {}
        """By fingerprint: the user, and when the ResourceManager said so (time.monotonic)."""

    def credential(self, method: str) -> str:
        """See Authenticator."""
        return self._others.credential(method)

    def verify(self, credential: str, method: str) -> Caller:
        """See Authenticator."""
        if not credential.startswith(SHOWN):
            return self._others.verify(credential, method)
        uid = uid_of(self._user_of(fingerprint_of(credential)))
        return Caller(uid, uid)

    def _user_of(self, fingerprint: str) -> str:
        with self._lock:
            user, at = self._known.get(fingerprint, ("", 0.0))
        if user and time.monotonic() < at + REMEMBERED_S:
            return user
        try:
            found = self._ask(fingerprint)
        except IpcError as error:
            if user:  # it was right before, and secrets do not change hands
                return user
            raise NotAuthentic(f"the ResourceManager does not say whose secret this is: {error}") from error
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[fingerprint] = found, time.monotonic()
        return found

    def _ask(self, fingerprint: str) -> str:
        client = self._open_client()
        try:
            reports = client.applications(states=ALIVE, tags=[KEY + fingerprint])
        finally:
            client.close()
        if not reports:
            raise NotAuthentic("no application that waits or runs has this secret's fingerprint as a tag")
        # Anybody can copy a tag, but only from an application that was there before.
        return min(reports, key=lambda each: (each.start_time, each.application_id.id)).user
