"""The election of a job's leader: Amoeba's Algorithm 1, as one agent runs it over its job's lease.

An agent that needs a leader asks for the lease. If it gets the lease, it leads, and refreshes the lease in a
thread. Else it hears who has the lease, and follows that agent. When its leader goes away, it asks again,
until another agent has the lease, or it has the lease itself. Agents ask only then: as long as agent and
leader hear each other, nothing depends on the lease's server.

A leader may meet these conditions:

* The server is away. The leader goes on, and no other agent can take the lease either (`certain` turns
  False).
* Another agent has its lease, or may have had it after it ran out, because the leader was stopped, or cut
  off. The first refresh that gets through reports that through `lost`, and the leader must step down.
* flexod was started again and knows no leases. The refresh takes the lease anew, with a higher term.

`Candidate` has the rules of asking for a lease, `HeldLease` those of holding one, both without threads and
clocks. An agent uses `Election`.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flexo_protos.leader_leases.lease import HeldLease, LeaderLease, StoreUnavailable
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic import threads, wire
from horovod_elastic.election.lease_client import LeaseClient

TTL_S = 5.0
REFRESHES_PER_TTL = 3
HOLD_BACK_S = 2.0
"""Time for which a satellite's agent that sees a vacant lease leaves it to the base's agents."""
LOOK_AGAIN_S = 1.0
SUCCESSOR_WITHIN_S = 0.1
"""Interval of requests while a named successor has not given its address yet."""
LEADERLESS_S = 2.0
"""After this time without the lease's server, an agent tries its former leader once more."""


class Role(enum.Enum):
    """The agent's part in the job: it decides how early the agent asks for the lease."""

    FOUNDER = "founder"
    """An agent of the base that was started with the job."""
    BASE = "base"
    """An agent of the base that was started again."""
    SATELLITE = "satellite"
    FOLLOWER = "follower"
    """An agent that never leads: of a satellite of an opportunistic job, whose base keeps the state, or of a
    satellite without workers."""


@dataclass(frozen=True, slots=True)
class Leading:
    """This agent leads. `heir`: another agent may have led before, so learn from the agents that attach."""

    term: int
    heir: bool


@dataclass(frozen=True, slots=True)
class Following:
    """Another agent leads, at `address` (host:port)."""

    address: str
    holder: str
    term: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is decided yet: ask again after this number of seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Over:
    """No agent leads any more, because the job has ended (wire.over)."""

    exit_code: int


class Closed(Exception):
    """The election was closed while a thread waited for its outcome."""


