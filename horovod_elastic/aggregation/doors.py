"""Who may use an Aggregator: its own job, by a token that only that knows, or those for whom flexod signs."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from typing import Final, Protocol

from flexo_protos import aggregation_token
from flexo_protos.aggregation_token import BadToken
from horovod_elastic.aggregation.frames import BadFrame

UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Guest:
    """A job that was let in. It has this name because its token says so, whatever else it sends."""

    job: str
    quota: int = UNLIMITED
    """The most bytes of memory that its sums may take."""


class Door(Protocol):
    """Lets jobs in."""

    def admit(self, token: str) -> Guest:
        """The job with this token. Raises BadFrame that says why nobody is let in."""


class OwnDoor:
    """The door of a job's own Aggregator."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def admit(self, token: str) -> Guest:
        """See Door."""
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            raise BadFrame("the token is not this Aggregator's")
        return Guest("")


class PoolDoor:
    """The door of a pool's Aggregator with this key. Jobs in `refused` are not let in any more."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.refused: frozenset[str] = frozenset()
        self.is_draining = False
        """Whether no job is let in any more."""

    def admit(self, token: str) -> Guest:
        """See Door."""
        try:
            content = aggregation_token.check(token, self._key, time.time())
        except BadToken as error:
            raise BadFrame(str(error)) from error
        if self.is_draining or content.job in self.refused:
            raise BadFrame(f"job {content.job} is not summed here any more: flexod has assigned it elsewhere")
        return Guest(content.job, content.quota)
