"""Lending: in each cycle it decides which servers to lend or reclaim, and which jobs have to leave now.

The controller calls it in each of its cycles, before the policy, and carries out the result. This module
changes nothing in a cluster itself; the same code runs in simulations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flexo.loaning import words
from flexo.loaning.demand import DemandMissing, DemandSource, ReclaimRequest
from flexo.loaning.lending_cycle import LendingCycle, LendingPlan, LendingSettings, Reading, View
from flexo.loaning.loan_ledger import Cause, Entry, LoanEvent, LoanLedger
from flexo.loaning.orchestrator import Decision, DemandForecast, decide
from flexo.loaning.partition import PartitionDemand
from flexo.loaning.reclaim import Chooser, emptied_by, heuristic
from flexo.loaning.reclaim_steps import Preempt, ScaleIn, next_steps, steps_at
from flexo.loaning.resident_jobs import doomed_by
from flexo.model.loans import Demand, LeftAlone, Loan, LoanState
from flexo.model.nodes import Partition
from flexo.model.queue import JobKey
from flexo.words import workers

_AGAIN_S: Final = 30.0
"""The least time between two attempts to preempt the same job, or to cancel the same satellite."""
_FUTURE_S: Final = 60.0
"""Seconds that the clock of a source of demand may be ahead of flexod's."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """A plan that stays valid between two cycles in which something is due, while only flexo changes
    anything.

    A simulation calls `cycle` at each of its events, and says when a server has become empty
    (`Lending.look_again`).
    """

    partitions: tuple[Partition, ...]
    """The snapshot's partitions: the same object, while nothing has been lent or edited."""
    since: float
    until: float
    calls: tuple[ReclaimRequest, ...]
    plan: LendingPlan

    def holds(self, view: View) -> bool:
        """Whether the plan is still valid: nothing has changed, and nothing is due."""
        return view.partitions is self.partitions and not view.jobs and self.since <= view.at < self.until