class Candidate:
    """One agent's search for a leader: the next request to the lease's server, and the meaning of its answer.

    Times are one monotonic clock's. `seen`: highest term that this agent knows of. `lost`: the leader that it
    cannot reach any more.
    """

    def __init__(
        self, me: str, role: Role, ttl_s: float, now: float, *, seen: int = 0, lost: Following | None = None
    ) -> None:
        self._me = me
        self._role = role
        self._seen = seen
        self._lost = lost
        self._began = now
        self._patient_until = now + ttl_s + LOOK_AGAIN_S
        self._eager = role in (Role.FOUNDER, Role.BASE)
        self._vacant_since: float | None = None

    @property
    def claim(self) -> pb.Claim.ValueType:
        """The claim of this agent when it asks for the lease."""
        founder = self._role is Role.FOUNDER and not self._seen
        return pb.CLAIM_FOUNDER if founder else pb.CLAIM_UNSPECIFIED

    def wants_it(self, now: float) -> bool:
        """Whether to ask for the lease, rather than only look at it.

        A satellite's agent waits until the lease has been vacant for HOLD_BACK_S.
        """
        if self._eager or self._role is Role.FOLLOWER:
            return self._eager
        return self._vacant_since is not None and now - self._vacant_since >= HOLD_BACK_S

    def heard(self, lease: LeaderLease, asking: bool, now: float) -> Leading | Following | Over | Pause:
        """Take an answer of the lease's server. `asking`: it answers a request for the lease, not a look."""
        if lease.vacant:
            return self._heard_vacant(lease, now)
        self._vacant_since = None
        if (exit_code := wire.exit_code_of(lease.holder)) is not None:
            return Over(exit_code)
        if lease.holder == self._me:
            return self._heard_mine(lease, asking)
        if not lease.address:
            return Pause(SUCCESSOR_WITHIN_S)
        if self._is_lost(lease) and now < self._patient_until:
            # A leader that is gone will not refresh. One that does refresh is worth another try.
            return Pause(min(LOOK_AGAIN_S, lease.expires_in_s + 0.02))
        return Following(lease.address, lease.holder, lease.term)

    def away(self, now: float) -> Following | Pause:
        """Decide what to do while the lease's server is away: the lost leader may be back before it."""
        if self._lost is not None and now - self._began >= LEADERLESS_S:
            return self._lost
        return Pause(LOOK_AGAIN_S)

    def _heard_vacant(self, lease: LeaderLease, now: float) -> Pause:
        """Decide when to ask again for a vacant lease.

        This agent's role may hold it back, or a server that has just begun. Or the lease was just given up.
        """
        if self._vacant_since is None:
            self._vacant_since = now
        if self._role is Role.FOLLOWER:
            return Pause(LOOK_AGAIN_S)
        if not self.wants_it(now):
            return Pause(self._vacant_since + HOLD_BACK_S - now)
        return Pause(max(SUCCESSOR_WITHIN_S, min(lease.expires_in_s, LOOK_AGAIN_S)))

    def _is_lost(self, lease: LeaderLease) -> bool:
        lost = self._lost
        return lost is not None and (lease.holder, lease.address) == (lost.holder, lost.address)

    def _heard_mine(self, lease: LeaderLease, asking: bool) -> Leading | Pause:
        if not asking:  # a satellite's agent (the named successor, or one started again) has only looked
            self._eager = True
            return Pause(0.0)
        return Leading(lease.term, bool(lease.previous or self._seen or self._role is not Role.FOUNDER))


