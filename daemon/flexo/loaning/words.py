"""The texts on changes of loans, for people."""

from __future__ import annotations

from flexo.loaning.orchestrator import Decision
from flexo.model.loans import Loan
from flexo.words import duration


def would(decision: Decision) -> str:
    """The text on the action that a dry run leaves out."""
    if decision.reclaim:
        return f"would call {decision.reclaim} servers back: {decision.why}"
    if decision.lend or decision.reopen:
        return f"would lend {decision.lend + decision.reopen} servers more: {decision.why}"
    return f"would leave loans as they are: {decision.why}"


def escalated(loan: Loan, now: float) -> str:
    """The text on a server that is not empty close to its deadline."""
    left_s = (loan.deadline_at or now) - now
    when = f"{duration(abs(left_s))} {'before' if left_s >= 0 else 'past'} its deadline"
    return f"{loan.node} is not empty {when}: what is there is ended"


def returned(loan: Loan, now: float) -> str:
    """The text ``i1 is empty 12 s after it was called back, 3 min before its deadline``."""
    took_s = now - (loan.called_back_at if loan.called_back_at is not None else now)
    text = f"{loan.node} is empty {duration(took_s)} after it was called back"
    if loan.deadline_at is None:
        return text
    left_s = loan.deadline_at - now
    return f"{text}, {duration(abs(left_s))} {'before its deadline' if left_s >= 0 else 'late'}"
