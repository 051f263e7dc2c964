"""One GPU in the coordinator: who shares it, who waits for it, and the orders that the law gives."""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from horovod_elastic.sharing import futex, introduction, law, status
from horovod_elastic.sharing.departure import Departure, began_s
from horovod_elastic.sharing.devices import Device
from horovod_elastic.sharing.environment import EVERYBODY, Role
from horovod_elastic.sharing.introduction import Caller, Hello, Kind, Told
from horovod_elastic.sharing.law import GuaranteeSeen, OpportunisticSeen, Order, Seen
from horovod_elastic.sharing.pages import GatePage, GateState, GuaranteePage, OpportunisticPage, Page
from horovod_elastic.sharing.watchdog import is_stale

SHARE_WINDOW_S = 10.0
"""The opportunistic job's share is that of the last seconds."""
GIVEN_S = 60.0
"""So long after an eviction, no gate opens without a guarantee job: a satellite that was only starting then
is taken back meanwhile."""


class Member:
    """One process that shares a GPU, or waits for one. `caller`: who it is, by the kernel.

    `order`: its gate page, made when it is accepted. `gone`: its connection is closed, or it had
    ended before.
    """

    def __init__(
        self, identity: int, connection: socket.socket, caller: Caller, hello: Hello, page: Page
    ) -> None:
        self.identity, self.connection, self.caller = identity, connection, caller
        self.hello, self.page = hello, page
        self.order: GatePage | None = None
        self.gone = False
        self.met = 0
        self._process: int | None = None
        try:
            self._process = os.pidfd_open(caller.pid)
        except ProcessLookupError:
            self.gone = True
        except OSError:  # no descriptor is left, or the process is in another namespace
            pass
        self._seen = [0, 0]
        for ring in self._rings():  # what it told a former coordinator is nobody's baseline
            self.new(ring)

    @property
    def alive(self) -> bool:
        """Whether the process lives. One that cannot be watched lives as long as its connection."""
        if self._process is None:
            return not self.gone
        return not select.select([self._process], [], [], 0)[0]

    def tell(self, told: Told, *pages: Page) -> None:
        """Say something to the process. One that does not listen is not waited for."""
        with suppress(OSError):
            introduction.send(self.connection, told.encoded(), *(page.descriptor for page in pages))

    def accept(self) -> None:
        """Give it a gate page of its own, closed."""
        self.order = GatePage(Page.make("gate"))
        self.tell(Told(Kind.ACCEPTED), self.order.page)

    def dismiss(self, reason: str) -> None:
        """Take its gate page away: closed for good, and stale within a second."""
        if self.order is not None:
            self.order.page.halves[GatePage.STATE] = GateState.CLOSED
            self.order.page.words[1] = 0
            futex.wake(self.order.page.address)
            self.order.page.close()
            self.order = None
        self.met = 0
        self.tell(Told(Kind.QUEUED, reason))

    def evict(self) -> None:
        """Have the job's supervisor end it."""
        if self.order is not None:
            self.order.page.halves[GatePage.STATE] = GateState.EVICTED
            self.order.page.beat()
            futex.wake(self.order.page.address)

    def close(self) -> None:
        """Forget the process. Its connection is the coordinator's to close."""
        self.gone = True
        if self.order is not None:
            self.order.page.halves[GatePage.STATE] = GateState.CLOSED
            self.order.page.close()
            self.order = None
        self.page.close()
        if self._process is not None:
            os.close(self._process)
            self._process = None

    CYCLES, GAPS = 0, 1
    LEAKS = 0

    def _rings(self) -> tuple[int, ...]:
        return (self.CYCLES, self.GAPS) if self.hello.role is Role.GUARANTEE else (self.LEAKS,)

    def new(self, ring: int) -> tuple[float, ...]:
        """Durations in one of its rings since the last call."""
        if self.hello.role is Role.GUARANTEE:
            told = GuaranteePage(self.page)
            chosen = told.cycles if ring == self.CYCLES else told.gaps
        else:
            chosen = OpportunisticPage(self.page).leaks
        durations = tuple(chosen.since(self._seen[ring]))
        self._seen[ring] = chosen.count
        return durations

    def status(self) -> status.Member:
        """What people are told of it. Numbers in a page are the process's own word."""
        if self.hello.role is Role.GUARANTEE:
            told = GuaranteePage(self.page)
            steps, memory, moved, peak = told.cycles.count, told.memory, 0, max(told.peak, told.memory)
        else:
            mine = OpportunisticPage(self.page)
            steps, memory, moved, peak = mine.steps, mine.memory, mine.moved, 0
        stale = self.order is not None and self.order.shared and is_stale(self.page)
        pid, uid = self.caller.pid, self.caller.uid
        return status.Member(self.hello.role, self.hello.job, pid, uid, steps, memory, moved, stale, peak)


