"""Demand that the inference cluster's own scheduler pushes, the servers that it demands back, and their
return.

A refused push changes nothing. Two threads use this module: the service's, which takes pushes, and lending's,
which reads them. After a restart of flexod nothing of it is left, so a scheduler repeats what it does not
find (docs/howto/loaning-demand.md).
"""

from __future__ import annotations

import enum
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from flexo.loaning.demand import DemandMissing, DemandSource, ReclaimRequest
from flexo.model.loans import Demand, Loan
from flexo.model.nodes import Node
from flexo.model.queue import QueuedJob

MAX_SKEW_S: Final = 30.0
"""The largest difference between the scheduler's clock and flexod's, in seconds."""
MAX_AHEAD_S: Final = 7 * 86_400.0
"""The farthest deadline from now, in seconds."""
MAX_RECLAIM_REQUESTS: Final = 100
"""The most demands for servers at a time, done ones that are still reported included. Lending goes through
all of them in every cycle."""
MAX_CALLED_SERVERS: Final = 10_000
"""The most servers in all these demands together. All are reported in one message, of which gRPC takes 4
MiB."""
KEEP_DONE_S: Final = 3_600.0
"""Seconds for which a demand for servers that is done is reported, unless there are too many."""
_CALL_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class Fault(enum.Enum):
    """The fault of a push that is refused."""

    WRONG = "wrong"
    """The push cannot be true, or names something that does not exist."""
    OUTDATED = "outdated"
    """Something newer, or something else under this name, stands."""
    TOO_EARLY = "too early"
    """flexod has not polled the cluster yet."""
    TOO_MANY = "too many"


