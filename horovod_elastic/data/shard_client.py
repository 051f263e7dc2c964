"""A worker's client of the shard server in its job's leader: it requests partitions and keeps the answers.

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
"""Seconds without an answer after which the leader counts as away. Then the workers share out the rest of the
epoch."""
RETRY_S = 0.5
"""Seconds after which a request is sent again, because the leader that it went to may be gone."""


class Session(Protocol):
    """The interface to the worker's session (horovod_elastic/worker/session.py)."""

    warming: bool
    """Whether this worker has not joined the others yet."""

    @property
    def generation(self) -> int:
        """The generation that this worker is in."""
        ...

    @property
    def speed(self) -> float:
        """The speed of this worker's GPU relative to other workers' GPUs; 0.0: all speeds count alike."""
        ...

    def absent(self) -> frozenset[int]:
        """The ranks that have died and have not trained in the last step."""

    def send(self, message: workers_pb2.FromWorker) -> None:
        """Send a message to the leader."""
        ...

    def on_shards(self, callback: Callable[[pb.Shards], None]) -> None:
        """Register `callback`: the session calls it with every answer, in any thread."""
        ...

    def tell_held(self, held: Callable[[], Iterable[pb.HeldShards]]) -> None:
        """Register `held`: every WorkerStatus message contains what it returns."""
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


class ShardClient:
    """The requests and answers of one dataset. The session calls `held` and `hear`, in any thread."""

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
        """Begin an opening (of a generation or an epoch), in which this worker goes on with `held`.

        `tell`: whether to send the opening's ledger to the leader (on rank 0).
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
        """Ask for this number of samples. If a request is under way already, repeat it if it is old."""
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
        """Repeat the request under way if it is old, with the ledger, which a new leader does not have."""
        if self._asked is None or time.monotonic() < self._asked_at + RETRY_S:
            return
        self._asked_at = time.monotonic()
        self._session.send(workers_pb2.FromWorker(shard_ledger=self._ledger))
        self._session.send(workers_pb2.FromWorker(shards_wanted=self._asked))

    def answers(self) -> list[pb.Shards]:
        """The answers that have arrived since the last call."""
        with self._changed:
            answers, self._answers = self._answers, []
        return answers

    def wait(self) -> bool:
        """Wait for an answer to the request under way. Returns False if the leader is away."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not self._changed.wait_for(lambda: bool(self._answers), timeout=RETRY_S):
                if time.monotonic() >= deadline:
                    return False
                self._ask_again()
        return True

    def hear(self, shards: pb.Shards) -> None:
        """Take an answer of the leader. It is ignored if it does not answer the request under way."""
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
        """All samples that this worker has been given since the opening."""
        with self._changed:
            return pb.HeldShards(
                dataset=self._name,
                generation=self._ledger.generation,
                opening=self._ledger.opening,
                ranges=_said(self._given),
            )


class _Line:
    """All shard clients of one session. The session itself does not know of datasets that come and go."""

    def __init__(self, session: Session) -> None:
        self._clients: WeakSet[ShardClient] = WeakSet()
        session.on_shards(self._hear)
        session.tell_held(self._held)

    def add(self, client: ShardClient) -> None:
        self._clients.add(client)

    def _hear(self, shards: pb.Shards) -> None:
        for client in list(self._clients):
            client.hear(shards)

    def _held(self) -> list[pb.HeldShards]:
        return [held for client in list(self._clients) if (held := client.held()).generation > 0]


_lines: WeakKeyDictionary[Session, _Line] = WeakKeyDictionary()


def _line(session: Session) -> _Line:
    if session not in _lines:
        _lines[session] = _Line(session)
    return _lines[session]


def _said(ranges: Iterable[Range]) -> list[pb.Range]:
    return [pb.Range(start=each.start, length=each.length) for each in ranges]
