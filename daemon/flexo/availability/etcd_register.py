"""The register in etcd: one key, PREFIX/active-flexod.

It lives under no lease of etcd's: how long a record stands is measured by who waits (claim.py), as it is with
a folder, so that there is one set of rules to be right.
"""

from __future__ import annotations

from typing import Final

from flexo.availability.claim import Record
from flexo.availability.register import Found, RegisterAway, as_text, from_text
from flexo_protos.etcd import EtcdAway, EtcdKey, Seen
from flexo_protos.lease_place import EtcdAccess, LeasePlace

KEY: Final = "active-flexod"


class EtcdRegister:
    """The register in the etcd at `place`; nothing is asked yet. A question takes about `answer_within_s`."""

    def __init__(self, place: LeasePlace, access: EtcdAccess, answer_within_s: float) -> None:
        self._key = EtcdKey(place, f"{place.prefix}/{KEY}", access, answer_within_s)
        self.name = f"{self._key.server}, key {self._key.name}"

    def look(self) -> Found:
        """See Register."""
        try:
            return self._found(self._key.look())
        except EtcdAway as error:
            raise RegisterAway(str(error)) from error

    def swap(self, version: int, record: Record) -> bool:
        """See Register. An answer that was lost, and asked for again, counts by what then stands there."""
        try:
            return self._found(self._key.write(as_text(record), version)).record == record
        except EtcdAway as error:
            raise RegisterAway(str(error)) from error

    def close(self) -> None:
        """See Register."""
        self._key.close()

    def _found(self, seen: Seen) -> Found:
        if seen.kept is None:
            return Found(None, 0)
        return Found(from_text(seen.kept.value, self.name), seen.kept.revision)