class BadPush(ValueError):
    """The error for a push that is refused and has changed nothing: what is wrong with it, and what is
    allowed."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Empty:
    """A server that has come back, and when."""

    node: str
    at: float


@dataclass(frozen=True, slots=True)
class Called:
    """A demand for servers, and how far it is met."""

    call_id: str
    asked_at: float
    deadline_at: float
    why: str
    nodes: tuple[str, ...]
    """The servers as demanded; empty if a number was."""
    servers: int
    """The number of servers that are to come back because of it."""
    empty: tuple[Empty, ...] = ()

    @property
    def missing(self) -> int:
        """The number of servers that have yet to come back."""
        return self.servers - len(self.empty)

    @property
    def done_at(self) -> float | None:
        """Time when the last server came back; None: some are missing."""
        return None if self.missing else max((each.at for each in self.empty), default=self.asked_at)

    def still_lent(self) -> tuple[str, ...]:
        """The servers demanded by name that have yet to come back."""
        back = {each.node for each in self.empty}
        return tuple(node for node in self.nodes if node not in back)


@dataclass(frozen=True, slots=True)
class LendingStatus:
    """All that the scheduler is told about loans and its demands."""

    loans: tuple[Loan, ...]
    called: tuple[Called, ...]


class PushedDemand(DemandSource):
    """The last push, if it is not older than `stale_s`, and all demands for servers. `partition` names the
    servers."""

    def __init__(self, partition: str, stale_s: float) -> None:
        self._partition = partition
        self._stale_s = stale_s
        self._lock = threading.Lock()
        self._servers: frozenset[str] | None = None
        self._loans: tuple[Loan, ...] | None = None
        self._demand: Demand | None = None
        self._called: dict[str, Called] = {}
        self._listeners: list[Callable[[], None]] = []

    # The methods for lending's thread.

    def read(self, now: float, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Demand:
        """The pushed demand, if it is recent (see DemandSource)."""
        with self._lock:
            self._servers = frozenset(node.name for node in nodes if self._partition in node.partitions)
            demand = self._demand
        if demand is None:
            raise DemandMissing("the inference cluster's scheduler has not pushed its demand yet")
        age = now - demand.at
        if age > self._stale_s or age < -MAX_SKEW_S:
            old = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s in the future: a clock has jumped"
            raise DemandMissing(f"what the inference cluster's scheduler pushed last is {old}")
        return demand

    def reclaim_requests(self, now: float) -> tuple[ReclaimRequest, ...]:
        """The open demands for servers (see DemandSource)."""
        with self._lock:
            open_ones = sorted((c for c in self._called.values() if c.missing), key=_by_deadline)
        return tuple(
            ReclaimRequest(
                c.call_id, c.asked_at, c.deadline_at, c.why, c.still_lent(), 0 if c.nodes else c.missing
            )
            for c in open_ones
        )

    def heed(self, now: float, loans: Sequence[Loan]) -> None:
        """Credit servers that have come back: to the demands that name them, else to the most urgent number
        (see DemandSource)."""
        with self._lock:
            lent = {loan.node for loan in loans}
            for node in sorted({loan.node for loan in self._loans or ()} - lent):
                self._credit(Empty(node, now))
            self._cut_numbers(lent)
            changed = tuple(loans) != self._loans
            self._loans = tuple(loans)
            self._forget_done(now)
        if changed:
            self._tell()

    def _credit(self, empty: Empty) -> None:
        named = [c for c in self._called.values() if empty.node in c.still_lent()]
        numbers = sorted((c for c in self._called.values() if not c.nodes and c.missing), key=_by_deadline)
        for called in named or numbers[:1]:
            self._called[called.call_id] = replace(called, empty=(*called.empty, empty))

    def _cut_numbers(self, lent: set[str]) -> None:
        """Reduce demanded numbers to the servers that are lent and not named; the least urgent demand
        yields."""
        named = {node for called in self._called.values() for node in called.still_lent()}
        left = len(lent - named)
        for called in sorted(self._called.values(), key=_by_deadline):
            if not called.nodes:
                missing = min(called.missing, left)
                left -= missing
                self._called[called.call_id] = replace(called, servers=len(called.empty) + missing)

    def _forget_done(self, now: float) -> None:
        self._called = {
            name: called
            for name, called in self._called.items()
            if called.done_at is None or now - called.done_at < KEEP_DONE_S
        }

    # The methods for the service's thread.

    def push(self, servers: float, at: float, by: str, now: float) -> float:
        """Take the demand that was `servers` at `at`. Returns the time when it becomes stale. Raises
        BadPush."""
        with self._lock:
            self._known_servers()
            if not (math.isfinite(servers) and servers >= 0):  # above the size: all are needed
                raise BadPush(Fault.WRONG, f"a demand of {servers:g} servers: a number from 0 is allowed")
            _check_clock("at", at, now, self._stale_s)
            if self._demand is not None and at < self._demand.at <= now + MAX_SKEW_S:
                newer = self._demand.at - at
                text = f"a demand {newer:.1f} s older than the last one, which stands: clocks or order?"
                raise BadPush(Fault.OUTDATED, text)
            self._demand = Demand(at, servers, f"pushed by {by}")
        return at + self._stale_s

    def reclaim(self, asked: Called, now: float) -> Called:
        """Take the demand `asked`, whose `empty` is ignored. Returns the demand as it then stands. Raises
        BadPush.

        A number is reduced to the servers that are lent and not demanded already. Named servers that are not
        lent count as empty.
        """
        with self._lock:
            before = self._called.get(asked.call_id)
            if before is not None:
                return _same(before, asked)
            self._check(asked, now)
            lent = {loan.node for loan in self._loans or ()}
            at_home = tuple(Empty(node, now) for node in asked.nodes if node not in lent)
            servers = len(asked.nodes) or min(asked.servers, len(lent))
            if not self._has_room(servers):
                self._forget_done(math.inf)
            if not self._has_room(servers):
                raise BadPush(Fault.TOO_MANY, self._why_too_many(servers))
            self._called[asked.call_id] = replace(asked, servers=servers, empty=at_home)
            self._cut_numbers(lent)
            taken = self._called[asked.call_id]
        self._tell()
        return taken

    def _has_room(self, servers: int) -> bool:
        """Whether one more demand, for this number of servers, can be kept and reported."""
        return (
            len(self._called) < MAX_RECLAIM_REQUESTS and servers + self._servers_called <= MAX_CALLED_SERVERS
        )

    @property
    def _servers_called(self) -> int:
        return sum(called.servers for called in self._called.values())

    def _why_too_many(self, servers: int) -> str:
        stand = f"{len(self._called)} call backs stand already, for {self._servers_called} servers in all"
        most = f"at most {MAX_RECLAIM_REQUESTS}, for {MAX_CALLED_SERVERS} servers in all"
        return f"too many: {stand}, and this one is for {servers}; flexod keeps {most}"

    def withdraw(self, call_id: str) -> None:
        """Withdraw a demand: its servers are not needed any more. Raises BadPush if there is no such
        demand."""
        with self._lock:
            if self._called.pop(call_id, None) is None:
                raise BadPush(Fault.WRONG, f"there is no call back '{call_id[:64]}'")
        self._tell()

    def standing(self) -> LendingStatus:
        """The loans and demands of the moment. Raises BadPush before flexod has polled the cluster."""
        with self._lock:
            self._known_servers()
            return LendingStatus(self._loans or (), tuple(sorted(self._called.values(), key=_by_deadline)))

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, in any thread, whenever `standing` may have changed."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def _tell(self) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def _known_servers(self) -> frozenset[str]:
        if self._servers is None or self._loans is None:
            raise BadPush(Fault.TOO_EARLY, "flexod has not looked at the cluster yet: try again")
        return self._servers

    def _check(self, asked: Called, now: float) -> None:
        servers = self._known_servers()
        if not _CALL_ID.fullmatch(asked.call_id):
            text = f"'{asked.call_id[:64]}' names no call back: it takes 1 to 64 of A-Z a-z 0-9 . _ : -"
            raise BadPush(Fault.WRONG, text)
        if bool(asked.nodes) == bool(asked.servers):
            raise BadPush(Fault.WRONG, "a call back names servers or says how many, one of the two")
        unknown = sorted(set(asked.nodes) - servers)
        if unknown:
            text = f"partition {self._partition} has no server {', '.join(unknown[:10])[:500]}"
            raise BadPush(Fault.WRONG, text)
        if len(set(asked.nodes)) < len(asked.nodes):
            raise BadPush(Fault.WRONG, "a call back names a server twice")
        if not 0 <= asked.servers <= len(servers):
            text = f"{asked.servers} servers back: it takes 1 to {len(servers)}, which the cluster has"
            raise BadPush(Fault.WRONG, text)
        _check_clock("asked_at", asked.asked_at, now, MAX_SKEW_S)
        if not now < asked.deadline_at <= now + MAX_AHEAD_S:
            late = f"{asked.deadline_at - now:+.1f} s from now"
            text = f"a deadline {late} by flexod's clock: it takes one in the future, at most 7 days ahead"
            raise BadPush(Fault.WRONG, text)


def _by_deadline(called: Called) -> tuple[float, str]:
    return called.deadline_at, called.call_id


def _same(before: Called, asked: Called) -> Called:
    """`before`, if `asked` repeats it; a number may have been reduced to what is lent. Raises BadPush."""
    same_servers = before.nodes == asked.nodes and (bool(asked.nodes) or before.servers <= asked.servers)
    if not same_servers or before.deadline_at != asked.deadline_at:
        text = f"call back '{before.call_id}' stands with other words: withdraw it, or choose another name"
        raise BadPush(Fault.OUTDATED, text)
    return before


def _check_clock(what: str, at: float, now: float, oldest_s: float) -> None:
    """Raise BadPush for a time that is no number, too far in the future, or too old."""
    if not math.isfinite(at) or at <= 0:
        raise BadPush(Fault.WRONG, f"{what} = {at:g}: it takes seconds since the epoch")
    if at - now > MAX_SKEW_S or now - at > oldest_s:
        text = (
            f"{what} is {at - now:+.1f} s from flexod's clock: it takes {-oldest_s:+g} to {MAX_SKEW_S:+g};"
            " is a clock wrong?"
        )
        raise BadPush(Fault.WRONG, text)
