"""Who of a job's agents leads: Amoeba's Algorithm 1, as one agent runs it over its job's lease.

An agent that needs a leader asks for the lease. It gets it and leads, refreshing the lease in a thread; or it
hears who has it, and follows. When its leader goes away it asks again, until the lease is somebody else's, or
its own. The lease is looked at only then: as long as agent and leader hear each other, nothing depends on the
lease's server.

What happens to a leader:

* The server is away: it goes on leading, nobody else can take the lease either (`certain` turns False).
* Its lease is somebody else's, or has run out and may have been: it was stopped, or cut off. It is told
  through `lost`, with the first refresh that gets through, and is to step down.
* flexod was started again and knows no leases: the refresh takes the lease anew, with a higher term.

`Campaign` has the rules of asking, HeldLease those of holding, both without threads and clocks; `Election` is
what an agent uses.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flexo_protos.leader_leases.lease import HeldLease, LeaderLease, StoreAway
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic import threads, wire
from horovod_elastic.election.lease_client import LeaseClient

TTL_S = 5.0
REFRESHES_PER_TTL = 3
HOLD_BACK_S = 2.0
"""What a satellite's agent leaves to those of the base, from when it sees that nobody leads."""
LOOK_AGAIN_S = 1.0
SUCCESSOR_WITHIN_S = 0.1
"""From one look to the next while a named successor has not said its address."""
LEADERLESS_S = 2.0
"""After so long without the lease's server, an agent tries the leader that it had once more."""


class Role(enum.Enum):
    """What the agent is to the job: it decides how early it asks for the lease."""

    FOUNDER = "founder"
    """Of the base, started with the job."""
    BASE = "base"
    """Of the base, started again."""
    SATELLITE = "satellite"


@dataclass(frozen=True, slots=True)
class Leading:
    """This agent leads. `heir`: another one did before, as far as is known: learn from those who attach."""

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
    """Nothing is decided yet: ask again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Over:
    """Nobody leads any more: the job has ended (wire.over)."""

    exit_code: int


class Closed(Exception):
    """The election was closed while somebody waited for its outcome."""


class Campaign:
    """One agent's way to a leader: what to ask next, and what an answer means.

    Times are one monotonic clock's. `seen` is the highest term this agent knows of, `lost` the leader that it
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
        self._eager = role is not Role.SATELLITE
        self._vacant_since: float | None = None

    @property
    def claim(self) -> pb.Claim.ValueType:
        """What this agent may say of itself when it asks for the lease."""
        founder = self._role is Role.FOUNDER and not self._seen
        return pb.CLAIM_FOUNDER if founder else pb.CLAIM_UNSPECIFIED

    def wants_it(self, now: float) -> bool:
        """Ask for the lease; else look only. A satellite's agent waits until it has been vacant a while."""
        if self._eager:
            return True
        return self._vacant_since is not None and now - self._vacant_since >= HOLD_BACK_S

    def heard(self, lease: LeaderLease, asking: bool, now: float) -> Leading | Following | Over | Pause:
        """What the lease's server has answered; `asking`: to a request for it, not to a look."""
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
            # Gone, it will not refresh; there all the same, it is worth another try when it must have.
            return Pause(min(LOOK_AGAIN_S, lease.expires_in_s + 0.02))
        return Following(lease.address, lease.holder, lease.term)

    def away(self, now: float) -> Following | Pause:
        """The lease's server does not answer. The leader that was lost may be back before it."""
        if self._lost is not None and now - self._began >= LEADERLESS_S:
            return self._lost
        return Pause(LOOK_AGAIN_S)

    def _heard_vacant(self, lease: LeaderLease, now: float) -> Pause:
        """Held back by this agent's role or by a server that has just begun, or given up this moment."""
        if self._vacant_since is None:
            self._vacant_since = now
        if not self.wants_it(now):
            return Pause(self._vacant_since + HOLD_BACK_S - now)
        return Pause(max(SUCCESSOR_WITHIN_S, min(lease.expires_in_s, LOOK_AGAIN_S)))

    def _is_lost(self, lease: LeaderLease) -> bool:
        lost = self._lost
        return lost is not None and (lease.holder, lease.address) == (lost.holder, lost.address)

    def _heard_mine(self, lease: LeaderLease, asking: bool) -> Leading | Pause:
        if not asking:  # a satellite's agent, named the successor or started again, has only looked
            self._eager = True
            return Pause(0.0)
        return Leading(lease.term, bool(lease.previous or self._seen or self._role is not Role.FOUNDER))


