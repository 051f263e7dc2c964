"""The page of servers on loan from the inference cluster: deadlines, and how soon servers came back."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexo_cli.connection import Daemon
from flexo_protos.v1 import admin_pb2
from flexo_web.explained import Because

MOST_PAST: Final = 1000
"""The past loans that percentiles are made of."""
SHOWN_PAST: Final = 50
_LENT, _RECLAIMED = "lend", "call back"
_MOST_EVENTS: Final = 1000
_SAME_S: Final = 60.0
"""An event this near to a loan's time is that of the loan: a cycle records it after it has decided."""


@dataclass(frozen=True, slots=True)
class LoanHistory:
    """flexod's answers on loans that are over, and on the events of loans."""

    past: Sequence[admin_pb2.PastLoanView]
    """Newest first."""
    events: Sequence[admin_pb2.Event]


def ask_history(daemon: Daemon, _: str) -> LoanHistory:
    """Ask flexod. Raises Unreachable and Refusal."""
    asked = admin_pb2.ListEventsRequest(kinds=(_LENT, _RECLAIMED), limit=_MOST_EVENTS)
    return LoanHistory(tuple(daemon.loans(MOST_PAST).past), tuple(daemon.events(asked).events))


@dataclass(frozen=True, slots=True)
class LoanRow:
    """A server on loan. Times are seconds since the epoch; 0: none."""

    node: str
    state: str
    since_at: float
    why: Because
    called_back_at: float
    deadline_at: float
    why_back: Because
    workers: int
    bases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PastRow:
    """A loan that is over."""

    node: str
    since_at: float
    why: Because
    called_back_at: float
    """0: it was not called back."""
    deadline_at: float
    why_back: Because
    took_s: float
    """From the reclaim until the server was empty."""
    late: bool
    workers_scaled_in: int
    bases_preempted: int


@dataclass(frozen=True, slots=True)
class Reclaims:
    """How soon servers were empty after they were called back, in seconds."""

    count: int
    p50_s: float
    p95_s: float
    longest_s: float
    late: int
    """Those that were empty only after their deadline."""
    since_at: float
    """When the first of them was called back."""


@dataclass(frozen=True, slots=True)
class Loans:
    """The whole page."""

    lending: bool
    partition: str
    inference_partition: str
    servers: int
    lent: int
    coming_back: int
    demand: str
    """What the inference cluster needs, and who says so; "": not known."""
    why: str
    trouble: str
    rows: tuple[LoanRow, ...]
    reclaims: Reclaims | None
    """None: no server was ever called back, as far as flexod remembers."""
    past: tuple[PastRow, ...]
    past_left_out: int
    left_alone: tuple[admin_pb2.LeftAloneView, ...]


def loan_page(now: admin_pb2.ListLoansReply, history: LoanHistory | None) -> Loans:
    """The page. `history` None: flexod has not answered yet."""
    past = history.past if history else ()
    book = _EventBook(history.events if history else ())
    view = now.view
    demand = f"{view.demand:g} servers, by {view.source}" if view.HasField("demand") else ""
    return Loans(
        lending=now.lending,
        partition=now.partition,
        inference_partition=now.inference_partition,
        servers=view.servers,
        lent=view.lent,
        coming_back=view.coming_back,
        demand=demand,
        why=view.why,
        trouble=view.trouble,
        rows=tuple(_row(loan, book) for loan in sorted(now.loans, key=_urgency)),
        reclaims=reclaims_of(past),
        past=tuple(_past(loan, book) for loan in past[:SHOWN_PAST]),
        past_left_out=max(0, len(past) - SHOWN_PAST),
        left_alone=tuple(now.left_alone),
    )


def reclaims_of(past: Iterable[admin_pb2.PastLoanView]) -> Reclaims | None:
    """The percentiles of all loans that were called back; None if there is none."""
    called = [loan for loan in past if loan.called_back_at]
    if not called:
        return None
    took = sorted(max(0.0, loan.empty_at - loan.called_back_at) for loan in called)
    return Reclaims(
        count=len(took),
        p50_s=percentile(took, 0.50),
        p95_s=percentile(took, 0.95),
        longest_s=took[-1],
        late=sum(_late(loan) for loan in called),
        since_at=min(loan.called_back_at for loan in called),
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """The nearest-rank percentile: the least value that is not below `part` of all values."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


class _EventBook:
    """The events of loans, by kind and server."""

    def __init__(self, events: Iterable[admin_pb2.Event]) -> None:
        book: defaultdict[tuple[str, str], list[admin_pb2.Event]] = defaultdict(list)
        for event in events:
            book[event.kind, event.text.partition(" ")[0]].append(event)
        self._book: Mapping[tuple[str, str], list[admin_pb2.Event]] = book

    def because(self, text: str, kind: str, node: str, at: float) -> Because:
        """The reason `text`, with the event of this kind that is nearest to `at`."""
        near = [event for event in self._book.get((kind, node), ()) if abs(event.at - at) <= _SAME_S]
        nearest = min(near, key=lambda event: abs(event.at - at), default=None)
        return Because(text, nearest.number if nearest is not None else 0)


def _urgency(loan: admin_pb2.LoanView) -> tuple[float, str]:
    return loan.deadline_at or math.inf, loan.node


def _row(loan: admin_pb2.LoanView, book: _EventBook) -> LoanRow:
    return LoanRow(
        node=loan.node,
        state=loan.state,
        since_at=loan.since_at,
        why=book.because(loan.why, _LENT, loan.node, loan.since_at),
        called_back_at=loan.called_back_at,
        deadline_at=loan.deadline_at,
        why_back=book.because(loan.why_back, _RECLAIMED, loan.node, loan.called_back_at),
        workers=loan.satellite_workers,
        bases=tuple(loan.bases),
    )


def _past(loan: admin_pb2.PastLoanView, book: _EventBook) -> PastRow:
    return PastRow(
        node=loan.node,
        since_at=loan.since_at,
        why=book.because(loan.why, _LENT, loan.node, loan.since_at),
        called_back_at=loan.called_back_at,
        deadline_at=loan.deadline_at,
        why_back=book.because(loan.why_back, _RECLAIMED, loan.node, loan.called_back_at),
        took_s=max(0.0, loan.empty_at - loan.called_back_at) if loan.called_back_at else 0.0,
        late=_late(loan),
        workers_scaled_in=loan.workers_scaled_in,
        bases_preempted=loan.bases_preempted,
    )


def _late(loan: admin_pb2.PastLoanView) -> bool:
    return bool(loan.called_back_at and loan.deadline_at and loan.empty_at > loan.deadline_at)