class Lending:
    """Keeps the loans of one inference cluster. For the controller's thread alone."""

    def __init__(
        self,
        settings: LendingSettings,
        source: DemandSource,
        *,
        forecast: DemandForecast | None = None,
        chooser: Chooser = heuristic,
        remembered: Iterable[Loan] = (),
        left_alone: Iterable[LeftAlone] = (),
        dry_run: bool = False,
    ) -> None:
        """`forecast` None: only the present demand counts.

        `remembered`, `left_alone`: the state that the previous flexod has persisted. `dry_run`: events say
        what would be lent or reclaimed, and nothing else happens.
        """
        self._settings = settings
        self._source = source
        self._forecast = forecast
        self._chooser = chooser
        self._dry_run = dry_run
        self._ledger = LoanLedger(remembered, left_alone)
        self._queue = PartitionDemand(settings.inference_partition)
        self._turned_at = -math.inf
        """The time of the last cycle, by the cluster's clock."""
        self._set: list[LoanEvent] = []
        """The event about a clock that was set since the last cycle."""
        self._decided_at: float | None = None
        self._reclaimed_at = -math.inf
        self._edited_at: float | None = None
        """The time of the last edit of the partition; None: this flexod has not seen the cluster yet."""
        self._edit_waits = False
        """Whether the partition has the wrong content, and may not be edited yet."""
        self._waiting: frozenset[int] = frozenset()
        """Inference jobs that waited in the last cycle."""
        self._no_more_because = ""
        """The reason why nothing could be lent in the last cycle, whatever the demand."""
        self._said: dict[str, str] = {}
        """Per lasting matter: the last text, so that it is reported once."""
        self._would = (0, 0, 0)
        """The numbers of the last decision of a dry run."""
        self._reading = Reading()
        self._rest: _Rest | None = None

    @property
    def settings(self) -> LendingSettings:
        """The settings with which this lending was made."""
        return self._settings

    @property
    def again_at(self) -> float | None:
        """Time of the next cycle that has something to do although nothing happens; None: before the first
        cycle."""
        if self._decided_at is None:
            return None
        due = [self._decided_at + self._settings.rules.interval_s]
        if self._edit_waits and self._edited_at is not None:
            due.append(self._edited_at + self._settings.edit_interval_s)
        for entry in self._ledger:
            if entry.loan.deadline_at is not None and entry.empty_at is None:
                due += steps_at(entry.loan, self._settings.timing)
        return min((at for at in due if at > self._turned_at), default=None)

    def cycle(self, view: View) -> LendingPlan:
        """The actions that are due now. It does not raise, whatever a source of demand reports."""
        rest = self._rest
        if rest is not None and rest.holds(view) and rest.calls == self._source.reclaim_requests(view.at):
            return rest.plan
        cycle = LendingCycle(view, self._settings)
        self._turned_at = view.at
        cycle.events.extend(self._set)
        self._set.clear()
        cycle.events.extend(self._say("partitions", cycle.trouble))
        cycle.look(self._ledger)
        calls = self._source.reclaim_requests(view.at)
        if cycle.trouble:  # demanded servers are reclaimed all the same
            self._reading = replace(self._reading, trouble=cycle.trouble)
            self._heed(calls, cycle)
        else:
            self._lend_and_reclaim(calls, cycle)
        cycle.look(self._ledger)
        self._reclaim_servers(cycle)
        self._end_empty(cycle)
        borrowed = self._edit(cycle)
        loans = self._ledger.loans
        # an empty server is back, though its loan stands until the server is out of the partition as well
        self._source.heed(view.at, [entry.loan for entry in self._ledger if entry.empty_at is None])
        ordered = cycle.scale_in or cycle.preempt
        self._rest = None if ordered else self._next_rest(view, calls)
        return cycle.plan(loans, borrowed, self._reading, self._ledger.left_alone(cycle.now))

    def _lend_and_reclaim(self, calls: tuple[ReclaimRequest, ...], cycle: LendingCycle) -> None:
        """Correct the ledger by the cluster's facts, and decide which servers to lend and reclaim."""
        if self._edited_at is None:
            # a flexod before this one may have edited it just now
            self._edited_at = cycle.now if cycle.borrowed or self._ledger.loans else -math.inf
        self._join(cycle)
        self._reclaim_unfit(cycle)
        self._heed(calls, cycle)
        if self._is_due(cycle):
            self._decide(cycle, asked=bool(calls))
            self._decided_at = cycle.now

    def look_again(self) -> None:
        """Make the next cycle look at the cluster: a server under reclaim has changed."""
        self._rest = None

    def _next_rest(self, view: View, calls: tuple[ReclaimRequest, ...]) -> _Rest | None:
        """The plan that is valid until something is due; None: a queue may bring something in every cycle."""
        until = self.again_at
        if view.jobs or until is None:
            return None
        left_alone = self._ledger.left_alone(view.at)
        plan = LendingPlan(self._ledger.loans, reading=self._reading, left_alone=left_alone)
        return _Rest(view.partitions, view.at, until, calls, plan)

    def clock_was_set(self, seconds: float) -> None:
        """Move all stored times, because the clock of the views was set by `seconds` (forward: above 0)."""
        self._ledger.shift(seconds)
        self._reclaimed_at += seconds
        self._edited_at = None if self._edited_at is None else self._edited_at + seconds
        self._decided_at = self._rest = None
        self._turned_at = -math.inf
        direction = "forward" if seconds > 0 else "back"
        text = f"the clock was set {direction} by {abs(seconds):.0f} s: deadlines are moved with it"
        self._set.append(LoanEvent("repair", text))

    # The facts of the cluster.

    def _join(self, cycle: LendingCycle) -> None:
        events, ended = self._ledger.join(
            cycle.truth(), cycle.now, cycle.now + self._settings.rules.reclaim_s
        )
        cycle.events.extend(events)
        cycle.ended.extend(ended)

    def _reclaim_unfit(self, cycle: LendingCycle) -> None:
        """Reclaim servers that cannot stay on loan, whatever the demand."""
        deadline_at = cycle.now + self._settings.rules.reclaim_s
        for entry in self._ledger:
            if entry.loan.closed and entry.cause is not Cause.DEMAND:
                continue
            why = cycle.why_unfit(entry.node)
            if why:
                self._reclaim(entry, cycle, deadline_at, why, Cause.SERVER)

    # Servers that the inference cluster demands back.

    def _heed(self, calls: Sequence[ReclaimRequest], cycle: LendingCycle) -> None:
        """Reclaim the servers that are demanded by a deadline, and forget demands that no longer stand."""
        open_ids = {call.call_id for call in calls}
        for matter in [matter for matter in self._said if matter.startswith("call ")]:
            if matter.split()[1] not in open_ids:
                del self._said[matter]
        for entry in self._ledger:
            if entry.call_id and entry.call_id not in open_ids:
                entry.cause, entry.call_id = Cause.DEMAND, ""
        for call in calls:
            for node in call.nodes:
                self._reclaim_named(node, call, cycle)
        for call in calls:
            if not call.nodes:
                self._reclaim_some(call, cycle)

    def _reclaim_named(self, node: str, call: ReclaimRequest, cycle: LendingCycle) -> None:
        entry = self._ledger.get(node)
        if entry is None:
            text = f"{node} is demanded back ({call.why}), and is not on loan: there is nothing to give back"
            cycle.events.extend(self._say(f"call {call.call_id} {node}", text))
        elif entry.call_id != call.call_id or not entry.loan.closed:
            self._reclaim(entry, cycle, call.deadline_at, call.why, Cause.NAMED, call.call_id)

    def _reclaim_some(self, call: ReclaimRequest, cycle: LendingCycle) -> None:
        """Reclaim the number of servers that `call` demands. Servers under reclaim for no call count
        first."""
        coming = [entry for entry in self._ledger if entry.loan.closed and entry.empty_at is None]
        mine = [entry for entry in coming if entry.call_id == call.call_id]
        missing = call.servers - len(mine)
        under_way = [entry for entry in coming if not entry.call_id]
        some = under_way[: max(0, missing)]
        some += self._choose(missing - len(some), cycle)
        for entry in some:
            self._reclaim(entry, cycle, call.deadline_at, call.why, Cause.ASKED, call.call_id)
        missing -= len(some)
        if missing > 0:
            text = f"{call.servers} servers are demanded back ({call.why}), {missing} more than are on loan"
            cycle.events.extend(self._say(f"call {call.call_id}", text))

    # Decisions by demand.

    def _is_due(self, cycle: LendingCycle) -> bool:
        """Whether it is time to decide: the interval is over, an inference job has begun to wait, or the
        reason why nothing can be lent has changed."""
        waiting, self._waiting = self._waiting, cycle.waiting
        before, self._no_more_because = self._no_more_because, cycle.no_more_because
        if before != cycle.no_more_because:
            return True
        if self._decided_at is None or cycle.now >= self._decided_at + self._settings.rules.interval_s:
            return True
        return bool(self._waiting - waiting)

    def _decide(self, cycle: LendingCycle, *, asked: bool) -> None:
        try:
            demand = _checked(self._source.read(cycle.now, cycle.view.nodes, cycle.view.jobs), cycle.now)
        except DemandMissing as error:
            self._decide_without(str(error), cycle)
            return
        cycle.events.extend(self._say("demand", ""))
        peak, broken = self._peak(demand, cycle.now)
        cycle.events.extend(self._say("forecast", broken))
        picture = cycle.picture(self._ledger)
        rested = cycle.now - self._reclaimed_at >= self._settings.rules.rest_s
        decision = decide(self._settings.rules, picture, demand.servers, peak, rested=rested)
        trouble = cycle.no_more_because or broken
        if demand.servers > picture.size:
            asked_for = f"{demand.source} says that {demand.servers:.1f} servers are needed"
            trouble = f"{asked_for}, and there are {picture.size}"
        cycle.events.extend(self._say("lending", trouble))
        self._reading = Reading(cycle.now, picture.size, demand, peak, decision.why, trouble)
        self._act(decision, cycle, may_lend=not (asked or cycle.waiting or broken))

    def _decide_without(self, missing: str, cycle: LendingCycle) -> None:
        """Act without a known demand: lend nothing more, and reclaim only the servers for which inference
        jobs wait."""
        trouble = f"demand is not known, so nothing more is lent: {missing}"
        cycle.events.extend(self._say("demand", trouble))
        picture = cycle.picture(self._ledger)
        self._reading = Reading(cycle.now, picture.size, None, None, "", trouble)
        if cycle.waiting:
            try:
                queued = self._queue.read(cycle.now, cycle.view.nodes, cycle.view.jobs)
            except DemandMissing:
                return
            rules = replace(self._settings.rules, headroom_servers=0.0, headroom_share=0.0)
            self._act(decide(rules, picture, queued.servers, None, rested=False), cycle, may_lend=False)

    def _peak(self, demand: Demand, now: float) -> tuple[float | None, str]:
        """The highest value of the forecast, if there is a forecast; and the reason why it is missing, if it
        should be there.

        If the forecast fails, servers are reclaimed by demand alone: a failure must not delay them.
        """
        if self._forecast is None:
            return None, ""
        try:
            self._forecast.note(demand.at, demand.servers)
            highest = self._forecast.band(now, now + self._settings.rules.horizon_s).highest
        except Exception as error:
            return None, f"the forecast failed, so nothing more is lent: {type(error).__name__}: {error}"
        if math.isfinite(highest):
            return highest, ""
        return None, f"the forecast expects {highest} servers, so nothing more is lent"

    def _act(self, decision: Decision, cycle: LendingCycle, *, may_lend: bool) -> None:
        if self._dry_run:
            numbers = decision.lend, decision.reclaim, decision.reopen
            if numbers != self._would:
                self._would = numbers
                cycle.events.append(LoanEvent("demand", words.would(decision)))
            return
        deadline_at = cycle.now + self._settings.rules.reclaim_s
        for entry in self._choose(decision.reclaim, cycle):
            self._reclaim(entry, cycle, deadline_at, decision.why, Cause.DEMAND)
        if may_lend:
            for entry in cycle.undecided(self._ledger)[: decision.reopen]:
                cycle.events.append(self._ledger.reopen(entry, decision.why))
            for node in cycle.best_to_lend(decision.lend, self._ledger):
                cycle.events.append(self._ledger.lend(node, cycle.now, decision.why))

    # Reclaiming.

    def _choose(self, wanted: int, cycle: LendingCycle) -> list[Entry]:
        """The `wanted` servers on loan whose loss costs least."""
        entries = {entry.node: entry for entry in self._ledger if entry.recallable}
        if wanted <= 0 or not entries:
            return []
        closed = [entry.node for entry in self._ledger if entry.loan.closed]
        doomed = doomed_by(cycle.residents, closed)
        servers = [cycle.of(name).server(name, doomed) for name in entries]
        chosen = self._chooser(servers, wanted)
        beside = emptied_by(servers, chosen)
        if beside:
            text = f"{', '.join(beside)} would be emptied as well, should the jobs on {', '.join(chosen)} go"
            cycle.events.append(LoanEvent("call back", text))
        return [entries[name] for name in chosen]

    def _reclaim(
        self, entry: Entry, cycle: LendingCycle, deadline_at: float, why: str, cause: Cause, call_id: str = ""
    ) -> None:
        if self._dry_run:
            cycle.events.extend(self._say(f"dry run {entry.node}", f"would call {entry.node} back: {why}"))
            return
        self._reclaimed_at = cycle.now
        event = self._ledger.reclaim(entry, cycle.now, deadline_at, why, cause, call_id)
        if event is not None:
            cycle.events.append(event)

    # Emptying servers under reclaim.

    def _reclaim_servers(self, cycle: LendingCycle) -> None:
        if self._dry_run:
            return
        self._exchange(cycle)
        for entry in self._ledger:
            if entry.loan.closed:
                self._reclaim_one(entry, cycle)

    def _exchange(self, cycle: LendingCycle) -> None:
        """Reclaim another server, without a base, in place of one whose base has not been preempted yet."""
        spare = [entry for entry in self._ledger if entry.recallable and not cycle.of(entry.node).bases]
        spare.sort(key=lambda entry: cycle.of(entry.node).server(entry.node, frozenset()).satellite_workers)
        for entry in self._ledger:
            loan = entry.loan
            any_would_do = entry.early and entry.cause in (Cause.DEMAND, Cause.ASKED)
            if not spare or not any_would_do or not cycle.of(entry.node).bases:
                continue
            assert loan.deadline_at is not None
            other = spare.pop(0)
            why = f"instead of {entry.node}, where a base runs: {loan.why_back}"
            self._reclaim(other, cycle, loan.deadline_at, why, entry.cause, entry.call_id)
            text = f"{other.node} goes back in its place, and no base has to"
            cycle.events.append(self._ledger.reopen(entry, text))

    def _reclaim_one(self, entry: Entry, cycle: LendingCycle) -> None:
        steps = next_steps(
            entry.loan, cycle.of(entry.node), self._settings.timing, cycle.view.saving, cycle.now
        )
        if steps.state is LoanState.ESCALATED and entry.loan.state is not LoanState.ESCALATED:
            cycle.events.append(LoanEvent("escalate", words.escalated(entry.loan, cycle.now)))
        entry.loan = replace(entry.loan, state=steps.state)
        for order in steps.scale_in:
            self._scale_in(entry, order, cycle)
        for save in steps.save:
            if save.job not in entry.saved:
                entry.saved.add(save.job)
                cycle.save.append(save)
                text = f"is asked for a checkpoint, because it may have to go: {save.why}"
                cycle.events.append(LoanEvent("save", text, save.job))
        for preempt in steps.preempt:
            self._preempt(entry, preempt, cycle)

    def _scale_in(self, entry: Entry, order: ScaleIn, cycle: LendingCycle) -> None:
        name = order.job, order.grant_id or str(order.satellite_job_id)
        if name not in entry.scaled_in:
            entry.scaled_in.add(name)
            entry.loan = replace(entry.loan, workers_scaled_in=entry.loan.workers_scaled_in + order.workers)
            text = f"gives back its {workers(order.workers)} on {order.node}: {order.why}"
            cycle.events.append(LoanEvent("vacate", text, order.job))
        if order.force:
            cancelled_at = entry.cancelled.get(order.satellite_job_id, -math.inf)
            if cycle.now - cancelled_at < _AGAIN_S:
                return
            entry.cancelled[order.satellite_job_id] = cycle.now
        cycle.scale_in.append(order)

    def _preempt(self, entry: Entry, order: Preempt, cycle: LendingCycle) -> None:
        told_at = self._told_at(order.job)
        if told_at is not None and cycle.now - told_at < _AGAIN_S:
            return
        if told_at is None:
            any_would_do = entry.cause in (Cause.DEMAND, Cause.ASKED)
            only = "; no other server can go without a base" if any_would_do else ""
            beside = self._emptied_by(order.job, cycle)
            also = f"; that empties {', '.join(beside)} as well" if beside else ""
            text = f"is preempted and waits again: {order.why}{only}{also}"
            cycle.events.append(LoanEvent("preempt", text, order.job))
            loan = entry.loan
            entry.loan = replace(
                loan,
                bases_preempted=loan.bases_preempted + 1,
                servers_emptied_beside=loan.servers_emptied_beside + len(beside),
            )
        entry.preempted[order.job] = cycle.now
        cycle.preempt.append(replace(order, force=order.force and told_at is not None))

    def _emptied_by(self, job: JobKey, cycle: LendingCycle) -> list[str]:
        """Lent servers that are not under reclaim, and that become empty once `job` is gone as well."""
        gone = {job, *(other for entry in self._ledger for other in entry.preempted)}
        return [
            entry.node
            for entry in self._ledger
            if not entry.loan.closed
            and job in cycle.of(entry.node).stays
            and cycle.of(entry.node).stays <= gone
        ]

    def _told_at(self, job: JobKey) -> float | None:
        """The time when the job was last preempted, for whatever server; None: never."""
        told = [entry.preempted[job] for entry in self._ledger if job in entry.preempted]
        return max(told, default=None)

    # Ending loans.

    def _end_empty(self, cycle: LendingCycle) -> None:
        """End the loans of servers that are empty and out of the partition, so that nothing new starts
        there."""
        for entry in [entry for entry in self._ledger if entry.loan.closed]:
            if not cycle.of(entry.node).empty:
                entry.empty_at = None
                continue
            if entry.empty_at is None:
                entry.empty_at = cycle.now
                cycle.events.append(LoanEvent("returned", words.returned(entry.loan, cycle.now)))
            if self._settings.static or entry.node not in cycle.borrowed:
                cycle.ended.append(self._ledger.end(entry, cycle.now))

    def _edit(self, cycle: LendingCycle) -> frozenset[str] | None:
        """The new content of the partition, if it differs and may be edited now; None: leave it."""
        if self._settings.static or self._dry_run or not cycle.has_partitions:
            return None
        wanted = self._ledger.foreign | {entry.node for entry in self._ledger if not entry.loan.closed}
        self._edit_waits = not cycle.holds(wanted)
        early = self._edited_at is None or cycle.now - self._edited_at < self._settings.edit_interval_s
        if not self._edit_waits or early:
            return None
        self._edited_at = cycle.now
        if wanted == cycle.borrowed:
            name = self._settings.satellite_partition
            text = f"partition {name} does not have the servers on loan: it gets them with this edit"
            cycle.events.append(LoanEvent("repair", text))
        return wanted

    def _say(self, matter: str, text: str) -> list[LoanEvent]:
        """The event of a lasting matter, if its text is new; "" ends the matter."""
        if self._said.get(matter, "") == text:
            return []
        self._said[matter] = text
        return [LoanEvent("demand", text or f"{matter}: all is well again")]


def _checked(demand: Demand, now: float) -> Demand:
    """`demand`, if it is possible. Raises DemandMissing."""
    if not math.isfinite(demand.servers) or demand.servers < 0:
        raise DemandMissing(f"{demand.source} says {demand.servers} servers: a number from 0 is allowed")
    if demand.at > now + _FUTURE_S:
        ahead_s = demand.at - now
        raise DemandMissing(
            f"{demand.source} says so of a moment {ahead_s:.0f} s from now: one clock is wrong"
        )
    return demand
