"""One key in etcd, changed by compare-and-swap: the basis of leader leases of jobs and of flexods.

The client speaks JSON over HTTP (etcd3gw). etcd's gRPC clients for Python are not maintained and need an old
protobuf.
"""

from __future__ import annotations

import base64
import getpass
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import requests
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from etcd3gw.lease import Lease as EtcdLease

from flexo_protos.lease_place import EtcdAccess, Kind, LeasePlace

_WITHOUT_TOKEN = ("user name is empty", "invalid auth token", "auth store is old")
"""etcd's error texts when a login is required, or a new one: its tokens last minutes."""
_LEAST_S = 0.5
"""Shortest time allowed for one member to answer."""
_T = TypeVar("_T")


class EtcdUnavailable(Exception):
    """No member can be asked now, or its answer cannot be read; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The value of the key, and its revision in etcd."""

    value: str
    revision: int
    """Revision of the key's last change."""
    lease: int
    """The etcd lease that the key is attached to; 0: none."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one request: the key's value, if it has one, and etcd's revision."""

    kept: Kept | None
    revision: int


class EtcdKey:
    """The key `name` in the etcd at `place`. Every call raises EtcdUnavailable in about `answer_within_s`."""

    def __init__(self, place: LeasePlace, name: str, access: EtcdAccess, answer_within_s: float) -> None:
        self.name = name
        self.server = f"etcd at {','.join(place.hosts)}"
        self._access = access
        self._session = _session(access)
        timeout_s = max(_LEAST_S, answer_within_s / len(place.hosts))
        self._members = [_member(host, place.kind, self._session, timeout_s) for host in place.hosts]

    def look(self) -> Seen:
        """The present value."""
        return self._transact([], [])

    def write(self, value: str, expected: int, lease: int = 0) -> Seen:
        """Put `value` if the key's revision is `expected` (0: no key); return the content afterwards."""
        put = {"key": _text(self.name), "value": _text(value), **({"lease": lease} if lease else {})}
        return self._transact([self._unchanged(expected)], [{"request_put": put}])

    def delete(self, expected: int) -> Seen:
        """Delete the key if its revision is `expected`; return the content afterwards."""
        return self._transact(
            [self._unchanged(expected)], [{"request_delete_range": {"key": _text(self.name)}}]
        )

    def new_lease(self, ttl_s: float) -> int:
        """Make an etcd lease, with which a value ends by itself. etcd counts whole seconds."""
        return int(self._ask(lambda etcd: etcd.lease(ttl=math.ceil(ttl_s))).id)

    def refresh_lease(self, lease: int) -> bool:
        """Renew an etcd lease to its whole length; return whether it still existed."""
        return self._ask(lambda etcd: EtcdLease(lease, etcd).refresh()) > 0

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _unchanged(self, expected: int) -> dict[str, Any]:
        return {"key": _text(self.name), "target": "MOD", "result": "EQUAL", "mod_revision": expected}

    def _transact(self, compare: list[dict[str, Any]], changes: list[dict[str, Any]]) -> Seen:
        read = {"request_range": {"key": _text(self.name)}}
        transaction = {"compare": compare, "success": [*changes, read], "failure": [read]}
        answer = self._ask(lambda etcd: etcd.transaction(transaction))
        try:
            return _seen(answer)
        except (KeyError, ValueError, TypeError) as error:
            text = f"{self.server} says what cannot be read under {self.name}: {error!r}"
            raise EtcdUnavailable(text) from error

    def _ask(self, what: Callable[[Etcd3Client], _T]) -> _T:
        """Ask members for `what` until one answers. That member is asked first the next time."""
        trouble = ""
        for member in list(self._members):
            try:
                answer = self._ask_member(member, what)
            except Etcd3Exception as error:
                trouble = _reason(error)
            except (requests.RequestException, KeyError, ValueError, OSError) as error:
                trouble = str(error)
            else:
                self._members.remove(member)
                self._members.insert(0, member)
                return answer
        raise EtcdUnavailable(f"{self.server} serves no leases now: {trouble}")

    def _ask_member(self, member: Etcd3Client, what: Callable[[Etcd3Client], _T]) -> _T:
        try:
            return what(member)
        except Etcd3Exception as error:
            wanted = any(sign in _reason(error) for sign in _WITHOUT_TOKEN)
            if not (wanted and self._access.password_file):
                raise
        self._log_in(member)
        return what(member)

    def _log_in(self, member: Etcd3Client) -> None:
        password = Path(self._access.password_file).expanduser().read_text(encoding="utf-8").strip()
        who = {"name": self._access.user or getpass.getuser(), "password": password}
        token = member.post(member.get_url("/auth/authenticate"), json=who)["token"]
        self._session.headers["Authorization"] = token


def _session(access: EtcdAccess) -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # a proxy meant for the web must not come between
    if access.ca:
        session.verify = access.ca
    if access.cert:
        session.cert = (access.cert, access.key) if access.key else access.cert
    return session


def _member(host: str, kind: Kind, session: requests.Session, timeout_s: float) -> Etcd3Client:
    name, _, port = host.rpartition(":")
    return Etcd3Client(
        host=name.strip("[]"),
        port=int(port),
        protocol="https" if kind is Kind.ETCD_OVER_TLS else "http",
        timeout=timeout_s,
        api_path="/v3/",  # since etcd 3.4; given here, because the client would ask etcd for it first
        session=session,
    )


def _seen(answer: Any) -> Seen:
    revision = int(answer["header"]["revision"])
    kvs = answer["responses"][-1]["response_range"].get("kvs", [])
    if not kvs:
        return Seen(None, revision)
    value = base64.b64decode(kvs[0].get("value", "")).decode("utf-8")
    return Seen(Kept(value, int(kvs[0]["mod_revision"]), int(kvs[0].get("lease", 0))), revision)


def _text(text: str) -> str:
    """`text` in base64, as etcd's JSON requires for bytes."""
    return base64.b64encode(text.encode()).decode()


def _reason(error: Etcd3Exception) -> str:
    try:
        return str(json.loads(error.detail_text or "")["error"])
    except (ValueError, KeyError, TypeError):
        return error.detail_text or str(error)
