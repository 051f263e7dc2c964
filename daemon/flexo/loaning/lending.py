"""One turn of lending: what is true, what is to be lent or called back, and who has to leave now.

The controller asks in each of its cycles, before the policy, and carries out what comes back. Nothing here
touches a cluster; the same code runs in simulations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flexo.loaning import words
from flexo.loaning.book import Cause, Entry, LoanBook, LoanEvent
from flexo.loaning.demand import CallBack, DemandMissing, DemandSource
from flexo.loaning.occupants import doomed_by
from flexo.loaning.orchestrator import Decision, Outlook, decide
from flexo.loaning.partition import PartitionDemand
from flexo.loaning.reclaim import Chooser, emptied_by, heuristic
from flexo.loaning.turn import LendingPlan, LendingSettings, Reading, Turn, View
from flexo.loaning.vacating import Preempt, ScaleIn, next_steps, steps_at
from flexo.model.loans import Demand, LeftAlone, Loan, LoanState
from flexo.model.nodes import Partition
from flexo.model.queue import JobKey
from flexo.words import workers

_AGAIN_S: Final = 30.0
"""Between two tries to preempt the same job, or to cancel the same satellite."""
_FUTURE_S: Final = 60.0
"""So far ahead of us the clock of a source of demand may be."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """Between two turns in which something is due, where nobody but us changes anything: a simulation, which
    asks at each of its events, and says when a server has become empty (`Lending.look_again`).
    """

    partitions: tuple[Partition, ...]
    """The same object, while nothing has been lent or edited."""
    since: float
    until: float
    calls: tuple[CallBack, ...]
    plan: LendingPlan

    def holds(self, view: View) -> bool:
        """Whether nothing has come up."""
        return view.partitions is self.partitions and not view.jobs and self.since <= view.at < self.until


class Lending:
    """Keeps the books of one inference cluster. For the controller's thread alone."""

    def __init__(
        self,
        settings: LendingSettings,
        source: DemandSource,
        *,
        outlook: Outlook | None = None,
        chooser: Chooser = heuristic,
        remembered: Iterable[Loan] = (),
        left_alone: Iterable[LeftAlone] = (),
        dry_run: bool = False,
    ) -> None:
        """`outlook` None: demand as it is now is all that counts.

        `remembered`, `left_alone`: of the flexod before.
        `dry_run`: what would be lent or called back is said in events, and nothing else happens.
        """
        self._settings = settings
        self._source = source
        self._outlook = outlook
        self._chooser = chooser
        self._dry_run = dry_run
        self._book = LoanBook(remembered, left_alone)
        self._queue = PartitionDemand(settings.inference_partition)
        self._turned_at = -math.inf
        """When the last turn was, by the cluster's clock."""
        self._set: list[LoanEvent] = []
        """What is to be said of a clock that was set since the last turn."""
        self._decided_at: float | None = None
        self._called_back_at = -math.inf
        self._edited_at: float | None = None
        """None: this flexod has not looked yet."""
        self._edit_waits = False
        """The partition does not hold what it should, and may not be edited yet."""
        self._waiting: frozenset[int] = frozenset()
        """Inference jobs that waited in the last turn."""
        self._no_more_because = ""
        """Why nothing could be lent in the last turn, whatever the demand."""
        self._said: dict[str, str] = {}
        """The last word on each lasting matter, so that it is said once."""
        self._would = (0, 0, 0)
        """What was decided last in a dry run."""
        self._reading = Reading()
        self._rest: _Rest | None = None

    @property
    def settings(self) -> LendingSettings:
        """What it was made with."""
        return self._settings

    @property
    def again_at(self) -> float | None:
        """When a turn has something to do although nothing happens; None before the first."""
        if self._decided_at is None:
            return None
        due = [self._decided_at + self._settings.rules.interval_s]
        if self._edit_waits and self._edited_at is not None:
            due.append(self._edited_at + self._settings.edit_interval_s)
        for entry in self._book:
            if entry.loan.deadline_at is not None and entry.empty_at is None:
                due += steps_at(entry.loan, self._settings.timing)
        return min((at for at in due if at > self._turned_at), default=None)

    def turn(self, view: View) -> LendingPlan:
        """What is to be done now. Whatever a source of demand says, this does not raise."""
        rest = self._rest
        if rest is not None and rest.holds(view) and rest.calls == self._source.call_backs(view.at):
            return rest.plan
        turn = Turn(view, self._settings)
        self._turned_at = view.at
        turn.events.extend(self._set)
        self._set.clear()
        turn.events.extend(self._say("partitions", turn.trouble))
        turn.look(self._book)
        calls = self._source.call_backs(view.at)
        if turn.trouble:  # what is called back comes all the same
            self._reading = replace(self._reading, trouble=turn.trouble)
            self._heed(calls, turn)
        else:
            self._lend_and_call_back(calls, turn)
        turn.look(self._book)
        self._vacate(turn)
        self._end_empty(turn)
        borrowed = self._edit(turn)
        loans = self._book.loans
        # an empty server is back, though its loan stands until it is out of the partition as well
        self._source.heed(view.at, [entry.loan for entry in self._book if entry.empty_at is None])
        ordered = turn.scale_in or turn.preempt
        self._rest = None if ordered else self._next_rest(view, calls)
        return turn.plan(loans, borrowed, self._reading, self._book.left_alone(turn.now))

    def _lend_and_call_back(self, calls: tuple[CallBack, ...], turn: Turn) -> None:
        """Make the book true, and see what is to be on loan from now on."""
        if self._edited_at is None:
            # a flexod before this one may have edited it just now
            self._edited_at = turn.now if turn.borrowed or self._book.loans else -math.inf
        self._join(turn)
        self._call_back_unfit(turn)
        self._heed(calls, turn)
        if self._is_due(turn):
            self._decide(turn, asked=bool(calls))
            self._decided_at = turn.now

    def look_again(self) -> None:
        """Something has become of a server that is called back: the next turn is to see it."""
        self._rest = None

    def _next_rest(self, view: View, calls: tuple[CallBack, ...]) -> _Rest | None:
        """Until when nothing is to be done; None where a queue may bring something in every turn."""
        until = self.again_at
        if view.jobs or until is None:
            return None
        left_alone = self._book.left_alone(view.at)
        plan = LendingPlan(self._book.loans, reading=self._reading, left_alone=left_alone)
        return _Rest(view.partitions, view.at, until, calls, plan)

    def clock_was_set(self, seconds: float) -> None:
        """The clock that views go by was set: the times that are kept move along. Forward above 0."""
        self._book.shift(seconds)
        self._called_back_at += seconds
        self._edited_at = None if self._edited_at is None else self._edited_at + seconds
        self._decided_at = self._rest = None
        self._turned_at = -math.inf
        direction = "forward" if seconds > 0 else "back"
        text = f"the clock was set {direction} by {abs(seconds):.0f} s: deadlines are moved with it"
        self._set.append(LoanEvent("repair", text))

    # What is true.

    def _join(self, turn: Turn) -> None:
        events, ended = self._book.join(turn.truth(), turn.now, turn.now + self._settings.rules.reclaim_s)
        turn.events.extend(events)
        turn.ended.extend(ended)

    def _call_back_unfit(self, turn: Turn) -> None:
        """Servers that cannot stay on loan, whatever the demand."""
        deadline_at = turn.now + self._settings.rules.reclaim_s
        for entry in self._book:
            if entry.loan.closed and entry.cause is not Cause.DEMAND:
                continue
            why = turn.why_unfit(entry.node)
            if why:
                self._call_back(entry, turn, deadline_at, why, Cause.SERVER)

    # What the inference cluster says itself.

    def _heed(self, calls: Sequence[CallBack], turn: Turn) -> None:
        """Call back what is demanded by a deadline, and forget what is not demanded any more."""
        open_ids = {call.call_id for call in calls}
        for matter in [matter for matter in self._said if matter.startswith("call ")]:
            if matter.split()[1] not in open_ids:
                del self._said[matter]
        for entry in self._book:
            if entry.call_id and entry.call_id not in open_ids:
                entry.cause, entry.call_id = Cause.DEMAND, ""
        for call in calls:
            for node in call.nodes:
                self._call_back_named(node, call, turn)
        for call in calls:
            if not call.nodes:
                self._call_back_some(call, turn)

    def _call_back_named(self, node: str, call: CallBack, turn: Turn) -> None:
        entry = self._book.get(node)
        if entry is None:
            text = f"{node} is demanded back ({call.why}), and is not on loan: there is nothing to give back"
            turn.events.extend(self._say(f"call {call.call_id} {node}", text))
        elif entry.call_id != call.call_id or not entry.loan.closed:
            self._call_back(entry, turn, call.deadline_at, call.why, Cause.NAMED, call.call_id)

    def _call_back_some(self, call: CallBack, turn: Turn) -> None:
        """So many servers: those on their way back for nobody in particular count first."""
        coming = [entry for entry in self._book if entry.loan.closed and entry.empty_at is None]
        mine = [entry for entry in coming if entry.call_id == call.call_id]
        missing = call.servers - len(mine)
        under_way = [entry for entry in coming if not entry.call_id]
        some = under_way[: max(0, missing)]
        some += self._choose(missing - len(some), turn)
        for entry in some:
            self._call_back(entry, turn, call.deadline_at, call.why, Cause.ASKED, call.call_id)
        missing -= len(some)
        if missing > 0:
            text = f"{call.servers} servers are demanded back ({call.why}), {missing} more than are on loan"
            turn.events.extend(self._say(f"call {call.call_id}", text))

    # What demand says.

    def _is_due(self, turn: Turn) -> bool:
        """Whether it is time to decide: the interval is over, an inference job has begun to wait, or what
        kept servers from being lent is another matter now.
        """
        waiting, self._waiting = self._waiting, turn.waiting
        before, self._no_more_because = self._no_more_because, turn.no_more_because
        if before != turn.no_more_because:
            return True
        if self._decided_at is None or turn.now >= self._decided_at + self._settings.rules.interval_s:
            return True
        return bool(self._waiting - waiting)

    def _decide(self, turn: Turn, *, asked: bool) -> None:
        try:
            demand = _checked(self._source.read(turn.now, turn.view.nodes, turn.view.jobs), turn.now)
        except DemandMissing as error:
            self._decide_without(str(error), turn)
            return
        turn.events.extend(self._say("demand", ""))
        peak, broken = self._peak(demand, turn.now)
        turn.events.extend(self._say("forecast", broken))
        picture = turn.picture(self._book)
        rested = turn.now - self._called_back_at >= self._settings.rules.rest_s
        decision = decide(self._settings.rules, picture, demand.servers, peak, rested=rested)
        trouble = turn.no_more_because or broken
        if demand.servers > picture.size:
            asked_for = f"{demand.source} says that {demand.servers:.1f} servers are needed"
            trouble = f"{asked_for}, and there are {picture.size}"
        turn.events.extend(self._say("lending", trouble))
        self._reading = Reading(turn.now, picture.size, demand, peak, decision.why, trouble)
        self._act(decision, turn, may_lend=not (asked or turn.waiting or broken))

    def _decide_without(self, missing: str, turn: Turn) -> None:
        """Demand is not known: nothing more is lent, and called back only what inference jobs wait for."""
        trouble = f"demand is not known, so nothing more is lent: {missing}"
        turn.events.extend(self._say("demand", trouble))
        picture = turn.picture(self._book)
        self._reading = Reading(turn.now, picture.size, None, None, "", trouble)
        if turn.waiting:
            try:
                queued = self._queue.read(turn.now, turn.view.nodes, turn.view.jobs)
            except DemandMissing:
                return
            rules = replace(self._settings.rules, headroom_servers=0.0, headroom_share=0.0)
            self._act(decide(rules, picture, queued.servers, None, rested=False), turn, may_lend=False)

    def _peak(self, demand: Demand, now: float) -> tuple[float | None, str]:
        """The forecast's highest, if there is one; why it is missing, if it should be there.

        Servers come back by demand alone then: a forecast that fails must not keep them away.
        """
        if self._outlook is None:
            return None, ""
        try:
            self._outlook.note(demand.at, demand.servers)
            highest = self._outlook.band(now, now + self._settings.rules.horizon_s).highest
        except Exception as error:
            return None, f"the forecast failed, so nothing more is lent: {type(error).__name__}: {error}"
        if math.isfinite(highest):
            return highest, ""
        return None, f"the forecast expects {highest} servers, so nothing more is lent"

    def _act(self, decision: Decision, turn: Turn, *, may_lend: bool) -> None:
        if self._dry_run:
            numbers = decision.lend, decision.call_back, decision.reopen
            if numbers != self._would:
                self._would = numbers
                turn.events.append(LoanEvent("demand", words.would(decision)))
            return
        deadline_at = turn.now + self._settings.rules.reclaim_s
        for entry in self._choose(decision.call_back, turn):
            self._call_back(entry, turn, deadline_at, decision.why, Cause.DEMAND)
        if may_lend:
            for entry in turn.undecided(self._book)[: decision.reopen]:
                turn.events.append(self._book.reopen(entry, decision.why))
            for node in turn.best_to_lend(decision.lend, self._book):
                turn.events.append(self._book.lend(node, turn.now, decision.why))

    # Calling back.

    def _choose(self, wanted: int, turn: Turn) -> list[Entry]:
        """So many servers on loan whose loss costs least."""
        entries = {entry.node: entry for entry in self._book if entry.recallable}
        if wanted <= 0 or not entries:
            return []
        closed = [entry.node for entry in self._book if entry.loan.closed]
        doomed = doomed_by(turn.occupants, closed)
        servers = [turn.of(name).server(name, doomed) for name in entries]
        chosen = self._chooser(servers, wanted)
        beside = emptied_by(servers, chosen)
        if beside:
            text = f"{', '.join(beside)} would be emptied as well, should the jobs on {', '.join(chosen)} go"
            turn.events.append(LoanEvent("call back", text))
        return [entries[name] for name in chosen]

    def _call_back(
        self, entry: Entry, turn: Turn, deadline_at: float, why: str, cause: Cause, call_id: str = ""
    ) -> None:
        if self._dry_run:
            turn.events.extend(self._say(f"dry run {entry.node}", f"would call {entry.node} back: {why}"))
            return
        self._called_back_at = turn.now
        event = self._book.call_back(entry, turn.now, deadline_at, why, cause, call_id)
        if event is not None:
            turn.events.append(event)

    # Vacating.

    def _vacate(self, turn: Turn) -> None:
        if self._dry_run:
            return
        self._exchange(turn)
        for entry in self._book:
            if entry.loan.closed:
                self._vacate_one(entry, turn)

    def _exchange(self, turn: Turn) -> None:
        """Before a base is preempted: another server, without one, goes back in place of this one."""
        spare = [entry for entry in self._book if entry.recallable and not turn.of(entry.node).bases]
        spare.sort(key=lambda entry: turn.of(entry.node).server(entry.node, frozenset()).satellite_workers)
        for entry in self._book:
            loan = entry.loan
            any_would_do = entry.early and entry.cause in (Cause.DEMAND, Cause.ASKED)
            if not spare or not any_would_do or not turn.of(entry.node).bases:
                continue
            assert loan.deadline_at is not None
            other = spare.pop(0)
            why = f"instead of {entry.node}, where a base runs: {loan.why_back}"
            self._call_back(other, turn, loan.deadline_at, why, entry.cause, entry.call_id)
            text = f"{other.node} goes back in its place, and no base has to"
            turn.events.append(self._book.reopen(entry, text))

    def _vacate_one(self, entry: Entry, turn: Turn) -> None:
        steps = next_steps(entry.loan, turn.of(entry.node), self._settings.timing, turn.view.saving, turn.now)
        if steps.state is LoanState.ESCALATED and entry.loan.state is not LoanState.ESCALATED:
            turn.events.append(LoanEvent("escalate", words.escalated(entry.loan, turn.now)))
        entry.loan = replace(entry.loan, state=steps.state)
        for order in steps.scale_in:
            self._scale_in(entry, order, turn)
        for save in steps.save:
            if save.job not in entry.saved:
                entry.saved.add(save.job)
                turn.save.append(save)
                text = f"is asked for a checkpoint, because it may have to go: {save.why}"
                turn.events.append(LoanEvent("save", text, save.job))
        for preempt in steps.preempt:
            self._preempt(entry, preempt, turn)

    def _scale_in(self, entry: Entry, order: ScaleIn, turn: Turn) -> None:
        name = order.job, order.grant_id or str(order.satellite_job_id)
        if name not in entry.scaled_in:
            entry.scaled_in.add(name)
            entry.loan = replace(entry.loan, workers_scaled_in=entry.loan.workers_scaled_in + order.workers)
            text = f"gives back its {workers(order.workers)} on {order.node}: {order.why}"
            turn.events.append(LoanEvent("vacate", text, order.job))
        if order.force:
            cancelled_at = entry.cancelled.get(order.satellite_job_id, -math.inf)
            if turn.now - cancelled_at < _AGAIN_S:
                return
            entry.cancelled[order.satellite_job_id] = turn.now
        turn.scale_in.append(order)

    def _preempt(self, entry: Entry, order: Preempt, turn: Turn) -> None:
        told_at = self._told_at(order.job)
        if told_at is not None and turn.now - told_at < _AGAIN_S:
            return
        if told_at is None:
            any_would_do = entry.cause in (Cause.DEMAND, Cause.ASKED)
            only = "; no other server can go without a base" if any_would_do else ""
            beside = self._emptied_by(order.job, turn)
            also = f"; that empties {', '.join(beside)} as well" if beside else ""
            text = f"is preempted and waits again: {order.why}{only}{also}"
            turn.events.append(LoanEvent("preempt", text, order.job))
            loan = entry.loan
            entry.loan = replace(
                loan,
                bases_preempted=loan.bases_preempted + 1,
                servers_emptied_beside=loan.servers_emptied_beside + len(beside),
            )
        entry.preempted[order.job] = turn.now
        turn.preempt.append(replace(order, force=order.force and told_at is not None))

    def _emptied_by(self, job: JobKey, turn: Turn) -> list[str]:
        """Servers on loan that nobody wants back, and that are empty once `job` is gone as well."""
        gone = {job, *(other for entry in self._book for other in entry.preempted)}
        return [
            entry.node
            for entry in self._book
            if not entry.loan.closed
            and job in turn.of(entry.node).stays
            and turn.of(entry.node).stays <= gone
        ]

    def _told_at(self, job: JobKey) -> float | None:
        """When that job was last preempted, for whatever server."""
        told = [entry.preempted[job] for entry in self._book if job in entry.preempted]
        return max(told, default=None)

    # Coming back.

    def _end_empty(self, turn: Turn) -> None:
        """Loans of servers that are empty, and out of the partition, so that nothing new starts there."""
        for entry in [entry for entry in self._book if entry.loan.closed]:
            if not turn.of(entry.node).empty:
                entry.empty_at = None
                continue
            if entry.empty_at is None:
                entry.empty_at = turn.now
                turn.events.append(LoanEvent("returned", words.returned(entry.loan, turn.now)))
            if self._settings.static or entry.node not in turn.borrowed:
                turn.ended.append(self._book.end(entry, turn.now))

    def _edit(self, turn: Turn) -> frozenset[str] | None:
        """What the partition is to hold, if it does not and may be edited now."""
        if self._settings.static or self._dry_run or not turn.has_partitions:
            return None
        wanted = self._book.foreign | {entry.node for entry in self._book if not entry.loan.closed}
        self._edit_waits = not turn.holds(wanted)
        early = self._edited_at is None or turn.now - self._edited_at < self._settings.edit_interval_s
        if not self._edit_waits or early:
            return None
        self._edited_at = turn.now
        if wanted == turn.borrowed:
            name = self._settings.satellite_partition
            text = f"partition {name} does not have the servers on loan: it gets them with this edit"
            turn.events.append(LoanEvent("repair", text))
        return wanted

    def _say(self, matter: str, text: str) -> list[LoanEvent]:
        """The event of a matter that lasts, when its text is news; "" ends it."""
        if self._said.get(matter, "") == text:
            return []
        self._said[matter] = text
        return [LoanEvent("demand", text or f"{matter}: all is well again")]


def _checked(demand: Demand, now: float) -> Demand:
    """`demand`, if it can be. Raises DemandMissing."""
    if not math.isfinite(demand.servers) or demand.servers < 0:
        raise DemandMissing(f"{demand.source} says {demand.servers} servers: a number from 0 is allowed")
    if demand.at > now + _FUTURE_S:
        ahead_s = demand.at - now
        raise DemandMissing(
            f"{demand.source} says so of a moment {ahead_s:.0f} s from now: one clock is wrong"
        )
    return demand