class Election:
    """Algorithm 1 for one agent. `follow` and `keep` are for one thread; the rest may be called from any.

    Args:
        store: the job's lease.
        holder: the agent's name, which no other agent of this job has.
        own_address: host:port of this agent's leader service; it must listen before `follow` is called.
        role: the agent's part in the job.
        ttl_s: time after which the lease of a leader that does not refresh it runs out.
        say: called once when the lease's server is away, and once when it is back.
    """

    def __init__(
        self,
        store: LeaseClient,
        holder: str,
        own_address: Callable[[], str],
        role: Role,
        *,
        ttl_s: float = TTL_S,
        say: Callable[[str], None] = lambda sentence: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._holder = holder
        self._own_address = own_address
        self._role = role
        self._ttl_s = ttl_s
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._speaking = threading.Lock()
        """Held from the decision to write the lease until the answer; `_lock` is never held for that long."""
        self._closed = threading.Event()
        self._seen = 0
        self._held: HeldLease | None = None
        self._led_under = 0
        self._away = False

    @property
    def holder(self) -> str:
        """This agent's name, for a leader that hands over to it."""
        return self._holder

    @property
    def term(self) -> int:
        """The highest term that this agent knows of; while it leads, its own term. 0: none."""
        return self._seen

    @property
    def fencing_term(self) -> int:
        """The term under which this agent leads, or led last; never another agent's. 0: it has not led."""
        return self._led_under

    def certain(self) -> bool:
        """Whether this agent leads and no other agent can: False while refreshes do not get through.

        A leader that is not certain goes on, but must not take silence of other agents for their death. The
        leader itself may be cut off, and the agents may have another leader by now.
        """
        with self._lock:
            return self._held is not None and self._held.certain(self._clock())

    def follow(self, lost: Following | None = None) -> Leading | Following | Over:
        """Wait until it is decided who leads. Raises Closed.

        `lost`: the leader that this agent had and cannot reach any more. `follow` returns that leader again
        only after it must have refreshed its lease, or while the lease's server is away.
        """
        if lost is not None:
            self._seen = max(self._seen, lost.term)
        candidate = Candidate(
            self._holder, self._role, self._ttl_s, self._clock(), seen=self._seen, lost=lost
        )
        while not self._closed.is_set():
            outcome = self._ask_once(candidate)
            if not isinstance(outcome, Pause):
                if not isinstance(outcome, Over):
                    self._seen = max(self._seen, outcome.term)
                return outcome
            self._closed.wait(outcome.seconds)
        raise Closed

    def keep(self, lost: Callable[[str], None]) -> None:
        """Refresh the lease in a thread from now on. If it is lost, the thread calls `lost(holder)` once.

        `holder`: the agent that has the lease now; "" if the lease had run out.
        """
        with self._lock:
            held = self._held

        def failed(error: Exception) -> None:
            """Stop leading: without a refresh the lease runs out, and another agent takes it."""
            self._say(f"the leader's lease is refreshed no more: {error!r}")
            with self._lock:
                if self._held is not held:
                    return
                self._held = None
            lost("")

        threads.start(lambda: self._refresh(held, lost), name="lease", failed=failed)

    def resign(self, successor: str = "") -> bool:
        """Stop leading and give the lease up: to `successor` (its holder name), or to any agent if "".

        False if the lease's server could not be told; the lease then runs out by itself.
        """
        with self._lock:
            led, self._held = self._held is not None, None
        try:
            with self._speaking:  # wait for a refresh under way, which would take the lease again
                if led:
                    self._store.release(self._holder, successor)
        except StoreUnavailable as error:
            self._say(f"{error}; the leader's lease runs out by itself")
            return False
        return True

    def note_term(self, term: int) -> None:
        """Note a leader's `term`. When this agent next becomes leader, its term will be higher."""
        with self._lock:
            self._seen = max(self._seen, term)

    def close(self) -> None:
        """End `follow` and the refreshing. The lease is left as it is, so call `resign` first."""
        self._closed.set()
        with self._lock:
            self._held = None

    def _ask_once(self, candidate: Candidate) -> Leading | Following | Over | Pause:
        asked_at = self._clock()
        asking = candidate.wants_it(asked_at)
        try:
            lease = self._acquire(candidate.claim) if asking else self._store.look()
        except StoreUnavailable as error:
            self._now_away(error)
            return candidate.away(self._clock())
        self._now_there()
        outcome = candidate.heard(lease, asking, self._clock())
        if isinstance(outcome, Leading):
            with self._lock:
                self._held = HeldLease(lease, asked_at, self._ttl_s)
                self._led_under = outcome.term
        return outcome

    def _refresh(self, held: HeldLease | None, lost: Callable[[str], None]) -> None:
        while not self._closed.wait(self._ttl_s / REFRESHES_PER_TTL):
            with self._speaking:
                if held is None or self._held is not held:
                    return
                holder = self._refresh_once(held)
            if holder is not None:
                lost(holder)
                return

    def _refresh_once(self, held: HeldLease) -> str | None:
        """Refresh the lease. Return its holder if it is lost ("": it had run out), or None."""
        asked_at = self._clock()
        try:
            lease = self._acquire(pb.CLAIM_HOLDER)
        except StoreUnavailable as error:
            self._now_away(error)
            return None
        self._now_there()
        with self._lock:
            self._seen = max(self._seen, lease.term)
            if held.heard(lease, asked_at):
                self._led_under = lease.term
                return None
            if self._held is not held:  # this agent resigned meanwhile
                return None
            self._held = None
            return lease.holder

    def _acquire(self, claim: pb.Claim.ValueType) -> LeaderLease:
        return self._store.acquire(self._holder, self._own_address(), self._ttl_s, claim, self._seen)

    def _now_away(self, error: StoreUnavailable) -> None:
        if not self._away:
            self._away = True
            self._say(f"{error}; until it is back the leader stays who it is")

    def _now_there(self) -> None:
        if self._away:
            self._away = False
            self._say("the server of the leader's lease is back")