class Election:
    """Algorithm 1 for one agent. `follow` and `keep` are for one thread; the rest may be called from any.

    Args:
        store: the job's lease.
        holder: the agent's name, nobody else's in this job.
        own_address: host:port of this agent's leader service; it must listen before `follow` is called.
        role: what the agent is to the job.
        ttl_s: how long the lease outlives a leader that does not refresh it.
        say: told once that the lease's server is away, and once that it is back.
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
        """Held from deciding to write the lease to knowing what became of it; `_lock` never for so long."""
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
        """The highest term that this agent knows of; while it leads, its own. 0: none."""
        return self._seen

    @property
    def fencing_term(self) -> int:
        """The term under which this agent leads, or led last; never another leader's. 0: it has not led."""
        return self._led_under

    def certain(self) -> bool:
        """Whether this agent leads and nobody else can: False while refreshes do not get through.

        A leader that is not certain goes on with what there is, but must not take silence of other agents for
        their death: it may be the one that is cut off, and they may have another leader by now.
        """
        with self._lock:
            return self._held is not None and self._held.certain(self._clock())

    def follow(self, lost: Following | None = None) -> Leading | Following | Over:
        """Wait until it is decided who leads. Raises Closed.

        `lost` is the leader that this agent had and cannot reach any more: it is named again only after it
        must have refreshed its lease, or while the lease's server is away.
        """
        if lost is not None:
            self._seen = max(self._seen, lost.term)
        campaign = Campaign(self._holder, self._role, self._ttl_s, self._clock(), seen=self._seen, lost=lost)
        while not self._closed.is_set():
            outcome = self._ask_once(campaign)
            if not isinstance(outcome, Pause):
                if not isinstance(outcome, Over):
                    self._seen = max(self._seen, outcome.term)
                return outcome
            self._closed.wait(outcome.seconds)
        raise Closed

    def keep(self, lost: Callable[[str], None]) -> None:
        """Refresh the lease in a thread from now on; `lost(holder)` once, from there, if it is lost.

        `holder` is whose it is now, "" if it had run out.
        """
        with self._lock:
            held = self._held

        def failed(error: Exception) -> None:
            """Without a refresh the lease runs out, and somebody else takes it."""
            self._say(f"the leader's lease is refreshed no more: {error!r}")
            with self._lock:
                if self._held is not held:
                    return
                self._held = None
            lost("")

        threads.start(lambda: self._refresh(held, lost), name="lease", failed=failed)

    def resign(self, successor: str = "") -> bool:
        """Stop leading and give the lease up, to `successor` (its holder name) if one is named.

        False if the lease's server could not be told: the lease then runs out by itself.
        """
        with self._lock:
            led, self._held = self._held is not None, None
        try:
            with self._speaking:  # a refresh under way ends first, so that it does not take the lease again
                if led:
                    self._store.release(self._holder, successor)
        except StoreAway as error:
            self._say(f"{error}; the leader's lease runs out by itself")
            return False
        return True

    def note_term(self, term: int) -> None:
        """There was a leader of `term`: this agent leads under higher ones only, from the next time on."""
        with self._lock:
            self._seen = max(self._seen, term)

    def close(self) -> None:
        """End `follow` and the refreshing. The lease is left as it is: resign first."""
        self._closed.set()
        with self._lock:
            self._held = None

    def _ask_once(self, campaign: Campaign) -> Leading | Following | Over | Pause:
        asked_at = self._clock()
        asking = campaign.wants_it(asked_at)
        try:
            lease = self._acquire(campaign.claim) if asking else self._store.look()
        except StoreAway as error:
            self._now_away(error)
            return campaign.away(self._clock())
        self._now_there()
        outcome = campaign.heard(lease, asking, self._clock())
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
        """Who has got the lease ("" if it had run out); None if it is held, or nobody can say."""
        asked_at = self._clock()
        try:
            lease = self._acquire(pb.CLAIM_HOLDER)
        except StoreAway as error:
            self._now_away(error)
            return None
        self._now_there()
        with self._lock:
            self._seen = max(self._seen, lease.term)
            if held.heard(lease, asked_at):
                self._led_under = lease.term
                return None
            if self._held is not held:  # it resigned meanwhile
                return None
            self._held = None
            return lease.holder

    def _acquire(self, claim: pb.Claim.ValueType) -> LeaderLease:
        return self._store.acquire(self._holder, self._own_address(), self._ttl_s, claim, self._seen)

    def _now_away(self, error: StoreAway) -> None:
        if not self._away:
            self._away = True
            self._say(f"{error}; until it is back the leader stays who it is")

    def _now_there(self) -> None:
        if self._away:
            self._away = False
            self._say("the server of the leader's lease is back")
