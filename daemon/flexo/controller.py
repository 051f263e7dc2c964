"""Observe, decide, act, record: the only place where cluster, policy, leaders and journal meet.

One thread runs `Controller.run`; the service asks from its own threads. What they see are immutable
pictures of the last cycle, replaced as a whole under one lock. What is remembered from cycle to cycle, and
the words for people, are in `control`.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

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
from flexo.control.at_once import AtOnce
from flexo.control.clock_watch import ClockWatch
from flexo.control.ended import EndedJobs
from flexo.control.explanations import explain, profile
from flexo.control.fair_shares import FairShares
from flexo.control.job_views import job_views
from flexo.control.leaders import GrantOffer, Leaders, Orders
from flexo.control.leases import Leases
from flexo.control.loans import Loans
from flexo.control.logbook import Logbook
from flexo.control.node_speeds import node_speeds
from flexo.control.pace import Pace
from flexo.control.priorities import Priorities, in_training
from flexo.control.profiles import Profiles
from flexo.control.quotas import guarantees
from flexo.control.refusals import Refusals
from flexo.control.safeguards import Orphans, Patience, RollCall, not_more_than_start
from flexo.control.seen_speeds import SeenSpeeds
from flexo.control.slow_gpus import SlowGpus, nodes_of
from flexo.control.stays import Stays
from flexo.control.suspended import SuspendedBases, without_reasons_of
from flexo.control.unreadable import UnreadableJobs
from flexo.control.views import ControllerStatus, JobView, LoansView, UnknownJob, View
from flexo.control.watch import DONE, MISTAKE, UNREACHABLE, Unwatched, Watch
from flexo.control.wishes import Wishes
from flexo.events import ROUTINE, Event
from flexo.grant_signatures import GrantSigner
from flexo.grants import GrantBook, Rules, Sight
from flexo.loaning.lending import Lending
from flexo.model.elastic import ElasticJob, Grant, LeaderReport, SatelliteState
from flexo.model.measured import ScalingPoint
from flexo.model.nodes import Node
from flexo.model.plans import Action, Plan, Shrink, Snapshot
from flexo.model.queue import JobKey, QueuedJob
from flexo.policies import allocating, registry, satellites
from flexo.policies.base import Jobs, Policy, SiteFact
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo.policies.placement import Placement
from flexo.training_jobs import History, Known, TrainingJobs
from flexo.words import names_in
from flexo_protos.resources import total

_START_TURNS: Final = 2
_START_EXTRA_S: Final = 5
_LEAST_START_S: Final = 15
_MISTAKES_APART_S: Final = 60.0
"""Between two entries about flexod's own errors, which may come in every cycle."""
_UNENDED_S: Final = 86_400.0
"""After a start flexod asks how those jobs ended that were there so long ago, and are not any more."""
_NAP_S: Final = 1.0
"""The longest sleep at once, so that `stop` is heeded soon."""

_log = structlog.get_logger("flexo.controller")


def _random_grant_id() -> str:
    return f"g{secrets.token_hex(6)}"


class PlanningFailed(Exception):
    """The policy, or what prepares its input, raised an error; the message names both."""


@dataclass(frozen=True, slots=True)
class _Decided:
    """What one cycle decided, as the grant book has it."""

    jobs: tuple[ElasticJob, ...]
    views: tuple[JobView, ...]
    plan: Plan
    order: tuple[JobKey, ...] = ()
    told: tuple[Event, ...] = ()
    error: Exception | None = None
    """Why nothing was decided."""


