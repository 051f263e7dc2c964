"""Observe, decide, act, record: the only place where cluster, policy, leaders and event store meet.

One thread runs `Controller.run`. The service calls from its own threads, which see immutable views of the
last cycle, replaced as a whole under one lock. The package `control` keeps the state from cycle to cycle and
makes the texts for people.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from flexo.aggregation.auto_placement import AutoPlacement
from flexo.clusters.base import (
    Allocates,
    Cluster,
    ClusterState,
    ClusterTraits,
    ClusterUnreachable,
    MayNotAct,
)
from flexo.config import Settings
from flexo.control import events
from flexo.control.batch_trials import BatchTrials, TrialOrder, read_all_reduce
from flexo.control.clock_watch import ClockWatch
from flexo.control.ended import EndedJobs
from flexo.control.explanations import Headline, explain, headline, profile
from flexo.control.failed_workers import FailedWorkersLog
from flexo.control.fair_shares import FairShares
from flexo.control.idle_nodes import IdleNodes
from flexo.control.inline_executor import InlineExecutor
from flexo.control.job_owners import JobOwners
from flexo.control.job_views import job_views
from flexo.control.leaders import GrantOffer, Leaders, Orders
from flexo.control.loans import Loans
from flexo.control.node_speeds import node_speeds
from flexo.control.poll_interval import PollInterval
from flexo.control.pooled_aggregation import PooledAggregation
from flexo.control.priorities import Priorities, in_training
from flexo.control.profiles import Profiles
from flexo.control.quotas import guarantees
from flexo.control.reasons import Reasons, Silences
from flexo.control.recent_errors import RecentErrors
from flexo.control.residency import ResidencyEstimator
from flexo.control.safeguards import Orphans, StartupBarrier, StarvationGuard, not_more_than_start
from flexo.control.scale_overrides import BadScale, ScaleOverrides
from flexo.control.seen_speeds import SeenSpeeds
from flexo.control.shared_gpus import SharedGpus
from flexo.control.silence import SilentJobs
from flexo.control.slow_gpus import SlowGpus, nodes_of
from flexo.control.state_store import StateStore
from flexo.control.suspended import SuspendedBases, without_reasons_of
from flexo.control.time_limits import TimeLimits
from flexo.control.unreadable import UnreadableJobs
from flexo.control.views import ControllerStatus, JobView, LoansView, ReasonEvents, Unheeded, UnknownJob, View
from flexo.control.watch import DONE, MISTAKE, UNREACHABLE, Unwatched, Watch
from flexo.events import ROUTINE, Event
from flexo.grant_signatures import GrantSigner
from flexo.grants import GrantLedger, ReconciledState, Rules
from flexo.loaning.lending import Lending
from flexo.model.elastic import Cap, ElasticJob, Grant, LeaderReport, SatelliteState
from flexo.model.measured import ScalingPoint, ScriptKey, Speed
from flexo.model.nodes import Node
from flexo.model.plans import Action, Note, Plan, Shrink, Snapshot
from flexo.model.queue import JobKey, QueuedJob
from flexo.policies import allocating, registry, satellites
from flexo.policies.aggregator_satellites import with_aggregators
from flexo.policies.base import Jobs, Policy, SiteFact
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo.policies.placement import Placement
from flexo.sharing.opportunists import SharingRules, with_opportunists
from flexo.training_jobs import History, Known, TrainingJobs, opportunist
from flexo.words import names_in
from flexo_protos.all_reduce_file import AllReduceTable, BadAllReduceFile
from flexo_protos.resources import total

_START_TURNS: Final = 2
_START_EXTRA_S: Final = 5
_LEAST_START_S: Final = 15
_MISTAKES_APART_S: Final = 60.0
"""The least time between two events about flexod's own errors, which may come in every cycle."""
_UNENDED_S: Final = 86_400.0
"""At its start, flexod asks for the ends of jobs that had events within this time and are gone."""
_NAP_S: Final = 1.0
"""The longest sleep at once, so that `stop` takes effect soon."""

_log = structlog.get_logger("flexo.controller")


def _random_grant_id() -> str:
    # 30 bits: on YARN, the id has to fit into the priority of a container. It counts within its job only.
    return f"g{secrets.randbits(30):08x}"


class PlanningFailed(Exception):
    """The policy, or what prepares its input, raised an error; the message names both."""


@dataclass(frozen=True, slots=True)
class _Decided:
    """The decisions of one cycle, as the grant book has them."""

    jobs: tuple[ElasticJob, ...]
    views: tuple[JobView, ...]
    plan: Plan
    order: tuple[JobKey, ...] = ()
    told: tuple[Event, ...] = ()
    error: Exception | None = None
    """The error that prevented a decision."""


