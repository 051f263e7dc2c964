"""The ledger of loans, compared in every cycle with the facts: the nodes of the borrowed partition.

A server is on loan if the cluster says so. The ledger adds since when and why, the reclaim and its deadline,
and what became of it. All of this is persisted. So a lost ledger fills itself again from the partition, and
flexod notices, reports and respects what somebody has changed by hand.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from flexo.model.loans import LeftAlone, Loan, LoanState, PastLoan
from flexo.model.queue import JobKey
from flexo.words import duration

HANDS_OFF_S: Final = 3600.0
"""Seconds for which a server is not lent again after an administrator has taken it out of the partition."""
_PUT_BACK_AT_MOST: Final = 3
"""The most times in an hour that an empty partition is filled again. After that, somebody wants it empty."""
_HOUR_S: Final = 3600.0
_SLACK_S: Final = 60.0
"""Seconds that a remembered time may be ahead of flexod's clock."""


class Cause(enum.Enum):
    """The reason why a server is reclaimed."""

    DEMAND = "demand"
    """More demand is seen or expected; the reclaim is undone if that passes."""
    ASKED = "asked"
    """The inference cluster has demanded this number of servers back."""
    NAMED = "named"
    """The inference cluster has demanded this server back."""
    SERVER = "server"
    """The server cannot stay: down, in use by inference, or taken out of the partition by hand."""


@dataclass(frozen=True, slots=True)
class LoanEvent:
    """A change of a loan, for the event store."""

    kind: str
    """One of flexo.events.KINDS."""
    text: str
    job: JobKey | None = None


@dataclass(slots=True)
class Entry:
    """One loan, with facts about it that only this flexod knows. Mutable: belongs to the ledger."""

    loan: Loan
    seen: bool = False
    """Whether the server has been in the partition since it was lent, or put back."""
    cause: Cause = Cause.DEMAND
    """The cause of the reclaim, if there is one."""
    call_id: str = ""
    """The inference cluster's demand for which the server is reclaimed; "": none in particular."""
    scaled_in: set[tuple[JobKey, str]] = field(default_factory=set)
    """Jobs and grants whose workers were told to leave."""
    preempted: dict[JobKey, float] = field(default_factory=dict)
    """Bases that were told to end, and the last time of that."""
    cancelled: dict[int, float] = field(default_factory=dict)
    """Satellites that were ended by force, and the last time of that."""
    saved: set[JobKey] = field(default_factory=set)
    """Bases that were asked for a checkpoint."""
    empty_at: float | None = None

    @property
    def node(self) -> str:
        """The server's name."""
        return self.loan.node

    @property
    def recallable(self) -> bool:
        """Whether the server is on loan and not under reclaim."""
        return not self.loan.closed

    @property
    def undecided(self) -> bool:
        """Whether the reclaim can still be undone: its cause is demand alone, and it is early."""
        return self.early and self.cause is Cause.DEMAND

    @property
    def early(self) -> bool:
        """Whether the server is under reclaim, not empty yet, and no base was preempted or asked to save for
        it."""
        bothered = self.preempted or self.saved or self.empty_at is not None
        return self.loan.state is LoanState.RECLAIMING and not bothered

    def past(self, now: float) -> PastLoan:
        """The record of the loan, which ends now."""
        loan = self.loan
        return PastLoan(
            loan.node,
            loan.since_at,
            loan.why,
            loan.called_back_at,
            loan.deadline_at,
            loan.why_back,
            now if self.empty_at is None else self.empty_at,
            now,
            loan.workers_scaled_in,
            loan.bases_preempted,
            loan.servers_emptied_beside,
        )


@dataclass(frozen=True, slots=True)
class Truth:
    """The cluster's facts on servers at one instant."""

    nodes: frozenset[str]
    """All nodes of the cluster."""
    inference: frozenset[str]
    """The nodes of the inference partition."""
    borrowed: frozenset[str] | None
    """The nodes of the borrowed partition; None: it tells nothing, because it never changes or is missing."""
    occupied: frozenset[str]
    """Servers of the inference partition on which a job trains."""


