"""Signs grants. A leader keeps flexod's signature of a grant, and shows it to a flexod that does not know the
grant.

The signature is HMAC-SHA256 with a key that only flexod has (service/grant_key.py). flexod signs the whole
grant. The signature carries the parts that a leader does not repeat in its report. It is valid for about as
long as a satellite's time limit, so that a withdrawn grant cannot be shown for ever.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from typing import Final

from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import SatelliteReport
from flexo.model.queue import JobKey, Principal
from flexo_protos.resources import Resources, of_message, rounded_up, to_message
from flexo_protos.v1 import jobs_pb2

KEY_BYTES: Final = 32
LONGEST: Final = 512
"""The most bytes of a signature."""
_BY_UID: Final = b"\x01"
"""A signature's first byte: the owner is a uid, in the fields."""
_BY_NAME: Final = b"\x02"
"""First byte: the owner is a name, which follows the fields after one byte for its length."""
_OF_ANYTHING: Final = b"\x03"
"""First byte: as `_BY_NAME`, and after the name, after two bytes for their length, all granted resources
instead of GPUs, CPUs and memory alone."""
_FIELDS: Final = struct.Struct(">qIIQdd")
"""The owner's uid or 0, GPUs, CPUs, MiB, when the grant was issued, until when the signature is valid."""
_MAC_BYTES: Final = hashlib.sha256().digest_size
_CLOCKS_DIFFER_S: Final = 300.0
"""The most seconds by which the clocks of two hosts of flexod may differ."""


class GrantSigner:
    """Signs and verifies. Safe from any thread."""

    def __init__(self, key: bytes, trouble: str = "") -> None:
        """`trouble`: why no other flexod has this key; "" if other flexods have it."""
        self._key = key
        self.trouble = trouble

    @classmethod
    def of_this_process(cls, trouble: str = "") -> GrantSigner:
        """A signer with a key that ends with this process."""
        return cls(secrets.token_bytes(KEY_BYTES), trouble)

    def sign(self, grant: IssuedGrant, not_after: float) -> bytes:
        """The signature of `grant`, valid until `not_after`."""
        uid = int(grant.owner) if grant.owner.isdecimal() else 0
        given = grant.resources or Resources()
        whole_gpus = rounded_up(given.gpus, 1)
        told = _FIELDS.pack(uid, whole_gpus, given.cpus, given.memory_mib, grant.issued_at, not_after)
        name, partition = grant.owner.encode(), grant.partition.encode()
        if not given.plain:
            all_of_it = to_message(given).SerializeToString()
            told = _OF_ANYTHING + told + _with_length("B", name) + _with_length("H", all_of_it) + partition
        elif grant.owner.isdecimal():
            told = _BY_UID + told + partition
        else:
            told = _BY_NAME + told + _with_length("B", name) + partition
        return told + self._mac(grant.job, grant.grant_id, grant.node, grant.workers, told)

    def verify(self, job: JobKey, told: SatelliteReport, now: float, longest_s: float) -> IssuedGrant | None:
        """The grant that a leader of `job` shows; None if flexod did not sign it, or the signature has
        expired.

        `longest_s`: the longest validity of any signature.
        """
        body, mac = told.signature[:-_MAC_BYTES], told.signature[-_MAC_BYTES:]
        version, fields = body[:1], body[1:]
        if version not in (_BY_UID, _BY_NAME, _OF_ANYTHING) or len(fields) < _FIELDS.size:
            return None
        if not hmac.compare_digest(mac, self._mac(job, told.grant_id, told.node, told.workers, body)):
            return None
        uid, gpus, cpus, memory_mib, issued_at, not_after = _FIELDS.unpack(fields[: _FIELDS.size])
        if not now <= not_after <= now + longest_s + _CLOCKS_DIFFER_S:
            return None
        rest, owner, given = fields[_FIELDS.size :], str(uid), Resources(gpus, cpus, memory_mib)
        if version != _BY_UID:
            name, rest = _first_of("B", rest)
            owner = name.decode()
        if version == _OF_ANYTHING:
            all_of_it, rest = _first_of("H", rest)
            given = of_message(jobs_pb2.Resources.FromString(all_of_it))
        return IssuedGrant(
            *(job, told.grant_id, Principal(owner), told.node, told.workers, rest.decode()),
            *(given, min(issued_at, now)),
        )

    def _mac(self, job: JobKey, grant_id: str, node: str, workers: int, told: bytes) -> bytes:
        """The authentication code of all parts. Each part follows its length, so that no two grants have the
        same text."""
        numbers = struct.pack(">QQQ", job.job_id, job.restart_count, workers)
        parts = (b"flexo grant", numbers, grant_id.encode(), node.encode(), told)
        text = b"".join(struct.pack(">I", len(part)) + part for part in parts)
        return hmac.digest(self._key, text, "sha256")


def _with_length(form: str, part: bytes) -> bytes:
    """`part` after its length. `form`: struct's format of the length."""
    return struct.pack(f">{form}", len(part)) + part


def _first_of(form: str, parts: bytes) -> tuple[bytes, bytes]:
    """Split `parts` into the first part, which follows its length, and all that follows it."""
    (length,), begins = struct.unpack_from(f">{form}", parts), struct.calcsize(f">{form}")
    return parts[begins : begins + length], parts[begins + length :]
