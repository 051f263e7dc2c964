"""The worker's end of the conversation about partitions: asks its job's leader, keeps what it answers.

Outside of flexo there is no leader, and nothing here is used.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from flexo_protos.v1 import shards_pb2 as pb
from flexo_protos.v1 import workers_pb2
from horovod_elastic.data.allotment import Opening, Whole
from horovod_elastic.ranges import Range

PATIENCE_S = 2.0
"""A leader that does not answer for so long is away: the workers share out the rest of the epoch."""
RETRY_S = 0.5
"""After so long a request is said again: the leader that it went to may be gone."""


class Session(Protocol):
    """What is needed of the worker's session (horovod_elastic/worker/session.py)."""

    warming: bool
    """It has not joined the others yet."""

    @property
    def generation(self) -> int:
        """The one that this worker is in."""
        ...

    @property
    def speed(self) -> float:
        """Of this worker's GPU beside those of others; 0.0: all count alike."""
        ...

    def send(self, message: workers_pb2.FromWorker) -> None:
        """Say something to the leader."""
        ...

    def on_shards(self, callback: Callable[[pb.Shards], None]) -> None:
        """Have `callback` called with every answer, in any thread."""
        ...

    def tell_held(self, held: Callable[[], Iterable[pb.HeldShards]]) -> None:
        """Have every Standing say what `held` returns."""
        ...


def find_session() -> Session | None:
    """The session of this training process; None outside of flexo."""
    module: Any = sys.modules.get("horovod_elastic.worker.session")
    if module is None:  # flexo's hooks import it together with Horovod
        return None
    try:
        session: Any = module.current()
    except KeyError:
        return None
    return session if session.belongs_here() else None


class Desk:
    """One dataset's requests and answers. `held` and `hear` are called in the session's thread."""

    def __init__(self, session: Session, whole: Whole) -> None:
        self._session = session
        self._name = whole.name
        self._changed = threading.Condition()
        self._ledger = pb.ShardLedger()
        self._given: list[Range] = []
        self._asked: pb.ShardsWanted | None = None
        self._asked_at = 0.0
        self._request = 0
        self._answers: list[pb.Shards] = []
        _line(session).add(self)

    def open(self, opening: Opening, whole: Whole, epoch: int, held: Iterable[Range], *, tell: bool) -> None:
        """A generation or an epoch begins, in which this worker goes on with `held`.

        With `tell` (on rank 0) the leader is told of it.
        """
        ledger = pb.ShardLedger(
            dataset=whole.name,
            generation=self._session.generation,
            opening=opening.number,
            samples=whole.samples,
            partitions=whole.partitions,
            seed=whole.seed,
            epoch=epoch,
            consumed=_said(opening.consumed),
            held=_said(opening.held),
        )
        with self._changed:
            self._ledger, self._given = ledger, list(held)
            self._asked, self._answers = None, []
        if tell:
            self._session.send(workers_pb2.FromWorker(shard_ledger=ledger))

    def ask(self, at_least: int) -> None:
        """Ask for so many samples, unless a request is under way already."""
        with self._changed:
            if self._asked is None:
                self._request += 1
                self._asked = pb.ShardsWanted(
                    dataset=self._name,
                    generation=self._ledger.generation,
                    opening=self._ledger.opening,
                    request=self._request,
                    at_least=at_least,
                )
                self._asked_at = time.monotonic()
                self._session.send(workers_pb2.FromWorker(shards_wanted=self._asked))
            else:
                self._ask_again()

    def _ask_again(self) -> None:
        """Say what is under way again if it is old; with the ledger, which a new leader has not heard."""
        if self._asked is None or time.monotonic() < self._asked_at + RETRY_S:
            return
        self._asked_at = time.monotonic()
        self._session.send(workers_pb2.FromWorker(shard_ledger=self._ledger))
        self._session.send(workers_pb2.FromWorker(shards_wanted=self._asked))

    def answers(self) -> list[pb.Shards]:
        """What has come since the last call."""
        with self._changed:
            answers, self._answers = self._answers, []
        return answers

    def wait(self) -> bool:
        """Wait for an answer to the request that is under way; False: the leader is away."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not self._changed.wait_for(lambda: bool(self._answers), timeout=RETRY_S):
                if time.monotonic() >= deadline:
                    return False
                self._ask_again()
        return True

    def hear(self, shards: pb.Shards) -> None:
        """An answer, perhaps to somebody else or of another time."""
        with self._changed:
            asked = self._asked
            if (
                asked is None
                or (shards.dataset, shards.request) != (self._name, asked.request)
                or (shards.generation, shards.opening) != (asked.generation, asked.opening)
            ):
                return
            self._asked = None
            self._given += (Range(each.start, each.length) for each in shards.ranges)
            self._answers.append(shards)
            self._changed.notify_all()

    def held(self) -> pb.HeldShards:
        """All that this worker has been given since the opening."""
        with self._changed:
            return pb.HeldShards(
                dataset=self._name,
                generation=self._ledger.generation,
                opening=self._ledger.opening,
                ranges=_said(self._given),
            )


class _Line:
    """All desks of one session, which knows nothing of datasets that come and go."""

    def __init__(self, session: Session) -> None:
        self._desks: WeakSet[Desk] = WeakSet()
        session.on_shards(self._hear)
        session.tell_held(self._held)

    def add(self, desk: Desk) -> None:
        self._desks.add(desk)

    def _hear(self, shards: pb.Shards) -> None:
        for desk in list(self._desks):
            desk.hear(shards)

    def _held(self) -> list[pb.HeldShards]:
        return [held for desk in list(self._desks) if (held := desk.held()).generation > 0]


_lines: WeakKeyDictionary[Session, _Line] = WeakKeyDictionary()


def _line(session: Session) -> _Line:
    if session not in _lines:
        _lines[session] = _Line(session)
    return _lines[session]


def _said(ranges: Iterable[Range]) -> list[pb.Range]:
    return [pb.Range(start=each.start, length=each.length) for each in ranges]
