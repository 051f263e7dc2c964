"""A stand-in for MUNGE in tests of a job's servers: credentials that anybody can write."""

from __future__ import annotations

import os

from flexo_protos.credentials import Caller, NotAuthentic


class Trusting:
    """Believes the uid that a credential ("uid method") names, but only for the method that it names."""

    def credential(self, method: str) -> str:
        """The credential of this process's user."""
        return f"{os.getuid()} {method}"

    def verify(self, credential: str, method: str) -> Caller:
        """Who made the credential. Raises NotAuthentic."""
        uid, _, said = credential.partition(" ")
        if said != method or not uid.isdecimal():
            raise NotAuthentic(f"the credential was not made for {method}")
        return Caller(int(uid), 0)