class Controller:
    """The loop. `run` belongs to one thread; everything else may be called from any."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        leaders: Leaders,
        journal: Logbook,
        *,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
        lending: Lending | None = None,
        watch: Watch | None = None,
        new_grant_id: Callable[[], str] = _random_grant_id,
        beside: Executor | None = None,
        signer: GrantSigner | None = None,
    ) -> None:
        """`policy` None: the one that the settings name. `lending` None: no servers are lent.
        `watch` None: nobody counts what happens. `beside` does, one after another, what a cycle need not
        wait for; None: it waits.

        `steady`: a clock that nobody sets; None: `clock` is one. Grants' ids are never used twice, not even
        by the next flexod; a simulation counts. `signer` None: no other flexod knows this one's signatures.
        """
        now = clock()
        self._cluster = cluster
        self._leaders = leaders
        self._journal = journal
        self._clock = clock
        self._clock_watch = ClockWatch(clock, steady or clock)
        self._watch = Unwatched() if watch is None else watch
        self._new_grant_id = new_grant_id
        self._beside = AtOnce() if beside is None else beside
        self._given_policy = policy
        self._started_at = now
        self._refusals = Refusals(cluster.software)
        self._wishes = Wishes(journal, now)
        self._profiles = Profiles(journal, now)
        # changed by the loop's thread alone
        self._history = History(journal.running_times())
        self._training_jobs = TrainingJobs()
        self._signer = GrantSigner.of_this_process() if signer is None else signer
        self._book = GrantBook(self._signer, journal.grants(), now)
        self._begin(settings)
        self._loans = (
            None
            if lending is None
            else Loans(
                lending, cluster, leaders, journal, self._refusals, settings.loaning.checkpoint, self._watch
            )
        )
        self._dry_decided: frozenset[Action] = frozenset()
        self._decided_at = 0.0
        self._again_at: float | None = None
        self._ended_before = 0
        """Jobs that had ended by `decided_at`."""
        self._unreadable = UnreadableJobs()
        self._told = ""
        """The trouble that was last written down, if it is not over."""
        self._mistake_told_at = -math.inf
        self._ended = EndedJobs(cluster, self._beside, journal.unended(now - _UNENDED_S), leaders.wake.set)
        # of all threads, under the lock
        self._lock = threading.Lock()
        self._traits: ClusterTraits | None = None
        self._view = View(loans=self._loans_view)
        self._trouble = ""
        self._next: Settings | None = None
        self._unheeded = ""

    def _begin(self, settings: Settings) -> None:
        """Forget what counts for a while only, and go by `settings` from now on.

        Whatever is lost with it may be lost, because flexod may be started again at any instant.
        """
        controller, cluster = settings.controller, self._cluster
        self._settings = settings
        self._policy = _policy_of(settings) if self._given_policy is None else self._given_policy
        self._refusals.forget()
        self._book = GrantBook(self._signer, self._book.issued, self._clock())
        self._roll_call = RollCall()
        self._patience = Patience()
        self._stays = Stays()
        self._seen_speeds = SeenSpeeds()
        self._pace = Pace(controller)
        self._slow_gpus = SlowGpus(self._journal, controller.slow_gpu_s, self._clock())
        self._leases = Leases(cluster, self._refusals, controller.lease_s, self._clock(), self._beside)
        self._orphans = Orphans(cluster, self._refusals, controller.lease_s)
        self._suspended = SuspendedBases(cluster, self._refusals, controller.suspend_grace_s)
        self._fair_shares = FairShares(cluster, self._refusals, controller.fairshare_weight)
        self._priorities = Priorities(cluster, self._journal, self._refusals, dry_run=controller.dry_run)

    def run(self, stop: threading.Event) -> None:
        """Go round until `stop` is set. Survives an unreachable cluster and a full disk."""
        self._record((Event(self._clock(), "daemon", None, "flexod begins"),))
        while not stop.is_set():
            begun = time.monotonic()
            self._leaders.wake.clear()
            self.cycle()
            self._rest(begun, stop)
        self._record((Event(self._clock(), "daemon", None, "flexod ends; grants stand"),))

    def _rest(self, begun: float, stop: threading.Event) -> None:
        """Wait for the next turn; a leader's news shortens it, but never below what reading allows."""
        earliest, latest = begun + self._pace.least_s, begun + self.interval_s
        while not stop.is_set() and (left := latest - time.monotonic()) > 0:
            if time.monotonic() < earliest:
                stop.wait(min(_NAP_S, earliest - time.monotonic()))
            elif self._leaders.wake.wait(min(_NAP_S, left)):
                return

    @property
    def interval_s(self) -> float:
        """From one look at the cluster to the next, as things are."""
        view, loans = self._view, self._view.loans
        busy = bool(view.jobs or view.order) or self._ended.waits
        if loans is None:
            return self._pace.interval_s(busy=busy)
        interval_s = self._pace.interval_s(busy=busy or bool(loans.coming_back))
        return max(self._pace.least_s, min(interval_s, loans.settings.rules.interval_s))

    # What others ask.

    @property
    def observation(self) -> ClusterState | None:
        """The newest look at the cluster; None before the first."""
        with self._lock:
            return self._view.state

    def status(self) -> ControllerStatus:
        """The state of the loop and the cluster as last seen."""
        now = self._clock()
        with self._lock:
            view, traits = self._view, self._traits
            trouble = (self._trouble, self._unheeded)
        state = view.state
        nodes: tuple[Node, ...] = state.nodes if state else ()
        lending = view.loans.reading.trouble if view.loans else ""
        shown = self._refusals.recent(now), self._journal.trouble
        return ControllerStatus(
            started_at=self._started_at,
            cluster=traits.name if traits else "",
            version=traits.version if traits else "",
            policy=self._policy.name,
            dry_run=self._settings.controller.dry_run,
            interval_s=self.interval_s,
            last_cycle_at=state.at if state else 0.0,
            read_cost_s=state.read_cost_s if state else 0.0,
            trouble="; ".join(
                filter(None, (*trouble, self._unreadable.trouble, self._signer.trouble, lending, *shown))
            ),
            nodes=len(nodes),
            gpus=total(node.gpus for node in nodes),
            gpus_idle=total(node.gpus_idle for node in nodes),
            gpus_in_satellites=view.gpus_in_satellites,
            elastic_jobs=len(view.jobs),
            leaders=view.leaders,
            slow_gpus=tuple(gpu for gpu in self._slow_gpus.known if gpu.until_at > now),
            loans=view.loans,
            unknown_satellites=len(view.unknown),
        )

    def loans(self) -> LoansView | None:
        """The servers on loan; None: none is ever lent."""
        with self._lock:
            return self._view.loans

    def view(self) -> View:
        """The last cycle as a whole."""
        with self._lock:
            return self._view

    def jobs(self) -> tuple[JobView, ...]:
        """All elastic jobs whose base runs."""
        with self._lock:
            return self._view.jobs

    def explain(self, job_id: int) -> tuple[str, ...]:
        """Why the job has what it has, in sentences. Raises UnknownJob."""
        with self._lock:
            view, trouble = self._view, self._trouble
        sentences = explain(job_id, view)
        if self._settings.controller.dry_run:
            sentences = (*sentences, "flexod only decides and records (dry run); it changes nothing")
        return (trouble, *sentences) if trouble else sentences

    def scale(self, key: JobKey, workers: int | None) -> str:
        """The owner's cap on the job's workers; None: back to automatic. Returns what happens now.

        Who may do this is for the caller to check. Raises UnknownJob, BadScale.
        """
        stands = self._wishes.cap_of(key) == workers
        text = self._wishes.scale(self._running(key).job, workers)
        return text if stands else self._scaled(key, text)  # said again and again, it is one event

    def scale_out(self, key: JobKey, workers: int) -> str:
        """Amoeba's scaleOut: so many workers more than the job has. Returns what happens now.

        Where they run is the policy's choice, and when, if nothing is idle now. Who may do this is for the
        caller to check. Raises UnknownJob, BadScale, Busy, NotSteered.
        """
        return self._scaled(key, self._wishes.scale_out(self._running(key), workers))

    def scale_in(self, key: JobKey, workers: int, node: str = "") -> str:
        """Amoeba's scaleIn: so many workers fewer than the job has, or its satellite on `node`.

        It gets nothing new in their place until it is scaled out again, or automatically (`scale` with
        None). Who may do this is for the caller to check. Raises UnknownJob, BadScale, Busy, NotSteered.
        """
        return self._scaled(key, self._wishes.scale_in(self._running(key), workers, node))

    def reconfigure(self, settings: Settings, news: str, unheeded: str) -> None:
        """Go by `settings` from the next cycle on; all but [controller] must be as it was.

        `news`: what has become of the configuration, for the journal. `unheeded`: what of it is not gone by,
        and why, for the status; "": nothing.
        """
        with self._lock:
            self._next, self._unheeded = settings, unheeded
        self._record((Event(self._clock(), "daemon", None, news),))
        self._leaders.wake.set()

    def profiled(self, key: JobKey, points: tuple[ScalingPoint, ...]) -> None:
        """A profile has ended; what it measured is kept for people and policies."""
        try:
            job = self._running(key).job
        except UnknownJob:  # it has ended meanwhile
            return
        now = self._clock()
        text = profile(self._profiles.take(job, points, now))
        self._record((Event(now, "profile", key, text),))

    def note(self, kind: str, key: JobKey, text: str) -> None:
        """Write down what somebody has had a job do."""
        self._record((Event(self._clock(), kind, key, text),))

    def resizable(self, key: JobKey) -> ElasticJob:
        """The job, if it may be resized now. Raises UnknownJob, Busy, NotSteered."""
        view = self._running(key)
        self._wishes.check_resizable(view)
        return view.job

    def _running(self, key: JobKey) -> JobView:
        with self._lock:
            return self._view.running(key)

    def _scaled(self, key: JobKey, text: str) -> str:
        self._record((Event(self._clock(), "scale", key, text),))
        self._leaders.wake.set()
        return text

    # One turn of the loop.

    def cycle(self) -> None:
        """Look once, decide, act and record. Never raises: what goes wrong is the status's `trouble`."""
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
        except Exception as error:  # a mistake of ours must not end what keeps leases alive
            outcome = MISTAKE
            self._be_in_trouble(f"flexod made a mistake: {type(error).__name__}: {error}", mistake=True)
        else:
            self._be_well()
        self._watch.cycle_ended(outcome, time.monotonic() - begun)

    def _be_in_trouble(self, trouble: str, *, mistake: bool = False) -> None:
        """`mistake`: an error of flexod itself, which is being handled: it may read differently each time."""
        self._pace.failed()
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
        self._pace.succeeded()
        with self._lock:
            self._trouble = ""
        told, self._told = self._told, ""
        if told:
            self._record((Event(self._clock(), "trouble", None, "all is well again"),))

    @property
    def again_at(self) -> float | None:
        """When the policy wants to be asked although nothing has happened, on a cluster that allocates."""
        return self._again_at

    def turn(self) -> None:
        """One cycle, in which whatever goes wrong is raised."""
        self._catch_up()
        traits = self._traits
        if traits is None:
            traits = self._cluster.traits()
            with self._lock:
                self._traits = traits
        if isinstance(self._cluster, Allocates):
            self._allocate(self._cluster)
        else:
            self._grant(traits)

    def _catch_up(self) -> None:
        """Take over settings that are new, and a clock that was set."""
        with self._lock:
            settings, self._next = self._next, None
        if settings is not None:
            self._leases.forget()
            self._begin(settings)
        self._clock_was_set()

    def _clock_was_set(self) -> bool:
        """Whether somebody has set the clock since this was last asked. Here alone that is noticed."""
        jump = self._clock_watch.jump()
        if not jump:
            return False
        text = f"the clock was set {'forward' if jump > 0 else 'back'} by {abs(jump):.0f} s"
        text += ": what counts for a while only is forgotten, as after a restart"
        self._record((Event(self._clock(), "daemon", None, text),))
        self._leases.forget()
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
            passed_over=self._patience.passed_over(state.at),
            slow_gpus=self._slow_gpus.known,
            training=state.training,
            quotas=state.quotas,
            decided_at=self._decided_at,
            ended_since=state.ended - self._ended_before,
            stay_s=self._stays.likely_s(state.at),
            loans=() if self._loans is None else self._loans.view.loans,
            borrowed_partition="" if self._loans is None else self._loans.satellite_partition,
        )

    @property
    def _loans_view(self) -> LoansView | None:
        return None if self._loans is None else self._loans.view

    def _decide(self, state: ClusterState) -> None:
        self._decided_at, self._ended_before = state.at, state.ended

    # On a cluster that starts, resizes and preempts jobs itself.

    def _allocate(self, cluster: Allocates) -> None:
        """Give jobs what the policy wants them to have.

        A simulation comes here at each of its events: nothing is done for every job.
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
        if self._journal.keeps:
            self._record(tuple(events.of_allocations(plan, state, "would be " if dry_run else "is ")))

    # On a cluster that starts jobs as it likes, where they grow by satellites.

    def _grant(self, traits: ClusterTraits) -> None:
        """Let jobs grow by satellites, and take those back.

        First what keeps running jobs alive, then what may fail: a policy's error ends no time limit.
        """
        # leaders first: what they report and the cluster then does not show has ended in between
        reports = {report.key: report for report in self._leaders.reports()}
        self._take_failures()
        self._take_given_up()
        state = self._cluster.observe()
        if self._clock_was_set():  # the look's time is of before that
            state = self._cluster.observe()
        self._record(self._unreadable.look(state.jobs, state.at))
        start_within_s = self._start_within_s(traits)
        sight = self._join(state, reports, start_within_s)
        state = without_tags(state, sight.unknown)
        acts = not self._settings.controller.dry_run
        self._record(sight.events)
        if acts:
            self._record(tuple(self._leases.extend(state, sight.jobs, reports)))
        for ended in self._ended.look(state.jobs, sight.jobs, state.at):
            self._record((ended.event,), ended.facts)
        sight = self._take_from_suspended(state, sight)
        self._record(self._fair_shares.look(state.at))
        self._pace.looked(state.read_cost_s + self._fair_shares.cost_s)
        sight = self._lend(state, sight, reports)
        decided = self._decide_safely(state, sight, reports, traits)
        plan = decided.plan
        notes = (
            *self._suspended.notes(sight.jobs, state.at, traits.resume_command),
            *without_reasons_of(plan.notes, sight.jobs),
        )
        with self._lock:
            self._view = View(
                *(state, decided.views, notes, len(reports), decided.order, self._loans_view),
                unknown=sight.unknown,
            )
        self._record(decided.told, events.facts(state, sight) if plan.actions else "")
        self._keep_grants()
        if acts:
            spared = replace(
                sight,
                orphans=self._unreadable.spared(sight.orphans),
                unknown=self._unreadable.spared(sight.unknown),
            )
            batches = {batch.job: batch.samples for batch in plan.batches}
            self._tell(decided.jobs, state, reports, start_within_s, batches)
            self._record(tuple(self._orphans.cancel(spared, self._book.running, state.at)))
            self._record(tuple(self._suspended.cancel(state.jobs, state.at)))
        if decided.order:
            self._record(tuple(self._priorities.follow(decided.order, state.jobs, state.at)))
        if decided.error is not None:
            what = f"{type(decided.error).__name__}: {decided.error}"
            text = f"policy {self._policy.name} failed: {what}; grants stand, and no job grows or shrinks"
            raise PlanningFailed(text) from decided.error

    def _decide_safely(
        self,
        state: ClusterState,
        sight: Sight,
        reports: Mapping[JobKey, LeaderReport],
        traits: ClusterTraits,
    ) -> _Decided:
        """What the policy makes of it. If anything there raises an error, grants stand as they are."""
        try:
            return self._decide_what(state, sight, reports, traits)
        except Exception as error:
            jobs = self._in_book(sight.jobs)
            nothing = Plan()
            views = job_views(jobs, state, self._snapshot(state, jobs), nothing, reports, {})
            return _Decided(jobs, views, nothing, error=error)

    def _decide_what(
        self,
        state: ClusterState,
        sight: Sight,
        reports: Mapping[JobKey, LeaderReport],
        traits: ClusterTraits,
    ) -> _Decided:
        self._take_slow_gpus(sight, state.at)
        self._stays.see(sight.jobs, state.at, self._book.given_back)
        self._seen_speeds.see(reports, {job.key for job in sight.jobs}, state.at)
        self._journal.add_running_times(self._history.see(state.jobs, state.at))
        snapshot = self._snapshot_of(state, sight, reports)
        plan = not_more_than_start(
            self._plan_satellites(snapshot), sight.jobs, traits.starts, self._start_within_s(traits)
        )
        plan = self._roll_call.held_back(plan, sight.jobs, reports, state.at)
        order = self._order(snapshot)
        told = (
            *self._carry_out(plan, sight, state.at),
            *self._patience.give_up(plan.set_aside, self._patience_s(traits), state.at),
        )
        acts = bool(plan.actions) and not self._settings.controller.dry_run
        if acts:
            self._decide(state)
        jobs = self._in_book(sight.jobs) if acts else sight.jobs
        views = job_views(jobs, state, snapshot, plan, reports, self._profiles.known)
        return _Decided(jobs, views, plan, order, told)

    def _take_from_suspended(self, state: ClusterState, sight: Sight) -> Sight:
        """Have suspended jobs give back their satellites in time; what is seen without those."""
        self._suspended.look(sight.jobs, state.at)
        if self._settings.controller.dry_run:
            return sight
        taken = self._suspended.take_back(sight.jobs, self._book, state.at)
        self._record(tuple(taken))
        return replace(sight, jobs=self._in_book(sight.jobs)) if taken else sight

    def _lend(self, state: ClusterState, sight: Sight, reports: Mapping[JobKey, LeaderReport]) -> Sight:
        """Have servers lent and come back; what is seen without those who have to leave for it."""
        if self._loans is None:
            return sight
        plan, happened = self._loans.decide(state, sight, reports)
        self._record(tuple(happened))
        if plan is None:
            return sight
        sight, happened = self._loans.carry_out(plan, state, sight, self._book)
        self._record(tuple(happened))
        return sight

    def _take_failures(self) -> None:
        now = self._clock()
        failed = [self._book.fail(failure, now) for failure in self._leaders.take_failures()]
        self._record(tuple(event for event in failed if event is not None))

    def _take_given_up(self) -> None:
        given_up = self._wishes.take_given_up()
        if not self._settings.controller.dry_run:
            for key, grant_id in given_up.items():
                self._book.withdraw(key, grant_id, self._clock(), of_itself=True)

    def _take_slow_gpus(self, sight: Sight, now: float) -> None:
        held = {view.job.key: nodes_of(view.job) for view in self._view.jobs}
        users = {view.job.key: view.job.user for view in self._view.jobs}
        for job in sight.jobs:
            held[job.key] = held.get(job.key, frozenset()) | nodes_of(job)
            users[job.key] = job.user
        self._record(tuple(self._slow_gpus.take(self._leaders.take_slow_gpus(), held, users, now)))

    def _start_within_s(self, traits: ClusterTraits) -> int:
        chosen = self._settings.controller.start_within_s
        if chosen is not None:
            return chosen
        return max(_LEAST_START_S, round(_START_TURNS * traits.starts.turn_s) + _START_EXTRA_S)

    def _patience_s(self, traits: ClusterTraits) -> float:
        """How long a pending job may take to start where there is room for it."""
        return self._settings.controller.lease_s + _START_TURNS * traits.starts.turn_s

    def _join(
        self, state: ClusterState, reports: Mapping[JobKey, LeaderReport], start_within_s: int
    ) -> Sight:
        rules = Rules(
            start_within_s,
            self._settings.controller.lease_s,
            partial(self._partition_of, state),
            {node.name: node.threads_per_core for node in state.nodes if node.threads_per_core > 1},
        )
        sight = self._book.join(state.jobs, reports, self._wishes.caps(), rules, state.at)
        self._wishes.forget_old({job.key for job in state.jobs}, state.at)
        self._profiles.look(state.jobs, state.at)
        return sight

    def _keep_grants(self) -> None:
        """In the journal before any leader hears of them: another flexod may begin at any instant."""
        kept, forgotten = self._book.changes
        if not kept and not forgotten:
            return
        if self._journal.set_grants(kept, forgotten):
            self._book.written()

    def _partition_of(self, state: ClusterState, node: str) -> str:
        """Where a satellite on `node` is submitted that was granted before this flexod began."""
        own = self._traits.satellite_partition if self._traits else ""
        lent = self._loans and self._loans.satellite_partition
        nodes = {partition.name: partition.nodes for partition in state.partitions}
        return lent if lent and node in nodes.get(lent, ()) and node not in nodes.get(own, ()) else own

    def _snapshot_of(
        self, state: ClusterState, sight: Sight, reports: Mapping[JobKey, LeaderReport]
    ) -> Snapshot:
        """With what is known of all jobs that train, or wait to."""
        within = guarantees(self._settings.controller.quotas, state.jobs)
        known = Known(
            self._history,
            self._seen_speeds.points(state.at) | self._profiles.known,
            reports,
            state.at,
            self._fair_shares.weights,
            within.jobs,
        )
        training = self._training_jobs.of(state.jobs, sight.jobs, known)
        return replace(self._snapshot(state, sight.jobs), training=training, quotas=within.quotas)

    def _plan_satellites(self, snapshot: Snapshot) -> Plan:
        """The part of the policy's targets that satellites can reach now."""
        rules = self._settings.controller
        return satellites.plan(self._policy, snapshot, rules.min_resize_interval_s, rules.max_satellites)

    def _order(self, snapshot: Snapshot) -> tuple[JobKey, ...]:
        """Pending jobs as the policy wants them to start; () where that is left to the cluster."""
        if self._settings.controller.order != "policy":
            return ()
        mine = in_training(snapshot)
        training = tuple(job for job in snapshot.training if job.key in mine)
        jobs = Jobs.of(replace(snapshot, training=training))
        return self._policy.pending_order(jobs, Placement(snapshot.nodes))

    def _carry_out(self, plan: Plan, sight: Sight, now: float) -> list[Event]:
        """Note in the book what the plan changes; leaders are told afterwards."""
        if self._settings.controller.dry_run:
            fresh = [action for action in plan.actions if action not in self._dry_decided]
            self._dry_decided = frozenset(plan.actions)
            return [events.of_action(action, sight, now, "would ") for action in fresh]
        for action in plan.actions:
            if isinstance(action, Shrink):
                self._book.withdraw(action.job, action.grant_id, now, of_itself=action.of_itself)
            else:
                grant_id = self._new_grant_id()
                self._book.say(
                    Grant(grant_id, action.job, action.node, action.workers, action.partition, now)
                )
        return [events.of_action(action, sight, now, "") for action in plan.actions]

    def _in_book(self, jobs: Iterable[ElasticJob]) -> tuple[ElasticJob, ...]:
        """The jobs with what this cycle has changed of their grants."""
        return tuple(replace(job, grants=self._book.after(job)) for job in jobs)

    def _tell(
        self,
        jobs: Iterable[ElasticJob],
        state: ClusterState,
        reports: Mapping[JobKey, LeaderReport],
        start_within_s: int,
        batches: Mapping[JobKey, int],
    ) -> None:
        lease_s = self._settings.controller.lease_s
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
                        lease_s,
                        start_within_s,
                        qos,
                        self._book.signature(job.key, grant.grant_id, lease_s, now),
                    )
                    for grant in job.grants
                    if grant.state is not SatelliteState.LEAVING
                )
                speeds = node_speeds(job, types, gpus)
                self._leaders.tell(job.key, Orders(offers, batches.get(job.key, 0), speeds))

    def _record(self, happened: tuple[Event, ...], facts: str = "") -> None:
        if not self._journal.keeps:
            return
        self._watch.happened(happened)
        known = {node.name for node in self._view.state.nodes} if happened and self._view.state else set()
        for event in happened:
            log = _log.debug if event.kind == ROUTINE else _log.info
            nodes = sorted(names_in(event.text) & known)
            log(event.kind, job=str(event.job) if event.job else None, nodes=nodes, text=event.text)
        self._journal.record(self._clock(), happened, facts)


def without_tags(state: ClusterState, unknown: tuple[QueuedJob, ...]) -> ClusterState:
    """`state`, in which `unknown` are ordinary jobs: nobody becomes a satellite by a tag alone."""
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
