"""Carries out what lending decides: edits the partition, has workers leave, preempts bases, writes it down.

What is decided is in `loaning`; a controller that lends nothing has none of this.
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
from flexo.control.logbook import Logbook
from flexo.control.refusals import Refusals
from flexo.control.views import LoansView
from flexo.control.watch import Unwatched, Watch
from flexo.events import Event
from flexo.grants import GrantBook, Sight
from flexo.loaning.lending import Lending
from flexo.loaning.turn import LendingPlan, View
from flexo.loaning.vacating import Preempt, Saving, ScaleIn
from flexo.model.loans import Loan
from flexo.model.nodes import Node, NodeCondition
from flexo.model.plans import Allocate
from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob

_NOT_ON_LOAN: Final = frozenset({NodeCondition.OUT_OF_SERVICE})
_SAID_AGAIN_S: Final = 3600.0
"""Between two entries of the same mistake."""

_log = structlog.get_logger("flexo.controller")


class Loans:
    """For the controller's thread alone, but for `view`."""

    def __init__(
        self,
        lending: Lending,
        cluster: Cluster,
        leaders: Leaders,
        journal: Logbook,
        refusals: Refusals,
        checkpoint: str = "",
        watch: Watch | None = None,
    ) -> None:
        """`checkpoint`: where bases write one before they are preempted, with %u and %j; "": nowhere.

        `watch` None: nobody counts what happens.
        """
        self._lending = lending
        self._cluster = cluster
        self._leaders = leaders
        self._journal = journal
        self._refusals = refusals
        self._checkpoint = checkpoint
        self._watch = Unwatched() if watch is None else watch
        self._saved: set[JobKey] = set()
        """Jobs whose leaders have answered."""
        self._hidden: dict[str, tuple[Node, Node]] = {}
        """Inference servers that are not lent, as they are and as policies see them."""
        self._stood: frozenset[str] = frozenset()
        """Servers that were on loan before this turn."""
        self._mistake = ("", 0.0)
        """The last one of lending's that was written down, and when."""
        self._shown: tuple[tuple[Node, ...], tuple[Loan, ...], tuple[Node, ...]] = ((), (), ())
        """The last nodes and loans, and what policies saw of them."""
        self.view = LoansView(lending.settings, journal.loans(), left_alone=journal.left_alone())
        """As of the last turn."""

    @property
    def satellite_partition(self) -> str:
        """Where satellites on servers on loan are submitted."""
        settings = self.view.settings
        return settings.satellite_partition or settings.partition

    def clock_was_set(self, seconds: float) -> None:
        """Deadlines of loans move along with a clock that was set."""
        self._lending.clock_was_set(seconds)

    # On a cluster that starts jobs as it likes, where they grow by satellites.

    def decide(
        self, state: ClusterState, sight: Sight, attached: Iterable[JobKey]
    ) -> tuple[LendingPlan | None, list[Event]]:
        """What is to be done, shown and persisted; what happened. None: lending made a mistake.

        Neither here nor in `carry_out` may one end what keeps leases alive: it is trouble, and nothing more
        is lent.
        """
        able = frozenset(attached) if self._checkpoint else frozenset[JobKey]()
        saving = Saving(able, frozenset(self._saved))
        view = View(state.at, state.nodes, state.partitions, state.jobs, sight.jobs, saving=saving)
        self._stood = frozenset(loan.node for loan in self.view.loans)
        try:
            plan = self._lending.turn(view)
            return plan, self._note(plan, state.at)
        except Exception as error:
            return None, self._fail(error, state.at)

    def carry_out(
        self, plan: LendingPlan, state: ClusterState, sight: Sight, book: GrantBook
    ) -> tuple[Sight, list[Event]]:
        """Have workers leave, then edit. What is seen, less the grants that were withdrawn; what happened."""
        try:
            happened = self._carry_out(plan, state, book)
        except Exception as error:
            self._refusals.note(str(error), None, state.at)  # so that it is shown until the next try
            return sight, self._fail(error, state.at)
        if plan.scale_in:
            sight = replace(sight, jobs=tuple(replace(job, grants=book.after(job)) for job in sight.jobs))
        return sight, happened

    def _fail(self, error: Exception, now: float) -> list[Event]:
        """Show the trouble, and of the loans those that stood before."""
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
        """Show and persist what was decided; what is to be written down of it."""
        before = self.view
        self.view = LoansView(before.settings, plan.loans, plan.reading, plan.left_alone)
        if (plan.loans, plan.left_alone) != (before.loans, before.left_alone) or plan.ended:
            self._journal.set_loans(plan.loans, plan.ended, plan.left_alone)
        if plan.ended:
            self._watch.loans_ended(plan.ended)
        if plan.reading.demand is not None and plan.reading.at != before.reading.at:
            self._journal.add_demand(plan.reading.demand)
        return [Event(now, event.kind, event.job, event.text) for event in plan.events]

    def _carry_out(self, plan: LendingPlan, state: ClusterState, book: GrantBook) -> list[Event]:
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
                # the others would wait as long, each: all are asked for again, and leases come first
                return [*happened, *self._refusals.note(str(error), job, now)]
        return happened

    def _commands(
        self, plan: LendingPlan, queue: Mapping[int, str]
    ) -> Iterator[tuple[Callable[[], None], JobKey | None]]:
        """What the cluster is asked to do, for which job. `queue`: the cluster's identifiers of its jobs."""
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
            return self._refusals.note(str(error), job, now)
        return ()

    # On a cluster that starts, resizes and preempts jobs itself.

    def settle(self, state: ClusterState) -> tuple[ClusterState, list[Event]]:
        """Lend, call back and vacate; the cluster as policies are to see it then.

        Inference servers that are not lent, or are called back, are unusable to them.
        """
        plan = self._lending.turn(View(state.at, state.nodes, state.partitions, training=state.training))
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
        # the partition follows the book by an edit: a call that is taken back may come before it
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
    """What jobs are to have that leave servers: what they have elsewhere, or nothing."""
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
            allocations.append(Allocate(job.key, shares, why, job.samples, job.guaranteed))
    return allocations


def _path(template: str, user: str, job: JobKey) -> str:
    return template.replace("%u", user).replace("%j", str(job.job_id))
