"""Limits how much of flexod one caller may take up: every limit, and the counters that enforce them.

For the event loop's thread. A caller is a host until MUNGE has said which user it is.
"""

from __future__ import annotations

import enum
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Budgets:
    """The limits. "Of a user" means the sum over all of that user's connections."""

    # Limits of a host or a connection, before flexod knows the user.
    streams_of_a_connection: int = 8
    """Open calls on one connection (SETTINGS_MAX_CONCURRENT_STREAMS). gRPC's clients queue further calls. The
    limit bounds how many calls of a stranger flexod refuses before it can close the connection."""
    unproven_calls: int = 2048
    """Calls whose credential waits for MUNGE, which takes them from one connection after the other. One more
    ends the oldest call of the connection that has most."""
    verifications_at_once: int = 4
    prove_within_s: float = 10.0
    refusals_of_a_connection: int = 20
    """Calls without a valid credential on one connection; `refused_again_per_s` are forgiven a second. More
    end the connection."""
    refused_again_per_s: float = 5.0
    no_credential: int = 5
    """The weight of a call without any credential: no program of flexo makes one."""
    silent_connections_of_a_host: int = 512
    """Connections of a host on which nobody has proven anything. One more closes the oldest."""
    message_within_s: float = 10.0
    """The longest time from a call's headers to the end of its one message."""
    answer_within_s: float = 20.0
    """A caller takes the answer within this time, or flexod closes the connection."""

    # Limits of a user.
    connections: int = 64
    """Connections beyond one for each running elastic job of the user and one for each node of these jobs. If
    there are more, flexod closes those that were not used for longest."""
    reads: int = 64
    """Open calls that read. More of them are refused."""
    calls_burst: int = 200
    calls_per_s: float = 50.0
    """Calls of one kind, in the long run. flexod answers more of them later."""
    reads_at_once: int = 2
    """Reads that flexod answers at the same time; other reads wait."""
    steering: int = 64
    """Open calls that steer jobs. Profiles and checkpoints have no time limit."""
    steering_burst: int = 60
    steering_per_s: float = 2.0
    """Commands, in the long run, refused ones included. Administrators are bound by the job's limit only."""
    pushes: int = 64
    """Open calls of the inference cluster."""
    aggregators: int = 4096
    """Streams of pool Aggregators."""
    leases: int = 1024
    leases_burst: int = 4000
    leases_per_s: float = 500.0
    """Calls to the leases of jobs' leaders: a leader makes one in two seconds. After a restart, all jobs of a
    user call at once."""
    refused_for_s: float = 2.0
    """The time for which, after one call too many, the other calls of its connection are refused without
    MUNGE."""
    unattached: int = 32
    """Streams that lead no job yet, beyond one for each running elastic job of the user."""

    # Limits of a job.
    job_steering_burst: int = 20
    job_steering_per_s: float = 0.5
    """Commands of the job's owner. All administrators together may give as many."""
    misbehaved_burst: int = 5
    misbehaved_per_s: float = 0.2
    """Streams and calls of a user that flexod refused. After more of them, further ones wait."""
    attached_burst: int = 200
    attached_per_s: float = 50.0
    """Leaders that attach. More of them wait."""
    attached_logged_burst: int = 20
    attached_logged_per_s: float = 0.2
    """Leaders that attach and that the log names."""
    longest_wait_s: float = 5.0
    """The longest wait for refusals: beyond it, further refusals add nothing."""
    messages_burst: int = 60
    messages_per_s: float = 20.0
    """Messages of a job's leader. More end its stream."""
    bytes_burst: int = 2 << 20
    bytes_per_s: float = 128 * 1024.0
    """Bytes of a job's leader. flexod reads more of them later."""


STANDARD: Final = Budgets()


class Exhausted(Exception):
    """A caller has used up a limit; the message names the caller, the limit, and what to do."""


class Kind(enum.Enum):
    """The purpose of a call: each kind has a limit of its own."""

    READ = "read"
    STEER = "steer jobs"
    LEASE = "ask for leases"
    PUSH = "speak for the inference cluster"
    LEAD = "lead jobs"
    AGGREGATE = "sum gradients"


_READS: Final = ("Get", "List", "Explain")


