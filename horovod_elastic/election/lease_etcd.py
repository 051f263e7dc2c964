"""The lease of a job's leader in etcd, as Amoeba has it (Algorithm 1): a transaction is the compare-and-swap,
etcd's own leases are the time to live.

One key for a run of a job, PREFIX/UID/JOB.RESTART.RUN, so that a site can give each user a role for their
own part. Its value is a small JSON object. Terms are one more than etcd's revision, or than what the taker
has seen if that is higher, so they grow even if the site begins a new etcd.

etcd speaks JSON over HTTP here (etcd3gw): its gRPC clients for Python are not kept up and need an old
protobuf.
"""

from __future__ import annotations

import base64
import getpass
import json
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import requests
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from etcd3gw.lease import Lease as EtcdLease

from flexo_protos.lease_place import Kind, LeasePlace
from flexo_protos.leases import Lease
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic.election.leases import ANSWER_WITHIN_S, EtcdAccess, JobRun, StoreAway

_WITHOUT_TOKEN = ("user name is empty", "invalid auth token", "auth store is old")
"""How etcd says that it wants to know who asks (again: its tokens last minutes)."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Record:
    """What the key holds, and where it stands in etcd."""

    lease: Lease
    revision: int
    etcd_lease: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look: the record if there is one, and etcd's revision."""

    record: _Record | None
    revision: int

    @property
    def lease(self) -> Lease:
        return self.record.lease if self.record is not None else Lease("", "", 0, 0, 0.0)


class EtcdLeases:
    """LeaseStore of one job. `expires_in_s` is the whole time to live: what is left of it is not asked."""

    def __init__(self, place: LeasePlace, job: JobRun, access: EtcdAccess) -> None:
        self._name = f"etcd at {','.join(place.hosts)}"
        self._key = f"{place.prefix}/{os.getuid()}/{job.job_id}.{job.restart_count}.{place.run}"
        self._access = access
        self._session = _session(access)
        self._members = [_member(host, place.kind, self._session, len(place.hosts)) for host in place.hosts]
        self._lock = threading.Lock()
        self._mine: EtcdLease | None = None

    def acquire(
        self,
        holder: str,
        address: str,
        ttl_s: float,
        claim: pb.Claim.ValueType = pb.CLAIM_UNSPECIFIED,
        seen: int = 0,
    ) -> Lease:
        """See LeaseStore. A holder whose lease ran out is told so (vacant): others may have led since."""
        with self._lock:
            found = self._look()
            record = found.record
            if record is None:
                if claim == pb.CLAIM_HOLDER:
                    return found.lease
                term = max(found.revision, seen) + 1
                return self._write(Lease(holder, address, term, 0, ttl_s), 0)
            old = record.lease
            if old.holder != holder or (claim == pb.CLAIM_HOLDER and old.address != address):
                return old
            if old.address == address and self._keep_alive(record):
                return old
            if old.address in ("", address):
                return self._write(Lease(holder, address, old.term, old.previous, ttl_s), record.revision)
            term = max(found.revision, old.term, seen) + 1  # this agent was started again
            return self._write(Lease(holder, address, term, old.term, ttl_s), record.revision)

    def look(self) -> Lease:
        """See LeaseStore."""
        with self._lock:
            return self._look().lease

    def release(self, holder: str, successor: str = "") -> Lease:
        """See LeaseStore."""
        with self._lock:
            found = self._look()
            record = found.record
            if record is None or record.lease.holder != holder:
                return found.lease
            if successor:
                term = max(found.revision, record.lease.term) + 1
                reserved = Lease(successor, "", term, record.lease.term, record.lease.expires_in_s)
                return self._write(reserved, record.revision)
            self._mine = None  # etcd's lease under it runs out by itself
            return self._swap(record.revision, [{"request_delete_range": {"key": _text(self._key)}}]).lease

    def close(self) -> None:
        """See LeaseStore."""
        self._session.close()

    def _look(self) -> _Seen:
        return self._swap(None, [])

    def _write(self, lease: Lease, expected: int) -> Lease:
        """Put `lease` under a new lease of etcd's if the key is still as it was; who holds it now."""
        granted = self._ask(lambda etcd: etcd.lease(ttl=math.ceil(lease.expires_in_s)))
        put = {"key": _text(self._key), "value": _text(_as_json(lease)), "lease": granted.id}
        now = self._swap(expected, [{"request_put": put}])
        if now.record is not None and now.record.etcd_lease == granted.id:
            self._mine = granted
        return now.lease

    def _keep_alive(self, record: _Record) -> bool:
        mine = self._mine
        if mine is None or mine.id != record.etcd_lease:
            return False
        return self._ask(lambda etcd: EtcdLease(mine.id, etcd).refresh()) > 0

    def _swap(self, expected: int | None, changes: list[dict[str, Any]]) -> _Seen:
        """The compare-and-swap: `changes` if the key's revision is `expected`; what stands there then.

        0: if the key is absent. None: in any case.
        """
        key = _text(self._key)
        read = {"request_range": {"key": key}}
        compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": expected}
        transaction = {
            "compare": [] if expected is None else [compare],
            "success": [*changes, read],
            "failure": [read],
        }
        answer = self._ask(lambda etcd: etcd.transaction(transaction))
        try:
            return _seen(answer)
        except (KeyError, ValueError, TypeError) as error:
            raise StoreAway(f"{self._name} says what cannot be read under {self._key}: {error!r}") from error

    def _ask(self, what: Callable[[Etcd3Client], _T]) -> _T:
        """`what` from the first member that answers; the one that did is asked first the next time."""
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
        raise StoreAway(f"{self._name} serves no leases now: {trouble}")

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


def _member(host: str, kind: Kind, session: requests.Session, members: int) -> Etcd3Client:
    name, _, port = host.rpartition(":")
    return Etcd3Client(
        host=name.strip("[]"),
        port=int(port),
        protocol="https" if kind is Kind.ETCD_OVER_TLS else "http",
        timeout=max(0.5, ANSWER_WITHIN_S / members),
        api_path="/v3/",  # since etcd 3.4; not looked up, so that the first question is the only one
        session=session,
    )


def _seen(answer: Any) -> _Seen:
    revision = int(answer["header"]["revision"])
    kvs = answer["responses"][-1]["response_range"].get("kvs", [])
    if not kvs:
        return _Seen(None, revision)
    said = json.loads(base64.b64decode(kvs[0]["value"]))
    terms = int(said["term"]), int(said["previous"])
    lease = Lease(str(said["holder"]), str(said["address"]), *terms, float(said["ttl_s"]))
    return _Seen(_Record(lease, int(kvs[0]["mod_revision"]), int(kvs[0].get("lease", 0))), revision)


def _as_json(lease: Lease) -> str:
    said = {"holder": lease.holder, "address": lease.address, "term": lease.term}
    return json.dumps({**said, "previous": lease.previous, "ttl_s": lease.expires_in_s})


def _text(text: str) -> str:
    """etcd's JSON wants bytes in base64."""
    return base64.b64encode(text.encode()).decode()


def _reason(error: Etcd3Exception) -> str:
    try:
        return str(json.loads(error.detail_text or "")["error"])
    except (ValueError, KeyError, TypeError):
        return error.detail_text or str(error)