@dataclass
class SharedGpu:
    """One GPU. `rules`: the law's numbers.

    `hang_up`: called with the connection of each member that counts no longer, to close it.
    """

    device: Device
    hang_up: Callable[[socket.socket], None]
    rules: law.Rules = field(default_factory=law.Rules)

    def __post_init__(self) -> None:
        self.guarantees: list[Member] = []
        self.opportunistic: Member | None = None
        self.waiting: list[Member] = []
        self._law = law.State()
        self._order = Order(GateState.CLOSED, 0, 0.0, 1, "just started")
        self._worked: deque[tuple[float, int]] = deque()
        self._leaving: list[Member] = []
        """Opportunistic jobs that have to end at once."""
        self._departures: list[Departure] = []
        """The ends of those that may hold the GPU."""
        self._evicted_s = -math.inf
        """When the GPU was given to a job that shares with nobody, by CLOCK_BOOTTIME."""
        self._evictors: list[socket.socket] = []
        """Those who wait for its end."""

    def evict(self, caller: socket.socket) -> None:
        """End all opportunistic jobs at once, and tell the caller when they are gone."""
        self._evicted_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._law = law.State()  # what the former guarantee job held counts no longer
        for member in [*self._seated(), *self.waiting]:
            self._departures.append(Departure(member.caller.pid))
            self._send_away(member)
        self._evictors.append(caller)

    def _send_away(self, member: Member) -> None:
        if member is self.opportunistic:
            self.opportunistic = None
        if member in self.waiting:
            self.waiting.remove(member)
        self._leaving.append(member)
        if member.order is None:
            self._accept(member)
        member.evict()

    def join(self, member: Member) -> None:
        """A process has introduced itself. If the same process did before, that introduction is void."""
        if member.hello.role is Role.OPPORTUNISTIC:
            if began_s(member.caller.pid) <= self._evicted_s:
                self._send_away(member)
                return
            self.waiting.append(member)
            first = self.opportunistic or self.waiting[0]
            if first is not member:
                place, holder = len(self.waiting) - (first in self.waiting), first.caller.pid
                reason = f"process {holder} is the opportunistic job; this one is number {place} in the queue"
                member.tell(Told(Kind.QUEUED, reason, holder))
            return
        for former in [each for each in self.guarantees if each.caller == member.caller]:
            self.guarantees.remove(former)
            self._close(former)
        self.guarantees.append(member)
        self._accept(member)

    def _accept(self, member: Member) -> None:
        try:
            member.accept()
        except OSError:  # no descriptor is left for its page: it will call again
            self.hang_up(member.connection)
            self.lost(member)

    def lost(self, member: Member) -> None:
        """A connection has ended. A guarantee job that lives on still counts, and closes the gate."""
        for former in (self.waiting, self._leaving):
            if member in former:
                former.remove(member)
        if member is self.opportunistic:
            self.opportunistic = None
        if member in self.guarantees:
            if member.alive:
                member.gone = True
                return
            self.guarantees.remove(member)
        self._close(member)

    def _close(self, member: Member) -> None:
        self.hang_up(member.connection)
        member.close()

    def tick(self, now_s: float, complete: bool) -> None:
        """Look, decide, and write the orders. `complete`: all jobs have had the time to introduce
        themselves.
        """
        for member in [each for each in self.members() if not each.alive]:
            self.lost(member)  # a child that it forked may keep its connection open
        self._end_evictions()
        self._seat()
        given_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self._evicted_s
        seen = self._seen(now_s, complete and given_s >= GIVEN_S)
        self._law, order = law.decide(self._law, seen, self.rules)
        if len(self.guarantees) > 1:
            reason = (
                f"{len(self.guarantees)} guarantee processes are on this GPU: only one can be shared with"
            )
            order = Order(GateState.CLOSED, 0, 0.0, 1, reason)
        if order.gate is GateState.EVICTED and self.opportunistic is not None:
            self._departures.append(Departure(self.opportunistic.caller.pid))
            self._send_away(self.opportunistic)
        elif self._departures:
            order = Order(GateState.CLOSED, 0, 0.0, 1, "waiting for the end of jobs that were evicted")
        self._order = order
        self._write(order)

    def _end_evictions(self) -> None:
        """Tell those who wait that the evicted jobs are gone, once they are."""
        self._departures = [each for each in self._departures if not each.is_complete()]
        if self._departures:
            return
        for caller in self._evictors:
            with suppress(OSError):
                introduction.send(caller, Told(Kind.ALONE).encoded())
            caller.close()
        self._evictors.clear()

    def _seat(self) -> None:
        """Let the first candidate in that may run beside the guarantee job."""
        if self._departures:
            return
        guarantee = self.guarantees[0] if self.guarantees else None
        seated = self.opportunistic
        if seated is not None and not _consent(seated, guarantee):
            seated.dismiss(
                f"the guarantee job of user {guarantee.caller.uid if guarantee else 0} has not agreed"
            )
            self.opportunistic = None
            self.waiting.append(seated)
        if self.opportunistic is None:
            for candidate in self.waiting:
                if _consent(candidate, guarantee):
                    self.waiting.remove(candidate)
                    self.opportunistic = candidate
                    self._worked.clear()
                    self._accept(candidate)
                    break
        self._introduce(guarantee)

    def _introduce(self, guarantee: Member | None) -> None:
        seated = self.opportunistic
        identity = guarantee.identity if guarantee is not None else -1
        if seated is None or seated.met == identity:
            return
        seated.met = identity
        if guarantee is None:
            seated.tell(Told(Kind.ALONE))
        else:
            seated.tell(Told(Kind.PEER, pid=guarantee.caller.pid), guarantee.page)

    def _seen(self, now_s: float, complete: bool) -> Seen:
        guarantee = opportunistic = None
        if self.guarantees:
            member = self.guarantees[0]
            page = GuaranteePage(member.page)
            # The page of a job that is only just told that it shares is old.
            age_s = page.page.age_s() if member.order is not None and member.order.shared else 0.0
            guarantee = GuaranteeSeen(
                member.identity,
                member.new(Member.CYCLES),
                member.new(Member.GAPS),
                page.peak,
                float("inf") if member.gone else age_s,
            )
        if self.opportunistic is not None:
            told = OpportunisticPage(self.opportunistic.page)
            opportunistic = OpportunisticSeen(
                self.opportunistic.identity, self.opportunistic.new(Member.LEAKS), told.memory, told.moved
            )
        return Seen(now_s, self.device.memory_total, guarantee, opportunistic, complete)

    def _write(self, order: Order) -> None:
        shared = int(self.opportunistic is not None and bool(self.guarantees))
        for member in self.guarantees:
            if member.order is not None:
                member.order.page.beat()
                if shared and not member.order.shared:
                    member.order.page.words[GatePage.SHARED] = 1
                    futex.wake(member.order.page.address)
                    member.tell(Told(Kind.SHARED))
                member.order.page.words[GatePage.SHARED] = shared
        seated = self.opportunistic
        if seated is None or seated.order is None:
            return
        page, words = seated.order.page, seated.order.page.words
        words[GatePage.SHARED] = 1
        words[GatePage.PATIENCE] = int(min(order.patience_s * 1e9, law.FAR))
        words[GatePage.EVERY] = order.every
        if words[GatePage.LIMIT] != order.limit:
            words[GatePage.LIMIT] = order.limit
            words[GatePage.EPOCH] += 1
        changed = page.halves[GatePage.STATE] != order.gate
        page.halves[GatePage.STATE] = order.gate
        page.beat()
        if changed:
            futex.wake(page.address)

    def members(self) -> list[Member]:
        """Everybody here."""
        return [*self.guarantees, *self._seated(), *self.waiting, *self._leaving]

    def status(self) -> status.Gpu:
        """What people are told, with a new look at the device."""
        guarantees = [each.status() for each in self.guarantees]
        seated = [each.status() for each in self._seated()]
        members = [*guarantees, *seated]
        reading = self.device.read([each.pid for each in members], sum(each.memory for each in members))
        device, order = self.device, self._order
        return status.Gpu(
            name=device.name,
            device=device.model,
            pretended=device.pretended,
            memory_total=device.memory_total,
            memory_used=reading.memory_used,
            utilization=round(reading.utilization, 4),
            gate=order.gate.name.lower(),
            reason=order.reason,
            limit=order.limit,
            guarantee=next(iter(guarantees), None),
            opportunistic=next(iter(seated), None),
            waiting=tuple(each.status() for each in self.waiting),
            guarantee_slowdown=self._law.slowdown,
            opportunistic_share=self._share(),
        )

    def _seated(self) -> list[Member]:
        return [self.opportunistic] if self.opportunistic is not None else []

    def _share(self) -> float | None:
        if self.opportunistic is None:
            return None
        now = time.monotonic()
        self._worked.append((now, OpportunisticPage(self.opportunistic.page).worked))
        while len(self._worked) > 2 and now - self._worked[0][0] > SHARE_WINDOW_S:
            self._worked.popleft()
        (began, before), (ended, after) = self._worked[0], self._worked[-1]
        return min(1.0, max(0.0, (after - before) / 1e9 / (ended - began))) if ended > began else 0.0

    def close(self) -> None:
        """Close all gates."""
        for member in self.members():
            self._close(member)


def _consent(candidate: Member, guarantee: Member | None) -> bool:
    """Whether these two may share: one user's jobs may, and those of users who agree to each other."""
    if guarantee is None or candidate.caller.uid == guarantee.caller.uid:
        return True
    return _agrees(candidate, guarantee) and _agrees(guarantee, candidate)


def _agrees(member: Member, other: Member) -> bool:
    return not member.hello.consent.isdisjoint({other.caller.uid, EVERYBODY})
