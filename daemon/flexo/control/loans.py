"""Carries out the decisions of lending: edits partitions, makes workers leave, preempts base jobs, records
events.

The package `loaning` decides. A controller that lends no servers has no `Loans`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from flexo.clusters.base import (
    ActionRefused,
    Allocates,
    Cluster,
    ClusterState,
    ClusterUnreachable,
    Lends,
    Requeues,
    cannot,
)
from flexo.control.leaders import Leaders
from flexo.control.recent_errors import RecentErrors
from flexo.control.state_store import StateStore
from flexo.control.views import LoansView
from flexo.control.watch import Unwatched, Watch
from flexo.events import Event
from flexo.grants import GrantLedger, ReconciledState
from flexo.loaning.lending import Lending
from flexo.loaning.lending_cycle import LendingPlan, View
from flexo.loaning.reclaim_steps import Preempt, Saving, ScaleIn
from flexo.model.loans import Loan
from flexo.model.nodes import Node, NodeCondition
from flexo.model.plans import Allocate
from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob

_NOT_ON_LOAN: Final = frozenset({NodeCondition.OUT_OF_SERVICE})
_SAID_AGAIN_S: Final = 3600.0
"""The least time between two events about the same error."""

_log = structlog.get_logger("flexo.controller")


class Loans:
    """Runs lending in each cycle. For the controller's thread alone; other threads may read `view`."""

    def __init__(
        self,
        lending: Lending,
        cluster: Cluster,
        leaders: Leaders,
        event_store: StateStore,
        recent_errors: RecentErrors,
        checkpoint: str = "",
        watch: Watch | None = None,
    ) -> None:
        """`checkpoint`: the path of the checkpoint that a base job writes before it is preempted, with %u
        (user) and %j (job); "": base jobs write none.

        `watch` None: events are not counted.
        """
        self._lending = lending
        self._cluster = cluster
        self._leaders = leaders
        self._event_store = event_store
        self._recent_errors = recent_errors
        self._checkpoint = checkpoint
        self._watch = Unwatched() if watch is None else watch
        self._saved: set[JobKey] = set()
        """Jobs whose leaders have answered a checkpoint request."""
        self._hidden: dict[str, tuple[Node, Node]] = {}
        """Inference servers that are not lent: each as it is, and as policies see it."""
        self._stood: frozenset[str] = frozenset()
        """Servers that were on loan before this cycle."""
        self._mistake = ("", 0.0)
        """The last error of lending that was recorded, and when."""
        self._shown: tuple[tuple[Node, ...], tuple[Loan, ...], tuple[Node, ...]] = ((), (), ())
        """The last nodes and loans, and the nodes that policies saw for them."""
        self.view = LoansView(lending.settings, event_store.loans(), left_alone=event_store.left_alone())
        """The loans as of the last cycle."""

    @property
    def satellite_partition(self) -> str:
        """The partition to which satellites on lent servers are submitted."""
        settings = self.view.settings
        return settings.satellite_partition or settings.partition

    def clock_was_set(self, seconds: float) -> None:
        """Shift the deadlines of loans by `seconds`, because the clock was set."""
        self._lending.clock_was_set(seconds)

    # For a cluster that starts jobs by itself, where jobs grow by satellites.

    def decide(
        self, state: ClusterState, reconciled: ReconciledState, attached: Iterable[JobKey]
    ) -> tuple[LendingPlan | None, list[Event]]:
        """Decide on loans; publish and persist the decision. Returns the plan and the events.

        The plan is None if lending failed. An error here or in `carry_out` must not stop the extension of
        time limits. It becomes a condition in the status, and no further servers are lent.
        """
        able = frozenset(attached) if self._checkpoint else frozenset[JobKey]()
        saving = Saving(able, frozenset(self._saved))
        view = View(state.at, state.nodes, state.partitions, state.jobs, reconciled.jobs, saving=saving)
        self._stood = frozenset(loan.node for loan in self.view.loans)
        try:
            plan = self._lending.cycle(view)
            return plan, self._note(plan, state.at)
        except Exception as error:
            return None, self._fail(error, state.at)

    def carry_out(
        self, plan: LendingPlan, state: ClusterState, reconciled: ReconciledState, book: GrantLedger
    ) -> tuple[ReconciledState, list[Event]]:
        """Make workers leave, then send the commands to the cluster. Returns the state after the withdrawals
        of grants, and the events."""
        try:
            happened = self._carry_out(plan, state, book)
        except Exception as error:
            self._recent_errors.note(str(error), None, state.at)  # for the status, until the next try
            return reconciled, self._fail(error, state.at)
        if plan.scale_in:
            reconciled = replace(reconciled, jobs=tuple(book.after(job) for job in reconciled.jobs))
        return reconciled, happened

    def _fail(self, error: Exception, now: float) -> list[Event]:
        """Publish the error, and only those loans that stood before this cycle. Returns the event, if it is
        new."""
        trouble = f"lending made a mistake: {type(error).__name__}: {error}"
        loans = tuple(loan for loan in self.view.loans if loan.node in self._stood)
        reading = replace(self.view.reading, trouble=trouble)
        self.view = replace(self.view, loans=loans, reading=reading)
        if trouble == self._mistake[0] and now - self._mistake[1] < _SAID_AGAIN_S:
            return []
        self._mistake = trouble, now
        _log.exception("lending failed")
        return [Event(now, "trouble", None, trouble)]

    def _note(self, plan: LendingPlan, now: float) -> list[Event]:
        """Publish and persist the decision. Returns the events for the event store."""
        before = self.view
        self.view = LoansView(before.settings, plan.loans, plan.reading, plan.left_alone)
        if (plan.loans, plan.left_alone) != (before.loans, before.left_alone) or plan.ended:
            self._event_store.set_loans(plan.loans, plan.ended, plan.left_alone)
        if plan.ended:
            self._watch.loans_ended(plan.ended)
        if plan.reading.demand is not None and plan.reading.at != before.reading.at:
            self._event_store.add_demand(plan.reading.demand)
        return [Event(now, event.kind, event.job, event.text) for event in plan.events]

    def _carry_out(self, plan: LendingPlan, state: ClusterState, book: GrantLedger) -> list[Event]:
        now = state.at
        happened: list[Event] = []
        for saved in self._leaders.take_saved():
            self._saved.add(saved.job)
            happened.append(Event(now, "save", saved.job, saved.text))
        for order in plan.scale_in:
            if order.grant_id:
                book.withdraw(order.job, order.grant_id, now)
        users = {job.key: job.user for job in state.jobs}
        for save in plan.save:
            self._leaders.save(save.job, _path(self._checkpoint, users[save.job], save.job))
        self._saved &= users.keys()
        for act, job in self._commands(plan, {job.job_id: job.identifier for job in state.jobs}):
            try:
                happened += self._try(act, job, now)
            except ClusterUnreachable as error:
                # each further command would wait as long. The next cycle asks again; time limits come first.
                return [*happened, *self._recent_errors.note(str(error), job, now)]
        return happened

    def _commands(
        self, plan: LendingPlan, queue: Mapping[int, str]
    ) -> Iterator[tuple[Callable[[], None], JobKey | None]]:
        """The commands for the cluster, each with its job. `queue`: the cluster's identifier of each job."""
        for order in plan.scale_in:
            if order.force and order.satellite_job_id in queue:
                yield partial(self._cluster.cancel, queue[order.satellite_job_id]), order.job
        for preempt in plan.preempt:
            yield partial(self._requeue, queue[preempt.job.job_id]), preempt.job
        if plan.borrowed is not None:
            yield partial(self._lend, plan.borrowed), None

    def _requeue(self, job: str) -> None:
        if not isinstance(self._cluster, Requeues):
            raise cannot(self._cluster, "preempt a running base")
        self._cluster.requeue(job)

    def _lend(self, nodes: frozenset[str]) -> None:
        if not isinstance(self._cluster, Lends):
            raise cannot(self._cluster, "lend servers")
        self._cluster.lend(nodes)

    def _try(self, act: Callable[[], None], job: JobKey | None, now: float) -> Iterable[Event]:
        try:
            act()
        except ActionRefused as error:
            return self._recent_errors.note(str(error), job, now)
        return ()

    # For a cluster that starts, resizes and preempts jobs as flexod says.

    def settle(self, state: ClusterState) -> tuple[ClusterState, list[Event]]:
        """Lend and reclaim servers. Returns the cluster as policies must see it, and the events.

        Inference servers that are not lent, or are being reclaimed, are unusable for policies.
        """
        plan = self._lending.cycle(View(state.at, state.nodes, state.partitions, training=state.training))
        happened = self._note(plan, state.at)
        if plan.borrowed is not None:
            happened += self._try(partial(self._lend, plan.borrowed), None, state.at)
        allocations = _without(state.training, plan.scale_in, plan.preempt)
        if allocations:
            self._allocate(allocations)
        if allocations or plan.borrowed is not None:
            state = self._cluster.observe()
        return replace(state, nodes=self._for_policies(state)), happened

    def _allocate(self, allocations: Sequence[Allocate]) -> None:
        if not isinstance(self._cluster, Allocates):
            raise cannot(self._cluster, "allocate")
        self._cluster.allocate(allocations, ())

    def _for_policies(self, state: ClusterState) -> tuple[Node, ...]:
        loans = self.view.loans
        if self._shown[0] is state.nodes and self._shown[1] is loans:
            return self._shown[2]
        settings, nodes_of = self.view.settings, {part.name: part.nodes for part in state.partitions}
        # the partition trails the loans by one edit: a loan may reopen before its server is in it again
        lent = {loan.node for loan in loans if not loan.closed} & nodes_of[settings.partition]
        off_limits = nodes_of[settings.inference_partition] - lent
        shown = tuple(self._hide(node) if node.name in off_limits else node for node in state.nodes)
        self._shown = state.nodes, loans, shown
        return shown

    def _hide(self, node: Node) -> Node:
        known = self._hidden.get(node.name)
        if known is None or known[0] is not node:
            known = self._hidden[node.name] = (
                node,
                replace(node, unusable="not on loan", conditions=_NOT_ON_LOAN),
            )
        return known[1]


def _without(
    training: Iterable[TrainingJob], scale_in: Sequence[ScaleIn], preempt: Sequence[Preempt]
) -> list[Allocate]:
    """New allocations of the jobs that leave servers: their workers elsewhere, or none."""
    if not scale_in and not preempt:
        return []
    leaves: dict[JobKey, dict[str, str]] = {}
    for order in scale_in:
        leaves.setdefault(order.job, {})[order.node] = order.why
    ends = {order.job: order.why for order in preempt}
    allocations = []
    for job in training:
        if job.key in ends:
            allocations.append(Allocate(job.key, (), ends[job.key]))
        elif job.key in leaves:
            nodes = leaves[job.key]
            shares = tuple(share for share in job.shares if share.node not in nodes)
            why = next(iter(nodes.values()))
            allocations.append(Allocate(job.key, shares, why, job.samples, job.guaranteed, job.shared))
    return allocations


def _path(template: str, user: str, job: JobKey) -> str:
    return template.replace("%u", user).replace("%j", str(job.job_id))