class LoanLedger:
    """The loans that stand. For one thread."""

    def __init__(self, remembered: Iterable[Loan] = (), left_alone: Iterable[LeftAlone] = ()) -> None:
        """`remembered`: the persisted loans. They count only as far as the first `join` confirms them."""
        self._entries: dict[str, Entry] = {}
        self._twice: set[str] = set()
        """Servers that were remembered in two loans."""
        for loan in sorted(remembered, key=lambda loan: loan.since_at):
            if loan.node in self._entries:
                self._twice.add(loan.node)
            # who demanded it is forgotten: the reclaim stands, for this server
            self._entries[loan.node] = Entry(loan, cause=Cause.SERVER if loan.closed else Cause.DEMAND)
        self._fresh = True
        """Whether `join` has not been called yet."""
        self._hands_off = {each.node: each.until_at for each in left_alone}
        """Servers that an administrator has taken away, and the time until which they are left alone."""
        self._put_back_at: list[float] = []
        self._foreign: frozenset[str] = frozenset()

    @property
    def loans(self) -> tuple[Loan, ...]:
        """All loans that stand, by node."""
        return tuple(self._entries[name].loan for name in sorted(self._entries))

    @property
    def foreign(self) -> frozenset[str]:
        """Nodes in the borrowed partition that are not the inference cluster's: the ledger leaves them
        alone."""
        return self._foreign

    def __iter__(self) -> Iterator[Entry]:
        """Every entry, by node."""
        return iter([self._entries[name] for name in sorted(self._entries)])

    def get(self, node: str) -> Entry | None:
        """The loan of that server, if there is one."""
        return self._entries.get(node)

    def left_alone(self, now: float) -> tuple[LeftAlone, ...]:
        """Servers that are not to be lent now, because somebody took them back by hand; by node."""
        return tuple(LeftAlone(node, until) for node, until in sorted(self._hands_off.items()) if until > now)

    # Changes of a loan.

    def lend(self, node: str, now: float, why: str) -> LoanEvent:
        """Enter a new loan."""
        self._entries[node] = Entry(Loan(node, now, why))
        return LoanEvent("lend", f"{node} is lent to training: {why}")

    def reclaim(
        self, entry: Entry, now: float, deadline_at: float, why: str, cause: Cause, call_id: str = ""
    ) -> LoanEvent | None:
        """Begin the reclaim of a server, or move its deadline forward. None: it was under reclaim with an
        earlier deadline."""
        loan = entry.loan
        if loan.closed:
            entry.cause, entry.call_id = cause, call_id or entry.call_id
            if loan.deadline_at is not None and loan.deadline_at <= deadline_at:
                return None
            entry.loan = replace(loan, deadline_at=deadline_at, why_back=why)
            return LoanEvent(
                "call back", f"{loan.node} is wanted back earlier: {why}{_within(deadline_at - now)}"
            )
        entry.cause, entry.call_id = cause, call_id
        entry.loan = replace(
            loan, state=LoanState.RECLAIMING, called_back_at=now, deadline_at=deadline_at, why_back=why
        )
        return LoanEvent("call back", f"{loan.node} is called back: {why}{_within(deadline_at - now)}")

    def reopen(self, entry: Entry, why: str) -> LoanEvent:
        """Undo the reclaim: the server stays on loan."""
        entry.loan = replace(
            entry.loan, state=LoanState.LENT, called_back_at=None, deadline_at=None, why_back=""
        )
        entry.call_id, entry.empty_at = "", None
        entry.seen = False  # an edit by flexod may have taken it out of the partition
        return LoanEvent("reopen", f"{entry.node} stays on loan after all: {why}")

    def end(self, entry: Entry, now: float) -> PastLoan:
        """Remove the loan, and return its record."""
        del self._entries[entry.node]
        return entry.past(now)

    def shift(self, seconds: float) -> None:
        """Move all times, because the clock was set: an event due in a minute is still due in a minute."""
        for entry in self._entries.values():
            loan = entry.loan
            entry.loan = replace(
                loan,
                since_at=loan.since_at + seconds,
                called_back_at=_shifted(loan.called_back_at, seconds),
                deadline_at=_shifted(loan.deadline_at, seconds),
            )
            entry.preempted = {job: at + seconds for job, at in entry.preempted.items()}
            entry.cancelled = {job_id: at + seconds for job_id, at in entry.cancelled.items()}
            entry.empty_at = _shifted(entry.empty_at, seconds)
        self._hands_off = {node: until + seconds for node, until in self._hands_off.items()}
        self._put_back_at = [at + seconds for at in self._put_back_at]

    # The comparison with the cluster.

    def join(self, truth: Truth, now: float, back_by: float) -> tuple[list[LoanEvent], list[PastLoan]]:
        """Make the ledger agree with the facts. `back_by`: the deadline of servers that have to be reclaimed
        for this."""
        events: list[LoanEvent] = []
        past: list[PastLoan] = []
        if self._fresh:
            self._mend_memory(now, back_by, events)
        for entry in [entry for entry in self if entry.node not in truth.nodes]:
            past.append(self.end(entry, now))
            events.append(LoanEvent("repair", f"{entry.node} is gone from the cluster, and its loan with it"))
        if truth.borrowed is not None:
            # flexod takes out what left the inference partition while on loan
            self._note_foreign(truth.borrowed - truth.inference - self._entries.keys(), events)
            if self._fresh:
                past.extend(self._forget_what_is_not_so(truth, now, events))
            self._note_missing(truth.borrowed, now, back_by, events)
        self._adopt(truth, now, back_by, events)
        for entry in self:
            if entry.node not in truth.inference and not entry.loan.closed:
                why = "it is not in the inference partition any more"
                events.extend(_some(self.reclaim(entry, now, back_by, why, Cause.SERVER)))
        self._fresh = False
        return events, past

    def _mend_memory(self, now: float, back_by: float, events: list[LoanEvent]) -> None:
        """Fix impossible persisted loans: a server in two loans, or times in the future."""
        for node in sorted(self._twice):
            events.append(LoanEvent("repair", f"{node} was remembered in two loans: the later one counts"))
        for entry in self:
            loan = entry.loan
            if loan.closed and (loan.deadline_at is None or loan.called_back_at is None):
                entry.loan = replace(loan, called_back_at=now, deadline_at=back_by)
                within = _within(back_by - now)
                text = f"{loan.node} was on its way back, nobody knows by when: {loan.why_back}{within}"
                events.append(LoanEvent("repair", text))
                continue
            if loan.since_at <= now + _SLACK_S and (loan.called_back_at or 0.0) <= now + _SLACK_S:
                continue
            entry.loan = replace(loan, since_at=min(loan.since_at, now))
            if loan.closed:
                entry.loan = replace(entry.loan, called_back_at=now, deadline_at=back_by)
            text = f"{loan.node} was remembered with times to come: the clock was set back meanwhile"
            events.append(LoanEvent("repair", text))
        self._hands_off = {node: min(until, now + HANDS_OFF_S) for node, until in self._hands_off.items()}

    def _note_foreign(self, foreign: frozenset[str], events: list[LoanEvent]) -> None:
        for node in sorted(foreign - self._foreign):
            text = f"{node} is in the borrowed partition and not the inference cluster's: it is left there"
            events.append(LoanEvent("repair", text))
        self._foreign = foreign

    def _forget_what_is_not_so(self, truth: Truth, now: float, events: list[LoanEvent]) -> list[PastLoan]:
        """End loans of the previous flexod that are over: the server is not in the partition, and nothing
        trains there."""
        assert truth.borrowed is not None
        past = []
        for entry in [entry for entry in self if entry.node not in truth.borrowed]:
            if entry.node in truth.occupied:
                entry.seen = True
                continue
            past.append(self.end(entry, now))
            text = f"{entry.node} was on loan when flexod ended, and came back while it was away"
            events.append(LoanEvent("returned", text))
        return past

    def _note_missing(
        self, borrowed: frozenset[str], now: float, back_by: float, events: list[LoanEvent]
    ) -> None:
        """Handle servers on loan that somebody, or a restart of the cluster, has taken out of the
        partition."""
        for entry in self:
            if entry.node in borrowed:
                entry.seen = True
        missing = [
            entry for entry in self if entry.seen and not entry.loan.closed and entry.node not in borrowed
        ]
        if not missing:
            return
        names = ", ".join(entry.node for entry in missing)
        if not borrowed - self._foreign and self._may_put_back(now):
            for entry in missing:
                entry.seen = False
            text = f"the borrowed partition is empty, as after a restart of the cluster: {names} put back"
            events.append(LoanEvent("repair", text))
            return
        for entry in missing:
            why = "it was taken out of the borrowed partition by hand"
            self._hands_off[entry.node] = now + HANDS_OFF_S
            events.extend(_some(self.reclaim(entry, now, back_by, why, Cause.SERVER)))

    def _may_put_back(self, now: float) -> bool:
        self._put_back_at = [at for at in self._put_back_at if now - at < _HOUR_S]
        if len(self._put_back_at) >= _PUT_BACK_AT_MOST:
            return False
        self._put_back_at.append(now)
        return True

    def _adopt(self, truth: Truth, now: float, back_by: float, events: list[LoanEvent]) -> None:
        """Enter servers that are lent by the facts, but missing in the ledger."""
        lent = truth.borrowed or frozenset()
        for node in sorted(((lent | truth.occupied) & truth.inference) - self._entries.keys()):
            if node not in lent:
                why = "something trains on it: taken over"
            elif self._fresh:
                why = "found in the borrowed partition: flexod's memory of it is gone"
            else:
                why = "put into the borrowed partition by hand"
            entry = self._entries[node] = Entry(Loan(node, now, why), seen=node in lent)
            self._hands_off.pop(node, None)
            events.append(LoanEvent("repair", f"{node} counts as lent from now on: {why}"))
            if truth.borrowed is not None and node not in lent:
                # it was under reclaim, and the requester is forgotten
                why = "it is not in the borrowed partition any more"
                events.extend(_some(self.reclaim(entry, now, back_by, why, Cause.DEMAND)))


def _within(seconds: float) -> str:
    return f"; within {duration(seconds)}" if seconds > 0 else "; at once"


def _shifted(at: float | None, seconds: float) -> float | None:
    return None if at is None else at + seconds


def _some(event: LoanEvent | None) -> tuple[LoanEvent, ...]:
    return () if event is None else (event,)