def kind_of(method: str) -> Kind:
    """The kind of a method, ``/flexo.v1.Service/Method``."""
    service, _, name = method.rpartition("/")
    match service.rpartition(".")[2]:
        case "LeaseService":
            return Kind.LEASE
        case "InferenceService":
            return Kind.PUSH
        case "JobService":
            return Kind.LEAD
        case "AggregatorService":
            return Kind.AGGREGATE
    return Kind.READ if name.startswith(_READS) else Kind.STEER


class UsersCalls:
    """Counts the calls of each user: the open ones, and how many there are a second."""

    def __init__(self, budgets: Budgets) -> None:
        usual = (budgets.calls_per_s, budgets.calls_burst)
        leases = (budgets.leases_per_s, budgets.leases_burst)
        self._rates: dict[Kind, Buckets] = {
            kind: Buckets(*(leases if kind is Kind.LEASE else usual))
            for kind in Kind
            if kind is not Kind.LEAD  # these calls last, and are limited at their start (jobs_service.py)
        }
        self._limits = {
            Kind.READ: budgets.reads,
            Kind.STEER: budgets.steering,
            Kind.LEASE: budgets.leases,
            Kind.PUSH: budgets.pushes,
            Kind.AGGREGATE: budgets.aggregators,
        }
        self._open: Counter[tuple[int, Kind]] = Counter()

    def enter(self, uid: int, kind: Kind) -> Callable[[object], None]:
        """Note that a call of `uid` begins. Returns the function to call, with any argument, when it ends.
        Raises Exhausted."""
        limit, name = self._limits.get(kind), (uid, kind)
        if limit is not None and self._open[name] >= limit:
            raise Exhausted(
                f"uid {uid} has {limit} open calls to {kind.value}: at most {limit} are allowed;"
                " wait until one of them has ended"
            )
        self._open[name] += 1
        return lambda _: self._leave(name)

    def wait_s(self, uid: int, kind: Kind) -> float:
        """Count one more call of `uid`. Returns how long it has to wait for its answer."""
        rates = self._rates.get(kind)
        return 0.0 if rates is None else rates.owe(uid)

    def _leave(self, name: tuple[int, Kind]) -> None:
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


class TokenBucket:
    """Allows at most `rate` things a second in the long run, and `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._filled_at = burst, time.monotonic()

    def take(self, amount: float = 1.0) -> bool:
        """Take `amount` if it is within the rate. Returns whether it is; if not, nothing is taken."""
        self._fill()
        if self._tokens < amount:
            return False
        self._tokens -= amount
        return True

    def owe(self, amount: float) -> float:
        """Take `amount` in any case. Returns the seconds until it is within the rate."""
        self._fill()
        self._tokens -= amount
        return self.debt_s()

    def debt_s(self) -> float:
        """The seconds until all that was taken is within the rate."""
        self._fill()
        return max(0.0, -self._tokens / self._rate)

    def _fill(self) -> None:
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now


class RefusalLimits:
    """Computes how long callers who were refused again and again have to wait."""

    def __init__(self, budgets: Budgets) -> None:
        self._buckets = Buckets(budgets.misbehaved_per_s, budgets.misbehaved_burst)
        self._longest_wait_s = budgets.longest_wait_s

    def note(self, uid: int) -> None:
        """Note that a call of `uid` was refused."""
        if self.wait_s(uid) < self._longest_wait_s:
            self._buckets.owe(uid)

    def wait_s(self, uid: int) -> float:
        """The seconds that a call of `uid` has to wait from now."""
        return self._buckets.debt_s(uid)


class Buckets:
    """A TokenBucket for each of many names. The one that was used least recently is forgotten first."""

    def __init__(self, rate: float, burst: float, most: int = 4096) -> None:
        self._rate, self._burst, self._most = rate, burst, most
        self._known: OrderedDict[object, TokenBucket] = OrderedDict()

    def take(self, name: object, amount: float = 1.0) -> bool:
        """Take `amount` for `name` if it is within its rate. Returns whether it is."""
        return self._of(name).take(amount)

    def owe(self, name: object) -> float:
        """Take one for `name` in any case. Returns the seconds until it is within its rate."""
        return self._of(name).owe(1.0)

    def debt_s(self, name: object) -> float:
        """The seconds until all that `name` took is within its rate."""
        known = self._known.get(name)
        return known.debt_s() if known else 0.0

    def _of(self, name: object) -> TokenBucket:
        bucket = self._known.pop(name, None) or TokenBucket(self._rate, self._burst)
        self._known[name] = bucket
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return bucket