class Controller:
    """The loop. One thread calls `run`; any thread may call everything else."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        leaders: Leaders,
        event_store: StateStore,
        *,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
        lending: Lending | None = None,
        watch: Watch | None = None,
        new_grant_id: Callable[[], str] = _random_grant_id,
        beside: Executor | None = None,
        signer: GrantSigner | None = None,
        aggregation: PooledAggregation | None = None,
    ) -> None:
        """`policy` None: the policy that the settings name. `lending` None: no servers are lent.
        `aggregation` None: jobs have no Aggregators but their own. `watch`
        None: events are not counted. `beside`: serial executor for work that a cycle does not await; None:
        the cycle awaits it.

        `steady`: a clock that nobody sets; None: `clock` is such a clock. `new_grant_id` returns identifiers
        that are never used twice, not even by the next flexod; a simulation counts. `signer` None: a signer
        whose signatures no other flexod knows.
        """
        now = clock()
        self._cluster = cluster
        self._allocates = cluster if isinstance(cluster, Allocates) else None
        self._leaders = leaders
        self._event_store = event_store
        self._clock = clock
        self._steady = steady or clock
        self._clock_watch = ClockWatch(clock, self._steady)
        self._watch = Unwatched() if watch is None else watch
        self._new_grant_id = new_grant_id
        self._beside = InlineExecutor() if beside is None else beside
        self._given_policy = policy
        self._started_at = now
        self._recent_errors = RecentErrors(cluster.software)
        self._overrides = ScaleOverrides(event_store, now)
        self._profiles = Profiles(event_store, now)
        self._batch_trials = BatchTrials(event_store)
        # changed by the loop's thread alone
        self._history = History(event_store.running_times())
        self._training_jobs = TrainingJobs()
        self._signer = GrantSigner.of_this_process() if signer is None else signer
        self._grant_ledger = GrantLedger(self._signer, event_store.grants(), now)
        self._aggregation = aggregation
        self._begin(settings)
        self._loans = (
            None
            if lending is None
            else Loans(
                lending,
                cluster,
                leaders,
                event_store,
                self._recent_errors,
                settings.loaning.checkpoint,
                self._watch,
            )
        )
        self._dry_decided: frozenset[Action] = frozenset()
        self._decided_at = 0.0
        self._again_at: float | None = None
        self._ended_before = 0
        """The number of jobs that had ended by `decided_at`."""
        self._unreadable = UnreadableJobs()
        self._reasons = Reasons()
        self._silences = Silences()
        self._idle_nodes = IdleNodes()
        self._job_owners = JobOwners(event_store)
        self._told = ""
        """The error or condition that was last recorded, if it is not over."""
        self._mistake_told_at = -math.inf
        self._ended = EndedJobs(
            cluster, self._beside, event_store.unended(now - _UNENDED_S), leaders.wake.set
        )
        # used by all threads, under the lock
        self._lock = threading.Lock()
        self._traits: ClusterTraits | None = None
        self._view = View(loans=self._loans_view)
        self._trouble = ""
        self._next: Settings | None = None
        self._unheeded = Unheeded()

    def _begin(self, settings: Settings) -> None:
        """Forget all temporary state, and use `settings` from now on.

        Losing this state is harmless, because flexod may be started again at any instant.
        """
        controller, cluster = settings.controller, self._cluster
        self._settings = settings
        self._policy = _policy_of(settings) if self._given_policy is None else self._given_policy
        self._recent_errors.forget()
        self._all_reduce = self._read_all_reduce(controller.all_reduce)
        self._grant_ledger = GrantLedger(self._signer, self._grant_ledger.issued, self._clock())
        self._startup_barrier = StartupBarrier()
        self._starvation_guard = StarvationGuard()
        self._auto_placement = AutoPlacement(
            settings.aggregation.rest_s, has_pool=self._aggregation is not None
        )
        self._residency = ResidencyEstimator()
        self._seen_speeds = SeenSpeeds()
        self._silent = SilentJobs()
        self._poll_interval = PollInterval(controller)
        self._failed_workers = FailedWorkersLog()
        self._slow_gpus = SlowGpus(self._event_store, controller.slow_gpu_s, self._clock())
        self._time_limits = TimeLimits(
            cluster, self._recent_errors, controller.time_limit_s, self._clock(), self._beside
        )
        self._orphans = Orphans(cluster, self._recent_errors, controller.time_limit_s)
        self._suspended = SuspendedBases(cluster, self._recent_errors, controller.suspend_grace_s)
        self._shared_gpus = SharedGpus(cluster, settings.sharing, self._recent_errors)
        self._fair_shares = FairShares(cluster, self._recent_errors, controller.fairshare_weight)
        self._priorities = Priorities(
            cluster, self._event_store, self._recent_errors, dry_run=controller.dry_run
        )

    def _read_all_reduce(self, path: Path | None) -> AllReduceTable | None:
        """The all-reduces of the cluster; None without a file. flexod has checked the file just before."""
        try:
            return None if path is None else read_all_reduce(path)
        except BadAllReduceFile as error:
            _log.error(f"[controller] all_reduce: {path}: {error}; no speeds are forecast")
            return None

    def run(self, stop: threading.Event) -> None:
        """Run cycles until `stop` is set. An unreachable cluster or a full disk does not end the loop."""
        self._record((Event(self._clock(), "daemon", None, "flexod begins"),))
        while not stop.is_set():
            begun = time.monotonic()
            self._leaders.wake.clear()
            self.cycle()
            self._rest(begun, stop)
        self._record((Event(self._clock(), "daemon", None, "flexod ends; grants stand"),))

    def _rest(self, begun: float, stop: threading.Event) -> None:
        """Wait for the next cycle. A leader's news shortens the wait, but never below what the cost of
        reading allows."""
        earliest, latest = begun + self._poll_interval.least_interval_s, begun + self.interval_s
        while not stop.is_set() and (left := latest - time.monotonic()) > 0:
            if time.monotonic() < earliest:
                stop.wait(min(_NAP_S, earliest - time.monotonic()))
            elif self._leaders.wake.wait(min(_NAP_S, left)):
                return

    @property
    def interval_s(self) -> float:
        """The time from one poll of the cluster to the next, in the present state."""
        view, loans = self._view, self._view.loans
        busy = bool(view.jobs or view.order) or self._ended.waits
        if loans is None:
            return self._poll_interval.interval_s(busy=busy)
        interval_s = self._poll_interval.interval_s(busy=busy or bool(loans.coming_back))
        return max(self._poll_interval.least_interval_s, min(interval_s, loans.settings.rules.interval_s))

    # Requests of other threads.

    @property
    def observation(self) -> ClusterState | None:
        """The result of the newest poll of the cluster; None before the first."""
        with self._lock:
            return self._view.state

    def status(self) -> ControllerStatus:
        """The state of the loop, and of the cluster as of the last poll."""
        now = self._clock()
        with self._lock:
            view, traits = self._view, self._traits
            trouble, unheeded = self._trouble, self._unheeded
        state = view.state
        nodes: tuple[Node, ...] = state.nodes if state else ()
        lending = view.loans.reading.trouble if view.loans else ""
        troubles = (
            *(trouble, unheeded.refused, self._unreadable.trouble, self._signer.trouble, lending),
            *(self._recent_errors.recent(now), self._event_store.trouble),
        )
        return ControllerStatus(
            started_at=self._started_at,
            cluster=traits.name if traits else "",
            version=traits.version if traits else "",
            software=self._cluster.software,
            policy=self._policy.name,
            dry_run=self._settings.controller.dry_run,
            interval_s=self.interval_s,
            last_cycle_at=state.at if state else 0.0,
            read_cost_s=state.read_cost_s if state else 0.0,
            troubles=tuple(filter(None, troubles)),
            nodes=len(nodes),
            gpus=total(node.gpus for node in nodes),
            gpus_idle=total(node.gpus_idle for node in nodes),
            gpus_in_satellites=view.gpus_in_satellites,
            elastic_jobs=len(view.jobs),
            leaders=view.leaders,
            slow_gpus=tuple(gpu for gpu in self._slow_gpus.known if gpu.until_at > now),
            loans=view.loans,
            aggregation=view.aggregation,
            unknown_satellites=len(view.unknown),
            satellite_partitions=self._satellite_partitions(),
            needs_restart=unheeded.needs_restart,
            sharing_partition=self._settings.sharing.partition,
        )

    def _satellite_partitions(self) -> tuple[str, ...]:
        own = self._traits.satellite_partition if self._traits else ""
        lent = self._loans.satellite_partition if self._loans else ""
        return tuple(filter(None, (own, lent)))

    def loans(self) -> LoansView | None:
        """The state of lending; None: no servers are ever lent."""
        with self._lock:
            return self._view.loans

    def view(self) -> View:
        """The view of the last cycle as a whole."""
        with self._lock:
            return self._view

    def jobs(self) -> tuple[JobView, ...]:
        """All elastic jobs whose base runs."""
        with self._lock:
            return self._view.jobs

    def explain(self, job_id: int) -> tuple[str, ...]:
        """Explain in sentences why the job has its present workers. Raises UnknownJob."""
        with self._lock:
            view, trouble = self._view, self._trouble
        sentences = explain(job_id, view)
        if self._settings.controller.dry_run:
            sentences = (*sentences, "flexod only decides and records (dry run); it changes nothing")
        return (trouble, *sentences) if trouble else sentences

    def headline(self, job_id: int) -> Headline:
        """The size of a job that runs or is pending, and the reason for it, in a few words."""
        with self._lock:
            return headline(job_id, self._view)

    def scale(self, key: JobKey, workers: int | None, by: str = "") -> str:
        """Set the owner's cap on the job's workers; None: remove it. Returns what happens now.

        `by`: who asked for it, and where, for the event. The caller checks who may do this. Raises
        UnknownJob, BadScale.
        """
        stands = self._overrides.cap_of(key) == (None if workers is None else Cap(workers))
        text = self._overrides.scale(self._running(key).job, workers, by)
        if stands:  # a repeated request is one event
            return text
        done = f"scaled to {workers}" if workers else "cap removed"
        return self._scaled(key, text, by, done)

    def scale_out(self, key: JobKey, workers: int, nodes: Sequence[str] = (), by: str = "") -> str:
        """Amoeba's scaleOut: give the job this number of workers more. Returns what happens now.

        The policy chooses where the workers run, among `nodes` if there are any, and when, if nothing is idle
        now. The caller checks who may do this. Raises UnknownJob, BadScale, Busy, NotSteered.
        """
        view, found = self._running(key), self._nodes_named(nodes)
        return self._scaled(key, self._overrides.scale_out(view, workers, found, by), by)

    def _nodes_named(self, names: Sequence[str]) -> tuple[Node, ...]:
        """The nodes of these names at the last poll. Raises BadScale."""
        state = self.observation
        known = {node.name: node for node in state.nodes} if state and names else {}
        if missing := [name for name in names if name not in known]:
            raise BadScale(f"the cluster has no node '{missing[0]}'")
        return tuple(known[name] for name in dict.fromkeys(names))

    def scale_in(self, key: JobKey, workers: int, nodes: Sequence[str] = (), by: str = "") -> str:
        """Amoeba's scaleIn: take this number of workers from the job, or its satellites on `nodes`.

        The job gets no new workers in their place until it is scaled out again, or its cap is removed
        (`scale` with None). The caller checks who may do this. Raises UnknownJob, BadScale, Busy, NotSteered.
        """
        text = self._overrides.scale_in(self._running(key), workers, nodes, by)
        return self._scaled(key, text, by)

    def reconfigure(self, settings: Settings, news: str, unheeded: Unheeded) -> None:
        """Use `settings` from the next cycle on. Only the section [controller] may differ from the settings
        before.

        `news`: the result of reading the configuration, for the event store. `unheeded`: for the status.
        """
        with self._lock:
            self._next, self._unheeded = settings, unheeded
        self._record((Event(self._clock(), "daemon", None, news),))
        self._leaders.wake.set()

    def profiled(self, key: JobKey, points: tuple[ScalingPoint, ...]) -> None:
        """Keep the measurements of a profile that has ended, for people and policies, and record it."""
        try:
            job = self._running(key).job
        except UnknownJob:  # it has ended meanwhile
            return
        now = self._clock()
        text = profile(self._profiles.take(job, points, now))
        self._record((Event(now, "profile", key, text),))

    def note(self, kind: str, key: JobKey, text: str) -> None:
        """Record an operation of a job that somebody asked for."""
        self._record((Event(self._clock(), kind, key, text),))

    def trials_of(self, script: ScriptKey) -> TrialOrder:
        """Whether a job of this script is to try several batches."""
        wanted = self._policy.tries_batches and self._all_reduce is not None
        return TrialOrder(wanted, self._batch_trials.known_weights(script) if wanted else 0)

    def resizable(self, key: JobKey) -> ElasticJob:
        """The job, if it may be resized now. Raises UnknownJob, Busy, NotSteered."""
        view = self._running(key)
        self._overrides.check_resizable(view)
        return view.job

    def _running(self, key: JobKey) -> JobView:
        with self._lock:
            return self._view.running(key)

    def _scaled(self, key: JobKey, text: str, by: str, done: str = "asked") -> str:
        """Record that a job was scaled, and by whom, and begin the next cycle. Returns `text`."""
        told = f"{text}: {done} by {by}" if by else text
        self._record((Event(self._clock(), "scale", key, told),))
        self._leaders.wake.set()
        return text

    # One cycle of the loop.

    def cycle(self) -> None:
        """Run one cycle: poll, decide, act and record. Never raises: errors become the status's `trouble`."""
        begun, outcome = time.monotonic(), DONE
        self._watch.cycle_began()
        try:
            self.turn()
        except MayNotAct as error:
            outcome = UNREACHABLE
            self._be_in_trouble(str(error))
        except ClusterUnreachable as error:
            outcome = UNREACHABLE
            self._be_in_trouble(f"{self._cluster.software} does not answer: {error}")
        except PlanningFailed as error:
            outcome = MISTAKE
            self._be_in_trouble(str(error), mistake=True)
        except Exception as error:  # an error of flexod must not end the extension of time limits
            outcome = MISTAKE
            self._be_in_trouble(f"flexod made a mistake: {type(error).__name__}: {error}", mistake=True)
        else:
            self._be_well()
        self._watch.cycle_ended(outcome, time.monotonic() - begun)

    def _be_in_trouble(self, trouble: str, *, mistake: bool = False) -> None:
        """Show and record an error or condition.

        `mistake`: an error of flexod itself, which is being handled. Its text may differ each time.
        """
        self._poll_interval.cycle_failed()
        with self._lock:
            self._trouble = trouble
            self._traits = None
        now = self._clock()
        if trouble == self._told or (mistake and abs(now - self._mistake_told_at) < _MISTAKES_APART_S):
            return
        self._told = trouble
        if mistake:
            self._mistake_told_at = now
            _log.exception("the cycle failed")
        self._record((Event(now, "trouble", None, trouble),))

    def _be_well(self) -> None:
        self._poll_interval.cycle_succeeded()
        with self._lock:
            self._trouble = ""
        told, self._told = self._told, ""
        if told:
            self._record((Event(self._clock(), "trouble", None, "all is well again"),))

    @property
    def again_at(self) -> float | None:
        """The time at which the policy asks for another cycle although nothing has happened, on a cluster
        that allocates."""
        return self._again_at

    def turn(self) -> None:
        """Run one cycle, and raise every error."""
        self._catch_up()
        traits = self._traits
        if traits is None:
            traits = self._cluster.traits()
            with self._lock:
                self._traits = traits
        if self._allocates is not None:
            self._allocate(self._allocates)
        else:
            self._grant(traits)

    def _catch_up(self) -> None:
        """Apply new settings, and handle a clock that was set."""
        with self._lock:
            settings, self._next = self._next, None
        if settings is not None:
            self._time_limits.forget()
            self._begin(settings)
        self._clock_was_set()

    def _clock_was_set(self) -> bool:
        """Check whether the clock was set since the last check; if so, forget all temporary state.

        This is the only place that checks it. Returns whether the clock was set.
        """
        jump = self._clock_watch.jump()
        if not jump:
            return False
        text = f"the clock was set {'forward' if jump > 0 else 'back'} by {abs(jump):.0f} s"
        text += ": what counts for a while only is forgotten, as after a restart"
        self._record((Event(self._clock(), "daemon", None, text),))
        self._time_limits.forget()
        self._begin(self._settings)
        if self._loans is not None:
            self._loans.clock_was_set(jump)
        return True

    def _snapshot(self, state: ClusterState, elastic: tuple[ElasticJob, ...]) -> Snapshot:
        return Snapshot(
            at=state.at,
            nodes=state.nodes,
            partitions=state.partitions,
            jobs=state.jobs,
            elastic=elastic,
            satellite_partition=self._traits.satellite_partition if self._traits else "",
            passed_over=self._starvation_guard.passed_over(state.at),
            slow_gpus=self._slow_gpus.known,
            training=state.training,
            quotas=state.quotas,
            decided_at=self._decided_at,
            ended_count=state.ended - self._ended_before,
            stay_s=self._residency.likely_s(state.at),
            loans=() if self._loans is None else self._loans.view.loans,
            borrowed_partition="" if self._loans is None else self._loans.satellite_partition,
        )

    @property
    def _loans_view(self) -> LoansView | None:
        return None if self._loans is None else self._loans.view

    def _decide(self, state: ClusterState) -> None:
        self._decided_at, self._ended_before = state.at, state.ended

    # For a cluster that starts, resizes and preempts jobs as flexod says.

    def _allocate(self, cluster: Allocates) -> None:
        """Give jobs the allocations that the policy decides.

        A simulation calls this at each of its events, so this method does no work for every job.
        """
        state = self._cluster.observe()
        if self._loans is not None:
            state, happened = self._loans.settle(state)
            self._record(tuple(happened))
        plan = allocating.plan(self._policy, self._snapshot(state, ()))
        self._again_at = plan.again_at
        with self._lock:
            self._view = View(state, notes=plan.notes, loans=self._loans_view)
        if not plan.allocations and not plan.drops:
            return
        dry_run = self._settings.controller.dry_run
        if not dry_run:
            cluster.allocate(plan.allocations, plan.drops)
            self._decide(state)
        if self._keeps:
            self._record(tuple(events.of_allocations(plan, state, "would be " if dry_run else "is ")))

    # For a cluster that starts jobs by itself, where jobs grow by satellites.

    def _grant(self, traits: ClusterTraits) -> None:
        """Let jobs grow by satellites, and reclaim satellites.

        The steps that keep running jobs alive come before the steps that may fail, so that an error of a
        policy does not end the extension of time limits.
        """
        acts = not self._settings.controller.dry_run
        # reports before the poll: a satellite that is reported and not shown by the poll has ended in between
        reports = {report.key: report for report in self._leaders.reports()}
        if acts:
            reports, placed = self._auto_placement.resolve(reports.values(), self._steady())
            self._record(tuple(events.of_placements(placed, self._clock())))
        self._take_failures()
        self._take_given_up()
        state = self._cluster.observe()
        if self._clock_was_set():  # the poll has a time from before that
            state = self._cluster.observe()
        self._record(self._unreadable.look(state.jobs, state.at))
        start_within_s = self._start_within_s(traits)
        reconciled = self._join(state, reports, start_within_s)
        state = without_tags(state, reconciled.unknown)
        self._job_owners.look(state.jobs, state.at)
        self._record(reconciled.events)
        if acts:
            self._record(tuple(self._time_limits.extend(state, reconciled.jobs, reports)))
        for ended in self._ended.look(state.jobs, reconciled.jobs, state.at):
            self._record((ended.event,), ended.facts)
        reconciled = self._take_from_suspended(state, reconciled)
        self._record(self._fair_shares.look(state.at))
        self._poll_interval.record_poll_cost(state.read_cost_s + self._fair_shares.cost_s)
        reconciled = self._lend(state, reconciled, reports)
        decided = self._decide_safely(state, reconciled, reports, traits)
        plan = decided.plan
        notes = (
            *self._suspended.notes(reconciled.jobs, state.at, traits.resume_command),
            *without_reasons_of(plan.notes, reconciled.jobs),
        )
        told = self._tell_reasons(state, decided.views, notes)
        with self._lock:
            self._view = View(
                *(state, decided.views, notes, len(reports), decided.order, self._loans_view),
                unknown=reconciled.unknown,
                aggregation=None if self._aggregation is None else self._aggregation.view,
                failures=self._failed_workers.often(state.at),
                told=told,
            )
        self._record(decided.told, events.facts(state, reconciled) if plan.actions else "")
        self._keep_grants()
        if acts:
            spared = replace(
                reconciled,
                orphans=self._unreadable.spared(reconciled.orphans),
                unknown=self._unreadable.spared(reconciled.unknown),
            )
            batches = {batch.job: batch.samples for batch in plan.batches}
            self._tell(decided.jobs, state, reports, start_within_s, batches)
            self._record(tuple(self._orphans.cancel(spared, self._grant_ledger.running, state.at)))
            self._record(tuple(self._suspended.cancel(state.jobs, state.at)))
            self._record(tuple(self._shared_gpus.release(state, decided.jobs)))
        if decided.order:
            self._record(tuple(self._priorities.follow(decided.order, state.jobs, state.at)))
        if acts:
            self._aggregate(state, decided.jobs, reports)
        if decided.error is not None:
            what = f"{type(decided.error).__name__}: {decided.error}"
            text = f"policy {self._policy.name} failed: {what}; grants stand, and no job grows or shrinks"
            raise PlanningFailed(text) from decided.error

    def _tell_reasons(
        self, state: ClusterState, views: tuple[JobView, ...], notes: Iterable[Note]
    ) -> ReasonEvents:
        """Record the reasons that are new."""
        if not self._keeps:
            return ReasonEvents()
        where = self._satellite_partitions()
        return ReasonEvents(
            self._reasons.look(state, views, notes, self._record),
            self._silences.look(views, state.at, self._record),
            self._idle_nodes.look(state.nodes, where, state.at, self._record),
        )

    def _aggregate(
        self, state: ClusterState, jobs: tuple[ElasticJob, ...], reports: Mapping[JobKey, LeaderReport]
    ) -> None:
        """Assign jobs to pool Aggregators."""
        if self._aggregation is None:
            return
        self._record(tuple(self._aggregation.cycle(state.at, jobs, reports, state.jobs)))
        with self._lock:
            self._view = replace(self._view, aggregation=self._aggregation.view)

    def _decide_safely(
        self,
        state: ClusterState,
        reconciled: ReconciledState,
        reports: Mapping[JobKey, LeaderReport],
        traits: ClusterTraits,
    ) -> _Decided:
        """The policy's decision. If anything there raises an error, grants stand as they are."""
        try:
            return self._decide_what(state, reconciled, reports, traits)
        except Exception as error:
            jobs = self._in_book(reconciled.jobs)
            nothing = Plan()
            views = job_views(jobs, state, self._snapshot(state, jobs), nothing, reports, {}, {}, {})
            return _Decided(jobs, views, nothing, error=error)

    def _decide_what(
        self,
        state: ClusterState,
        reconciled: ReconciledState,
        reports: Mapping[JobKey, LeaderReport],
        traits: ClusterTraits,
    ) -> _Decided:
        self._take_reports(reconciled, state.at)
        self._residency.see(reconciled.jobs, state.at, self._grant_ledger.given_back)
        self._seen_speeds.see(reports, {job.key for job in reconciled.jobs}, state.at)
        silent = self._silent.see(reports, {job.key for job in reconciled.jobs}, state.at)
        self._batch_trials.see(reconciled.jobs, reports, state.at)
        self._event_store.add_running_times(self._history.see(state.jobs, state.at))
        analyzed = self._analyzed(reconciled.jobs)
        snapshot = self._snapshot_of(state, reconciled, reports, analyzed)
        plan = not_more_than_start(
            self._plan_all(snapshot, state),
            reconciled.jobs,
            traits.starts,
            self._start_within_s(traits),
        )
        plan = self._startup_barrier.held_back(plan, reconciled.jobs, reports, state.at)
        order = self._order(snapshot)
        told = (
            *self._carry_out(plan, reconciled, state.at),
            *self._starvation_guard.give_up(_keys(plan.set_aside, state), self._patience_s(traits), state.at),
        )
        acts = bool(plan.actions) and not self._settings.controller.dry_run
        if acts:
            self._decide(state)
        jobs = self._in_book(reconciled.jobs) if acts else reconciled.jobs
        views = job_views(jobs, state, snapshot, plan, reports, self._profiles.known, analyzed, silent)
        return _Decided(jobs, views, plan, order, told)

    def _take_from_suspended(self, state: ClusterState, reconciled: ReconciledState) -> ReconciledState:
        """Reclaim the satellites of jobs that are suspended for too long. Returns the state after that."""
        self._suspended.look(reconciled.jobs, state.at)
        if self._settings.controller.dry_run:
            return reconciled
        taken = self._suspended.take_back(reconciled.jobs, self._grant_ledger, state.at)
        self._record(tuple(taken))
        return replace(reconciled, jobs=self._in_book(reconciled.jobs)) if taken else reconciled

    def _lend(
        self, state: ClusterState, reconciled: ReconciledState, reports: Mapping[JobKey, LeaderReport]
    ) -> ReconciledState:
        """Lend and reclaim servers. Returns the state without the grants that have to end for it."""
        if self._loans is None:
            return reconciled
        plan, happened = self._loans.decide(state, reconciled, reports)
        self._record(tuple(happened))
        if plan is None:
            return reconciled
        reconciled, happened = self._loans.carry_out(plan, state, reconciled, self._grant_ledger)
        self._record(tuple(happened))
        return reconciled

    def _take_failures(self) -> None:
        now = self._clock()
        failed = [self._grant_ledger.fail(failure, now) for failure in self._leaders.take_failures()]
        self._record(tuple(event for event in failed if event is not None))

    def _take_given_up(self) -> None:
        given_up = self._overrides.take_given_up()
        if not self._settings.controller.dry_run:
            for key, grants in given_up.items():
                for grant_id in grants:
                    self._grant_ledger.withdraw(key, grant_id, self._clock(), of_itself=True)

    def _take_reports(self, reconciled: ReconciledState, now: float) -> None:
        held = {view.job.key: nodes_of(view.job) for view in self._view.jobs}
        users = {view.job.key: view.job.user for view in self._view.jobs}
        for job in reconciled.jobs:
            held[job.key] = held.get(job.key, frozenset()) | nodes_of(job)
            users[job.key] = job.user
        self._record(tuple(self._slow_gpus.take(self._leaders.take_slow_gpus(), held, users, now)))
        self._record(tuple(self._failed_workers.take(self._leaders.take_failed_workers(), held, now)))

    def _start_within_s(self, traits: ClusterTraits) -> int:
        chosen = self._settings.controller.start_within_s
        if chosen is not None:
            return chosen
        return max(_LEAST_START_S, round(_START_TURNS * traits.starts.turn_s) + _START_EXTRA_S)

    def _patience_s(self, traits: ClusterTraits) -> float:
        """The time within which a pending job has to start if there is room for it."""
        return self._settings.controller.time_limit_s + _START_TURNS * traits.starts.turn_s

    def _join(
        self, state: ClusterState, reports: Mapping[JobKey, LeaderReport], start_within_s: int
    ) -> ReconciledState:
        rules = Rules(
            start_within_s,
            self._settings.controller.time_limit_s,
            partial(self._partition_of, state),
            {node.name: node.threads_per_core for node in state.nodes if node.threads_per_core > 1},
        )
        reconciled = self._grant_ledger.join(state.jobs, reports, self._overrides.caps(), rules, state.at)
        self._overrides.forget_old({job.key for job in state.jobs}, state.at)
        self._profiles.look(state.jobs, state.at)
        return reconciled

    def _keep_grants(self) -> None:
        """Write new grants to the event store before any leader hears of them: another flexod may begin at
        any instant."""
        kept, forgotten = self._grant_ledger.changes
        if not kept and not forgotten:
            return
        if self._event_store.set_grants(kept, forgotten):
            self._grant_ledger.written()

    def _partition_of(self, state: ClusterState, node: str) -> str:
        """The partition of a satellite on `node` that was granted before this flexod began."""
        own = self._traits.satellite_partition if self._traits else ""
        lent = self._loans and self._loans.satellite_partition
        nodes = {partition.name: partition.nodes for partition in state.partitions}
        return lent if lent and node in nodes.get(lent, ()) and node not in nodes.get(own, ()) else own

    def _snapshot_of(
        self,
        state: ClusterState,
        reconciled: ReconciledState,
        reports: Mapping[JobKey, LeaderReport],
        analyzed: Mapping[JobKey, Speed],
    ) -> Snapshot:
        """The snapshot with everything that is known of the jobs that train, or wait to."""
        within = guarantees(self._settings.controller.quotas, state.jobs)
        known = Known(
            self._history,
            self._seen_speeds.points(state.at) | self._profiles.known,
            reports,
            state.at,
            self._fair_shares.weights,
            within.jobs,
            analyzed,
        )
        training = self._training_jobs.of(state.jobs, reconciled.jobs, known)
        return replace(self._snapshot(state, reconciled.jobs), training=training, quotas=within.quotas)

    def _analyzed(self, jobs: Iterable[ElasticJob]) -> Mapping[JobKey, Speed]:
        """The speeds that the job scalability analyzer expects, if the policy goes by them; not those of jobs
        that were profiled."""
        if self._all_reduce is None or not self._policy.tries_batches:
            return {}
        profiled = self._profiles.known
        return self._batch_trials.speeds((job for job in jobs if job.key not in profiled), self._all_reduce)

    def _plan_all(self, snapshot: Snapshot, state: ClusterState) -> Plan:
        """The plan of the policy, of opportunistic jobs, and of Aggregators in satellites."""
        plan = self._share(self._plan_satellites(snapshot), snapshot, state)
        rules = self._settings.controller
        return with_aggregators(plan, snapshot, rules.min_resize_interval_s, rules.max_satellites)

    def _plan_satellites(self, snapshot: Snapshot) -> Plan:
        """The part of the policy's targets that satellites can reach now."""
        rules = self._settings.controller
        return satellites.plan(self._policy, snapshot, rules.min_resize_interval_s, rules.max_satellites)

    def _share(self, plan: Plan, snapshot: Snapshot, state: ClusterState) -> Plan:
        """The plan, with the satellites of opportunistic jobs."""
        running = {job.key: job for job in snapshot.elastic if job.opportunistic}
        if not running:
            return plan
        shown = (opportunist(job, running[job.key]) for job in state.jobs if job.key in running)
        waiting = tuple(sorted(shown, key=lambda job: (job.submitted_at, job.key)))
        controller = self._settings.controller
        rules = SharingRules(
            self._settings.sharing,
            self._shared_gpus.held(state, snapshot.elastic),
            self._policy.opportunistic_order(replace(Jobs.of(snapshot), training=waiting)),
            controller.min_resize_interval_s,
            controller.max_satellites,
        )
        return with_opportunists(plan, snapshot, rules)

    def _order(self, snapshot: Snapshot) -> tuple[JobKey, ...]:
        """Pending jobs in the policy's start order; () if the order is left to the cluster."""
        if self._settings.controller.order != "policy":
            return ()
        mine = in_training(snapshot)
        training = tuple(job for job in snapshot.training if job.key in mine)
        jobs = Jobs.of(replace(snapshot, training=training))
        return self._policy.pending_order(jobs, Placement(snapshot.nodes))

    def _carry_out(self, plan: Plan, reconciled: ReconciledState, now: float) -> list[Event]:
        """Note the changes of the plan in the grant book. Leaders are told afterwards. Returns the events."""
        if self._settings.controller.dry_run:
            fresh = [action for action in plan.actions if action not in self._dry_decided]
            self._dry_decided = frozenset(plan.actions)
            return [events.of_action(action, reconciled, now, "would ") for action in fresh]
        for action in plan.actions:
            if isinstance(action, Shrink):
                self._grant_ledger.withdraw(action.job, action.grant_id, now, of_itself=action.of_itself)
            else:
                grant_id = self._new_grant_id()
                self._grant_ledger.say(
                    Grant(
                        *(grant_id, action.job, action.node, action.workers, action.partition, now),
                        shared_gpus=action.shared_gpus,
                    )
                )
        return [events.of_action(action, reconciled, now, "") for action in plan.actions]

    def _in_book(self, jobs: Iterable[ElasticJob]) -> tuple[ElasticJob, ...]:
        """The jobs, with this cycle's changes of their grants."""
        return tuple(map(self._grant_ledger.after, jobs))

    def _tell(
        self,
        jobs: Iterable[ElasticJob],
        state: ClusterState,
        reports: Mapping[JobKey, LeaderReport],
        start_within_s: int,
        batches: Mapping[JobKey, int],
    ) -> None:
        time_limit_s = self._settings.controller.time_limit_s
        qos = self._traits.satellite_qos if self._traits else ""
        types, now = {node.name: node.gpu_type for node in state.nodes}, state.at
        gpus = GpuSpeeds(self._settings.controller.gpu_speeds)
        for job in jobs:
            if job.key in reports:
                offers = tuple(
                    GrantOffer(
                        grant.grant_id,
                        grant.node,
                        grant.workers,
                        grant.partition,
                        time_limit_s,
                        start_within_s,
                        qos,
                        self._grant_ledger.signature(job.key, grant.grant_id, time_limit_s, now),
                        grant.shared_gpus,
                    )
                    for grant in job.all_grants
                    if grant.state is not SatelliteState.LEAVING
                )
                speeds = node_speeds(job, types, gpus)
                self._leaders.tell(job.key, Orders(offers, batches.get(job.key, 0), speeds))

    @property
    def _keeps(self) -> bool:
        return self._event_store.keeps

    def _record(self, happened: tuple[Event, ...], facts: str = "") -> Sequence[int]:
        """Count, log and write events. Returns the numbers of their entries, if they could be written."""
        if not self._keeps:
            return ()
        self._watch.happened(happened)
        known = {node.name for node in self._view.state.nodes} if happened and self._view.state else set()
        for event in happened:
            log = _log.debug if event.kind == ROUTINE else _log.info
            nodes = sorted(names_in(event.text) & known)
            log(event.kind, job=str(event.job) if event.job else None, nodes=nodes, text=event.text)
        return self._event_store.record(self._clock(), happened, facts)


def _keys(job_ids: Iterable[int], state: ClusterState) -> list[JobKey]:
    """The keys of jobs in the queue."""
    wanted = frozenset(job_ids)
    return [job.key for job in state.jobs if job.job_id in wanted]


def without_tags(state: ClusterState, unknown: tuple[QueuedJob, ...]) -> ClusterState:
    """`state`, in which `unknown` are ordinary jobs: a tag alone makes no job a satellite."""
    if not unknown:
        return state
    plain = {job.job_id: replace(job, satellite=None) for job in unknown}
    return replace(state, jobs=tuple(plain.get(job.job_id, job) for job in state.jobs))


def _policy_of(settings: Settings) -> Policy:
    name, site = settings.controller.policy, dict[SiteFact, object]()
    site["gpu_speeds"] = settings.controller.gpu_speeds
    if settings.loaning.partition:
        site["borrowed_partition"] = settings.loaning.partition
    return registry.make(name, **registry.flexod_settings(name, site))
