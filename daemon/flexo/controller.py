"""Observe, decide, act, record: the only place where cluster, policy, leaders and journal meet.

One thread runs `Controller.run`; the service asks from its own threads. What they see are immutable
pictures of the last cycle, replaced as a whole under one lock.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from flexo.clusters.base import ActionRefused, Cluster, ClusterState, ClusterTraits, ClusterUnreachable
from flexo.config import ControllerSettings, Settings
from flexo.grants import GrantBook, Sight
from flexo.journal import Event
from flexo.model import (
    Action,
    Allocate,
    ElasticJob,
    Grant,
    GrantFailure,
    Grow,
    JobKey,
    JobState,
    LeaderReport,
    Node,
    Note,
    Plan,
    RunningTime,
    SatelliteState,
    ScalingPoint,
    Shrink,
    SlowGpu,
    SlowGpuReport,
    SlurmJob,
    Snapshot,
    TrainingJob,
)
from flexo.policies import registry, satellites
from flexo.policies.base import Policy
from flexo.policies.greedy import Greedy
from flexo.policies.sizing import sizing_by
from flexo.training_jobs import History, Known, training_jobs

_START_CYCLES: Final = 2
_START_EXTRA_S: Final = 5
_LEAST_START_S: Final = 15
_READS_AVERAGED: Final = 5
_ORPHAN_RETRY_S: Final = 30.0
"""Between two tries to cancel the same satellite, and to extend the same lease."""
_PASS_OVER_S: Final = 1800.0
_MOST_DOUBLINGS: Final = 16
_REFUSAL_SHOWN_S: Final = 120.0
_CAP_OUTLIVES_JOB_S: Final = 600.0
"""A job that one look does not show may be there in the next, as when slurmctld restarts."""
_NAP_S: Final = 1.0
"""The longest sleep at once, so that `stop` is heeded soon."""
_FACTS_OF_PENDING: Final = 50
_TRAINING: Final = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING})

_log = structlog.get_logger("flexo.controller")


@dataclass(frozen=True, slots=True)
class GrantOffer:
    """A grant as its leader is told it."""

    grant_id: str
    node: str
    workers: int
    partition: str
    lease_s: int
    """The time limit to submit the satellite with."""
    start_within_s: int
    """A satellite that Slurm has not started by then is cancelled by its leader, and the grant returned."""


@dataclass(frozen=True, slots=True)
class Orders:
    """All that a leader is told of what its job may have."""

    grants: tuple[GrantOffer, ...]
    """All that stand."""
    batch: int = 0
    """The aggregate batch from the next generation on; 0: as the script says."""


class Leaders(Protocol):
    """What the controller needs of the service: the leaders' last words, and a way to answer them.

    All of it may be called from the controller's thread and never blocks.
    """

    @property
    def wake(self) -> threading.Event:
        """Set by the service when a leader attached, reported a change, failed a grant or left.

        The loop then looks soon, but never sooner than the cost of reading allows.
        """
        ...

    def reports(self) -> tuple[LeaderReport, ...]:
        """The last report of each leader that is attached now."""
        ...

    def take_failures(self) -> tuple[GrantFailure, ...]:
        """The grants given back since this was last asked."""
        ...

    def take_slow_gpus(self) -> tuple[SlowGpuReport, ...]:
        """The GPUs that leaders have found slow since this was last asked."""
        ...

    def tell(self, key: JobKey, orders: Orders) -> None:
        """What `key` may have now. Called every cycle for each attached leader, changed or not.

        A leader must hear no orders before the first call for it since it attached: until then flexod
        may not know yet which satellites the job has, and an empty list would send them away. A leader
        that has gone meanwhile is no error.
        """
        ...


class Logbook(Protocol):
    """What the controller needs of a journal. None of it raises."""

    @property
    def keeps(self) -> bool:
        """Whether anybody will read what is recorded; if not, no words are made for it."""
        ...

    @property
    def trouble(self) -> str:
        """Why entries are not written at present; "" when they are."""
        ...

    def record(self, at: float, events: tuple[Event, ...], facts: str = "") -> None:
        """Write what happened in one cycle, and the facts of the snapshot that it went by."""
        ...

    def caps(self) -> dict[JobKey, int]:
        """All caps that were set and not taken away."""
        ...

    def set_cap(self, key: JobKey, workers: int | None) -> None:
        """Remember the owner's cap of a job; None: forget it."""
        ...

    def scaling(self) -> dict[JobKey, tuple[ScalingPoint, ...]]:
        """The newest profile of each job that has one."""
        ...

    def set_scaling(self, key: JobKey, points: Iterable[ScalingPoint]) -> None:
        """Remember what a profile of a job has measured."""
        ...

    def slow_gpus(self, now: float) -> tuple[SlowGpu, ...]:
        """The GPUs that are remembered at `now`."""
        ...

    def set_slow_gpu(self, gpu: SlowGpu) -> None:
        """Remember that a GPU is slow."""
        ...

    def running_times(self) -> tuple[RunningTime, ...]:
        """How long jobs ran that have ended, in the order in which they ended."""
        ...

    def add_running_times(self, times: Iterable[RunningTime]) -> None:
        """Remember more of them."""
        ...


class UnknownJob(Exception):
    """No elastic job of this number runs; the message says so for people."""


class BadScale(ValueError):
    """A number of workers that the job's range does not hold; the message says what it holds."""


class Busy(Exception):
    """The job is being resized or profiled, and one thing comes after the other: try again later."""


class NotSteered(Exception):
    """A job that cannot be resized now, and that trying again soon will not change; the message says why."""


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """What `flexo status` shows. Times are seconds since the epoch."""

    started_at: float
    cluster: str
    """"" until Slurm has answered once."""
    slurm_version: str
    policy: str
    dry_run: bool
    interval_s: float
    last_cycle_at: float
    """0: none has succeeded yet."""
    read_cost_s: float
    trouble: str
    """"" when all is well."""
    nodes: int
    gpus: int
    gpus_idle: int
    gpus_in_satellites: int
    elastic_jobs: int
    leaders: int
    slow_gpus: tuple[SlowGpu, ...] = ()
    """GPUs that held a job up; their nodes get no satellites."""


@dataclass(frozen=True, slots=True)
class JobView:
    """What `flexo jobs` shows of one elastic job whose base runs."""

    job: ElasticJob
    user_id: int
    attached: bool
    batches_committed: int
    scaling: tuple[ScalingPoint, ...] = ()
    """As last profiled, by workers."""
    batch: int = 0
    """The aggregate batch that its leader is told to train with; 0: as the script says."""


@dataclass(frozen=True, slots=True)
class _View:
    """What others see of the last cycle."""

    state: ClusterState | None = None
    jobs: tuple[JobView, ...] = ()
    notes: tuple[Note, ...] = ()
    leaders: int = 0


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
    ) -> None:
        """`policy` None: the one that the settings name."""
        self._settings = settings
        self._cluster = cluster
        self._leaders = leaders
        self._journal = journal
        self._clock = clock
        self._policy = _policy_of(settings.controller) if policy is None else policy
        self._started_at = clock()
        # of the loop's thread alone
        self._book = GrantBook()
        self._history = History(journal.running_times())
        self._patience = _Patience()
        self._attached_at: dict[JobKey, float] = {}
        self._capped_at: dict[JobKey, float] = {}
        self._orphans: dict[int, float] = {}
        self._extended_at: dict[int, float] = {}
        self._dry_decided: frozenset[Action] = frozenset()
        self._read_costs: deque[float] = deque(maxlen=_READS_AVERAGED)
        self._unreachable = 0
        self._decided_at = 0.0
        self._again_at: float | None = None
        self._ended_before = 0
        """Jobs that had ended by `decided_at`."""
        # of all threads, under the lock
        self._lock = threading.Lock()
        self._traits: ClusterTraits | None = None
        self._view = _View()
        self._caps = journal.caps()
        self._scaling = journal.scaling()
        self._slow = journal.slow_gpus(clock())
        self._given_up: dict[JobKey, str] = {}
        """Grants that their owner gives back (`scale_in` with a node), until the loop has seen to it."""
        self._trouble = ""
        self._refused = ""
        self._refused_at = 0.0

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
        earliest, latest = begun + self._least_interval_s(), begun + self.interval_s
        while not stop.is_set() and (left := latest - time.monotonic()) > 0:
            if time.monotonic() < earliest:
                stop.wait(min(_NAP_S, earliest - time.monotonic()))
            elif self._leaders.wake.wait(min(_NAP_S, left)):
                return

    @property
    def interval_s(self) -> float:
        """From one look at the cluster to the next, as things are."""
        controller = self._settings.controller
        least = self._least_interval_s()
        return least if self._view.jobs or self._unreachable else max(least, controller.max_interval_s)

    def _least_interval_s(self) -> float:
        controller = self._settings.controller
        if self._unreachable:
            doublings = min(self._unreachable, _MOST_DOUBLINGS)
            return min(controller.max_interval_s, controller.min_interval_s * 2.0**doublings)
        cost = sum(self._read_costs) / len(self._read_costs) if self._read_costs else 0.0
        return max(controller.min_interval_s, cost / controller.max_read_share)

    # What others ask.

    @property
    def observation(self) -> ClusterState | None:
        """The newest look at the cluster; None before the first."""
        with self._lock:
            return self._view.state

    def status(self) -> ControllerStatus:
        """The state of the loop and the cluster as last seen."""
        with self._lock:
            view, traits = self._view, self._traits
            recent = self._clock() - self._refused_at < _REFUSAL_SHOWN_S
            refused = self._refused if recent else ""
            slow = tuple(gpu for gpu in self._slow if gpu.until_at > self._clock())
            trouble = "; ".join(filter(None, (self._trouble, refused, self._journal.trouble)))
        state = view.state
        nodes: tuple[Node, ...] = state.nodes if state else ()
        return ControllerStatus(
            started_at=self._started_at,
            cluster=traits.name if traits else "",
            slurm_version=traits.version if traits else "",
            policy=self._policy.name,
            dry_run=self._settings.controller.dry_run,
            interval_s=self.interval_s,
            last_cycle_at=state.at if state else 0.0,
            read_cost_s=state.read_cost_s if state else 0.0,
            trouble=trouble,
            nodes=len(nodes),
            gpus=sum(node.gpus for node in nodes),
            gpus_idle=sum(node.gpus_idle for node in nodes),
            gpus_in_satellites=sum(
                job.gpus
                for job in (state.jobs if state else ())
                if job.satellite is not None and job.state is JobState.RUNNING
            ),
            elastic_jobs=len(view.jobs),
            leaders=view.leaders,
            slow_gpus=slow,
        )

    def jobs(self) -> tuple[JobView, ...]:
        """All elastic jobs whose base runs."""
        with self._lock:
            return self._view.jobs

    def explain(self, job_id: int) -> tuple[str, ...]:
        """Why the job has what it has, in sentences. Raises UnknownJob."""
        with self._lock:
            view, trouble = self._view, self._trouble
        sentences = _explain(job_id, view)
        if self._settings.controller.dry_run:
            sentences = (*sentences, "flexod only decides and records (dry run); it changes nothing")
        return (trouble, *sentences) if trouble else sentences

    def scale(self, key: JobKey, workers: int | None) -> str:
        """The owner's cap on the job's workers; None: back to automatic. Returns what happens now.

        Who may do this is for the caller to check. Raises UnknownJob, BadScale.
        """
        job = self._running(key).job
        if workers is not None and job.workers.clamp(workers) != workers:
            raise BadScale(f"job {key} can have {job.workers} workers, not {workers}")
        self._cap(key, workers)
        return self._scaled(key, _scaled(job, workers))

    def scale_out(self, key: JobKey, workers: int) -> str:
        """Amoeba's scaleOut: so many workers more than the job has. Returns what happens now.

        Where they run is the policy's choice, and when, if nothing is idle now. Who may do this is for the
        caller to check. Raises UnknownJob, BadScale, Busy, NotSteered.
        """
        job = self.resizable(key)
        have, most = job.granted_workers, job.workers.max
        if workers < 1 or have + workers > most:
            text = f"job {key} has {have} workers and can have {most}: 1 to {most - have} more are allowed"
            raise BadScale(text if have < most else f"job {key} has {have} workers, which is its maximum")
        self._cap(key, have + workers)
        return self._scaled(key, _scaled(job, have + workers))

    def scale_in(self, key: JobKey, workers: int, node: str = "") -> str:
        """Amoeba's scaleIn: so many workers fewer than the job has, or its satellite on `node`.

        It gets nothing new in their place until it is scaled out again, or automatically (`scale` with
        None). Who may do this is for the caller to check. Raises UnknownJob, BadScale, Busy, NotSteered.
        """
        job = self.resizable(key)
        have, least = job.granted_workers, job.base_workers
        if node:
            grant = next((grant for grant in job.grants if grant.node == node), None)
            if grant is None:
                raise BadScale(f"job {key} has no satellite on '{node}': {_where(job)}")
            with self._lock:
                self._given_up[key] = grant.grant_id
            self._cap(key, have - grant.workers)
            return self._scaled(key, f"job {key} gives back its {_workers(grant.workers)} on {node}")
        if workers < 1 or have - workers < least:
            text = f"job {key} has {have} workers, {least} in its base: 1 to {have - least} fewer are allowed"
            raise BadScale(text if have > least else f"job {key} has only its base of {_workers(least)}")
        self._cap(key, have - workers)
        return self._scaled(key, _scaled(job, have - workers))

    def profiled(self, key: JobKey, points: tuple[ScalingPoint, ...]) -> None:
        """A profile has ended; what it measured is kept for people and policies."""
        with self._lock:
            self._scaling[key] = points
        self._journal.set_scaling(key, points)
        self._record((Event(self._clock(), "profile", key, _profile(points)),))

    def note(self, kind: str, key: JobKey, text: str) -> None:
        """Write down what somebody has had a job do."""
        self._record((Event(self._clock(), kind, key, text),))

    def _running(self, key: JobKey) -> JobView:
        found = next((view for view in self.jobs() if view.job.key == key), None)
        if found is None:
            raise UnknownJob(f"there is no running elastic job {key}")
        return found

    def resizable(self, key: JobKey) -> ElasticJob:
        """The job, if it may be resized now: resizes of one job are sequential (Amoeba, section 5.2).

        Raises UnknownJob, Busy, NotSteered.
        """
        view = self._running(key)
        job = view.job
        if not view.attached:
            raise NotSteered(f"job {key} has no leader attached to flexod, which could resize it")
        if not job.scalable:
            raise NotSteered(
                f"job {key}: {job.unscalable_why or 'the script has not entered hvd.elastic.run yet'}"
            )
        with self._lock:
            asked = self._caps.get(key) != job.wanted
        moving = [
            f"{grant.workers} on {grant.node} {grant.state.value}" for grant in job.grants if grant.moving
        ]
        if asked or moving or job.changing:
            text = ", ".join(moving) or "it has only just begun"
            raise Busy(f"job {key} is being resized ({text}): try again later")
        if job.errand:
            raise Busy(f"job {key} is not resized while a {job.errand} is under way: try again later")
        return job

    def _cap(self, key: JobKey, workers: int | None) -> None:
        with self._lock:
            if workers is None:
                self._caps.pop(key, None)
            else:
                self._caps[key] = workers
        self._journal.set_cap(key, workers)

    def _scaled(self, key: JobKey, text: str) -> str:
        self._record((Event(self._clock(), "scale", key, text),))
        self._leaders.wake.set()
        return text

    # One turn of the loop.

    def cycle(self) -> None:
        """Look once, decide, act and record. Never raises: what goes wrong is the status's `trouble`."""
        try:
            self.turn()
        except ClusterUnreachable as error:
            self._be_in_trouble(f"Slurm does not answer: {error}")
        except Exception as error:  # a mistake of ours must not end what keeps leases alive
            _log.exception("the cycle failed")
            self._be_in_trouble(f"flexod made a mistake: {type(error).__name__}: {error}")
        else:
            self._be_well()

    def _be_in_trouble(self, trouble: str) -> None:
        self._unreachable += 1
        with self._lock:
            news = trouble != self._trouble
            self._trouble = trouble
            self._traits = None
        if news:
            self._record((Event(self._clock(), "trouble", None, trouble),))

    def _be_well(self) -> None:
        self._unreachable = 0
        with self._lock:
            news, self._trouble = bool(self._trouble), ""
        if news:
            self._record((Event(self._clock(), "trouble", None, "all is well again"),))

    @property
    def again_at(self) -> float | None:
        """When the policy wants to be asked although nothing has happened, on a cluster that allocates."""
        return self._again_at

    def turn(self) -> None:
        """One cycle, in which whatever goes wrong is raised."""
        traits = self._traits
        if traits is None:
            traits = self._cluster.traits()
            with self._lock:
                self._traits = traits
        if traits.allocates:
            self._allocate()
        else:
            self._lend(traits)

    def _allocate(self) -> None:
        """Give jobs on a cluster that can do it itself what the policy wants them to have.

        A simulation comes here at each of its events: nothing is done for every job.
        """
        state = self._cluster.observe()
        plan = self._policy.plan(self._snapshot(state, ()))
        self._again_at = plan.again_at
        with self._lock:
            self._view = _View(state, notes=plan.notes)
        if not plan.allocations and not plan.drops:
            return
        dry_run = self._settings.controller.dry_run
        if not dry_run:
            self._cluster.allocate(plan.allocations, plan.drops)
            self._decide(state)
        if self._journal.keeps:
            self._record(tuple(_events_of(plan, state, "would be " if dry_run else "is ")))

    def _decide(self, state: ClusterState) -> None:
        self._decided_at, self._ended_before = state.at, state.ended

    def _lend(self, traits: ClusterTraits) -> None:
        """Let jobs on a cluster that starts them itself grow by satellites, and give them back."""
        # leaders first: what they report and Slurm then does not show has ended in between
        reports = {report.key: report for report in self._leaders.reports()}
        self._take_failures()
        self._take_given_up()
        state = self._cluster.observe()
        self._read_costs.append(state.read_cost_s)
        start_within_s = self._start_within_s(traits)
        sight = self._join(state, reports, start_within_s)
        self._record(tuple(self._take_slow_gpus(sight, state.at)))
        self._journal.add_running_times(self._history.see(state.jobs, state.at))
        plan = self._plan_satellites(state, sight, reports)
        events = [
            *sight.events,
            *self._carry_out(plan, sight, state.at),
            *self._be_patient(plan, traits, state.at),
        ]
        if plan.actions and not self._settings.controller.dry_run:
            self._decide(state)
        jobs = self._after(plan, sight)
        batches = {batch.job: batch.samples for batch in plan.batches}
        self._show(state, jobs, plan, reports, batches)
        self._record(tuple(events), _facts(state, sight) if plan.actions else "")
        if not self._settings.controller.dry_run:
            self._tell(jobs, reports, start_within_s, batches)
            self._record(tuple(self._extend_leases(state, jobs)))
            self._record(tuple(self._cancel_orphans(sight.orphans, state.at)))

    def _plan_satellites(
        self, state: ClusterState, sight: Sight, reports: Mapping[JobKey, LeaderReport]
    ) -> Plan:
        """Of what elastic jobs are due, by the policy, what can be made real with satellites now."""
        snapshot = self._snapshot(state, sight.jobs)
        if isinstance(self._policy, Greedy):
            return self._policy.plan(snapshot)
        with self._lock:
            scaling = dict(self._scaling)
        known = Known(self._history, scaling, reports, state.at)
        snapshot = replace(snapshot, training=training_jobs(state.jobs, sight.jobs, known))
        least_s = self._settings.controller.min_resize_interval_s
        return satellites.plan(snapshot, least_s, sizing_by(self._policy, snapshot))

    def _take_failures(self) -> None:
        now = self._clock()
        failed = [self._book.fail(failure, now) for failure in self._leaders.take_failures()]
        self._record(tuple(event for event in failed if event is not None))

    def _take_given_up(self) -> None:
        with self._lock:
            given_up, self._given_up = self._given_up, {}
        if not self._settings.controller.dry_run:
            for key, grant_id in given_up.items():
                self._book.withdraw(key, grant_id, self._clock())

    def _take_slow_gpus(self, sight: Sight, now: float) -> Iterable[Event]:
        """What leaders say of GPUs that their own jobs have, or had a moment ago."""
        held = {view.job.key: _nodes(view.job) for view in self.jobs()}
        for job in sight.jobs:
            held[job.key] = held.get(job.key, frozenset()) | _nodes(job)
        lasting = {(gpu.node, gpu.gpus): gpu for gpu in self._slow if gpu.until_at > now}
        for report in self._leaders.take_slow_gpus():
            if report.node not in held.get(report.job, ()):
                text = (
                    f"its leader says that {report.node} has a slow GPU, where the job has nothing: ignored"
                )
                yield Event(now, "slow", report.job, text)
                continue
            until_at = now + self._settings.controller.slow_gpu_s
            gpu = SlowGpu(report.node, report.gpus, report.ratio, report.job, now, until_at)
            yield Event(now, "slow", report.job, f"{gpu}: no satellite is put there{_for(until_at - now)}")
            if until_at > now:
                lasting[gpu.node, gpu.gpus] = gpu
                self._journal.set_slow_gpu(gpu)
        with self._lock:
            self._slow = tuple(lasting[name] for name in sorted(lasting))

    def _start_within_s(self, traits: ClusterTraits) -> int:
        chosen = self._settings.controller.start_within_s
        if chosen is not None:
            return chosen
        return max(_LEAST_START_S, round(_START_CYCLES * traits.backfill_interval_s) + _START_EXTRA_S)

    def _join(self, state: ClusterState, reports: dict[JobKey, LeaderReport], start_within_s: int) -> Sight:
        with self._lock:
            caps = dict(self._caps)
        sight = self._book.join(
            state.jobs, reports, caps, self._settings.slurm.satellite_partition, start_within_s, state.at
        )
        self._forget_old_caps(caps.keys(), {job.key for job in state.jobs}, state.at)
        running = {job.key for job in sight.jobs}
        self._attached_at = {key: at for key, at in self._attached_at.items() if key in running}
        self._attached_at.update((key, state.at) for key in reports if key in running)
        return sight

    def _forget_old_caps(self, capped: Iterable[JobKey], queued: Container[JobKey], now: float) -> None:
        self._capped_at = {
            key: now if key in queued else self._capped_at.get(key, self._started_at) for key in capped
        }
        for key, seen_at in self._capped_at.items():
            if now - seen_at > _CAP_OUTLIVES_JOB_S:
                with self._lock:
                    self._caps.pop(key, None)
                self._journal.set_cap(key, None)

    def _snapshot(self, state: ClusterState, elastic: tuple[ElasticJob, ...]) -> Snapshot:
        return Snapshot(
            at=state.at,
            nodes=state.nodes,
            partitions=state.partitions,
            jobs=state.jobs,
            elastic=elastic,
            satellite_partition=self._settings.slurm.satellite_partition,
            passed_over=self._patience.passed_over(state.at),
            slow_gpus=self._slow,
            training=state.training,
            quotas=state.quotas,
            decided_at=self._decided_at,
            ended_since=state.ended - self._ended_before,
        )

    def _carry_out(self, plan: Plan, sight: Sight, now: float) -> list[Event]:
        """Note in the book what the plan changes; leaders are told afterwards."""
        if self._settings.controller.dry_run:
            decided = frozenset(plan.actions)
            fresh = [action for action in plan.actions if action not in self._dry_decided]
            self._dry_decided = decided
            return [_event_of(action, sight, now, "would ") for action in fresh]
        for action in plan.actions:
            if isinstance(action, Shrink):
                self._book.withdraw(action.job, action.grant_id, now)
            else:
                grant_id = f"g{secrets.token_hex(6)}"
                self._book.say(
                    Grant(grant_id, action.job, action.node, action.workers, action.partition, now)
                )
        return [_event_of(action, sight, now, "") for action in plan.actions]

    def _be_patient(self, plan: Plan, traits: ClusterTraits, now: float) -> list[Event]:
        """A job that does not start although there is room waits for something that flexo does not know."""
        patience_s = self._settings.controller.lease_s + _START_CYCLES * traits.backfill_interval_s
        return [
            Event(
                now,
                "wait",
                None,
                f"pending job {job_id} did not start within {patience_s:.0f} s although there was room;"
                f" nothing is kept for it for {_PASS_OVER_S / 60:.0f} min",
            )
            for job_id in self._patience.exhausted(plan.set_aside, patience_s, now)
        ]

    def _after(self, plan: Plan, sight: Sight) -> tuple[ElasticJob, ...]:
        """The jobs with what the plan has changed of their grants."""
        if self._settings.controller.dry_run or not plan.actions:
            return sight.jobs
        return tuple(replace(job, grants=self._book.after(job)) for job in sight.jobs)

    def _tell(
        self,
        jobs: Iterable[ElasticJob],
        reports: dict[JobKey, LeaderReport],
        start_within_s: int,
        batches: Mapping[JobKey, int],
    ) -> None:
        lease_s = self._settings.controller.lease_s
        for job in jobs:
            if job.key in reports:
                offers = tuple(
                    GrantOffer(
                        grant.grant_id, grant.node, grant.workers, grant.partition, lease_s, start_within_s
                    )
                    for grant in job.grants
                    if grant.state is not SatelliteState.LEAVING
                )
                self._leaders.tell(job.key, Orders(offers, batches.get(job.key, 0)))

    def _extend_leases(self, state: ClusterState, jobs: Iterable[ElasticJob]) -> list[Event]:
        """Leases of which less than half is left, under grants that stand.

        A leader that is not attached keeps its satellites for one lease more: flexod or the network may
        have been away. After that they run out.
        """
        now, lease_s = state.at, self._settings.controller.lease_s
        queue = {job.job_id: job for job in state.jobs}
        self._extended_at = {job: at for job, at in self._extended_at.items() if job in queue}
        events: list[Event] = []
        for job in jobs:
            seen_at = self._attached_at.get(job.key, self._started_at)
            if queue[job.key.job_id].state is not JobState.RUNNING or now - seen_at > lease_s:
                continue
            due = [
                grant.satellite_job_id
                for grant in job.grants
                if grant.state in _TRAINING and self._is_due(queue.get(grant.satellite_job_id), now)
            ]
            extended = [satellite for satellite in due if self._extend(satellite, now, job.key, events)]
            if extended:
                names = ", ".join(map(str, extended))
                text = f"the grant stands: the lease of {names} ends {lease_s} s from now"
                events.append(Event(now, "extend", job.key, text))
        return events

    def _is_due(self, satellite: SlurmJob | None, now: float) -> bool:
        if satellite is None or satellite.state is not JobState.RUNNING:
            return False
        if satellite.started_at is None or satellite.time_limit_s is None:
            return False
        tried_at = self._extended_at.get(satellite.job_id, 0.0)
        left = satellite.started_at + satellite.time_limit_s - now
        return left < self._settings.controller.lease_s / 2 and now - tried_at >= _ORPHAN_RETRY_S

    def _extend(self, satellite_job_id: int, now: float, key: JobKey, events: list[Event]) -> bool:
        self._extended_at[satellite_job_id] = now
        try:
            self._cluster.extend(satellite_job_id, self._settings.controller.lease_s)
        except ActionRefused as error:
            self._be_refused(str(error), key, now, events)
            return False
        with self._lock:
            self._refused = ""
        return True

    def _cancel_orphans(self, orphans: Sequence[SlurmJob], now: float) -> list[Event]:
        """End satellites whose base is gone, the second time that they are seen so."""
        events: list[Event] = []
        due_at = {job.job_id: self._orphans.get(job.job_id, now) for job in orphans}
        for job in orphans:
            first = job.job_id not in self._orphans
            if first or job.state is JobState.COMPLETING or due_at[job.job_id] > now:
                continue
            assert job.satellite is not None
            due_at[job.job_id] = now + _ORPHAN_RETRY_S
            try:
                self._cluster.cancel(job.job_id)
            except ActionRefused as error:
                self._be_refused(str(error), job.satellite.base, now, events)
                continue
            text = f"satellite {job.job_id} is cancelled: job {job.satellite.base} is gone from the queue"
            events.append(Event(now, "cancel", job.satellite.base, text))
        self._orphans = due_at
        return events

    def _be_refused(self, refusal: str, key: JobKey, now: float, events: list[Event]) -> None:
        with self._lock:
            news = refusal != self._refused
            self._refused, self._refused_at = refusal, now
        if news:
            events.append(Event(now, "trouble", key, f"Slurm refused it: {refusal}"))

    def _show(
        self,
        state: ClusterState,
        jobs: tuple[ElasticJob, ...],
        plan: Plan,
        reports: dict[JobKey, LeaderReport],
        batches: Mapping[JobKey, int],
    ) -> None:
        owners = {job.key: job.user_id for job in state.jobs}
        with self._lock:
            scaling = dict(self._scaling)
        views = tuple(
            JobView(
                job,
                owners[job.key],
                job.key in reports,
                reports[job.key].batches_committed if job.key in reports else 0,
                scaling.get(job.key, ()),
                batches.get(job.key, 0),
            )
            for job in jobs
        )
        with self._lock:
            self._view = _View(state, views, plan.notes, len(reports))

    def _record(self, events: tuple[Event, ...], facts: str = "") -> None:
        if not self._journal.keeps:
            return
        for event in events:
            log = _log.debug if event.kind == "extend" else _log.info
            log(event.kind, job=str(event.job) if event.job else None, text=event.text)
        self._journal.record(self._clock(), events, facts)


class _Patience:
    """How long resources have been set aside for pending jobs, and who has had enough."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._passed_until: dict[int, float] = {}

    def passed_over(self, now: float) -> frozenset[int]:
        """Jobs for which nothing is set aside now."""
        self._passed_until = {job_id: until for job_id, until in self._passed_until.items() if until > now}
        return frozenset(self._passed_until)

    def exhausted(self, set_aside: Iterable[int], patience_s: float, now: float) -> list[int]:
        """Of the jobs that something is set aside for, those that have not started for too long."""
        self._since = {job_id: self._since.get(job_id, now) for job_id in set_aside}
        late = [job_id for job_id, since in self._since.items() if now - since > patience_s]
        self._passed_until.update((job_id, now + _PASS_OVER_S) for job_id in late)
        return late


def _policy_of(settings: ControllerSettings) -> Policy:
    if settings.policy == "greedy":
        return registry.make("greedy", min_resize_interval_s=settings.min_resize_interval_s)
    return registry.make(settings.policy)


def _events_of(plan: Plan, state: ClusterState, verb: str) -> Iterable[Event]:
    """What becomes of jobs on a cluster that allocates."""
    before = {job.key: job for job in state.training}
    for allocation in plan.allocations:
        text = f"{verb}{_change(before[allocation.job], allocation)}: {allocation.why}"
        yield Event(state.at, "allocate", allocation.job, text)
    for drop in plan.drops:
        yield Event(state.at, "drop", drop.job, f"{verb}refused: {drop.why}")


def _change(job: TrainingJob, allocation: Allocate) -> str:
    if not allocation.shares:
        return f"preempted, after {_workers(job.allocated)}"
    where = ", ".join(f"{share.workers} on {share.node}" for share in allocation.shares)
    return f"resized from {_workers(job.allocated)} to {where}" if job.shares else f"started with {where}"


def _event_of(action: Action, sight: Sight, now: float, would: str) -> Event:
    if isinstance(action, Grow):
        text = f"{would}grow by {_workers(action.workers)} on {action.node}: {action.why}"
        return Event(now, "grow", action.job, text)
    grant = next(
        grant
        for job in sight.jobs
        if job.key == action.job
        for grant in job.grants
        if grant.grant_id == action.grant_id
    )
    text = f"{would}give back {_workers(grant.workers)} on {grant.node}: {action.why}"
    return Event(now, "shrink", action.job, text)


def _facts(state: ClusterState, sight: Sight) -> str:
    """What a plan went by, for the journal: JSON."""
    pending = [job for job in state.jobs if job.state is JobState.PENDING and job.satellite is None]
    facts = {
        "idle": {node.name: node.gpus_idle for node in state.nodes if node.gpus_idle},
        "unusable": {node.name: node.unusable for node in state.nodes if node.unusable},
        "pending": [
            {
                "job": job.job_id,
                "user": job.user,
                "reason": job.reason,
                "gpus": job.gpus,
                "nodes": job.num_nodes,
                "partitions": job.partitions,
            }
            for job in pending[:_FACTS_OF_PENDING]
        ],
        "pending_in_all": len(pending),
        "elastic": [
            {
                "job": str(job.key),
                "range": str(job.workers),
                "wanted": job.wanted,
                "training": job.training_workers,
                "scalable": job.scalable,
                "grants": [
                    f"{grant.grant_id} {grant.node} x{grant.workers} {grant.state.value}"
                    for grant in job.grants
                ],
            }
            for job in sight.jobs
        ],
    }
    return json.dumps(facts, separators=(",", ":"))


def _explain(job_id: int, view: _View) -> tuple[str, ...]:
    for shown in view.jobs:
        if shown.job.key.job_id == job_id:
            return _explain_running(shown, view)
    queued = next((job for job in (view.state.jobs if view.state else ()) if job.job_id == job_id), None)
    if queued is None:
        raise UnknownJob(f"job {job_id} is not in Slurm's queue")
    if queued.satellite is not None:
        return (f"job {job_id} is a satellite of job {queued.satellite.base}; ask about that one",)
    if queued.elastic is None:
        raise UnknownJob(f"job {job_id} is not elastic: it was submitted without --elastic")
    if queued.state is JobState.PENDING:
        least = _workers(queued.elastic.workers.min)
        return (f"job {job_id} is pending ({queued.reason}): it starts with {least}, like any Slurm job",)
    return (f"job {job_id} is ending",)


def _explain_running(shown: JobView, view: _View) -> tuple[str, ...]:
    job = shown.job
    parts = [f"{job.base_workers} in its base on {', '.join(job.base_nodes)}"]
    parts += [f"{grant.workers} on {grant.node} ({grant.state.value})" for grant in job.grants]
    size = f"job {job.key} ({job.user}) of {job.workers} workers trains with {job.training_workers}"
    sentences = [f"{size}: {'; '.join(parts)}"]
    if not shown.attached:
        sentences[0] = f"job {job.key} ({job.user}) may have {job.workers} workers: {'; '.join(parts)}"
        sentences.append("its leader is not connected: it can be given nothing; what it has runs on")
        return tuple(sentences)
    if shown.batch:
        sentences.append(f"its batch is {shown.batch} samples a step, of {job.batch} that it accepts")
    if shown.scaling:
        sentences.append(_profile(shown.scaling))
    return (*sentences, *(note.text for note in view.notes if note.job == job.key))


def _profile(points: Sequence[ScalingPoint]) -> str:
    """``its profile: 2 workers 90.1 samples/s (efficiency 1.00), 4 workers ...``."""
    return "its profile: " + ", ".join(
        f"{_workers(point.workers)} {_speed(point)} (efficiency {point.efficiency:.2f})" for point in points
    )


def _speed(point: ScalingPoint) -> str:
    if point.samples_per_s:
        return f"{point.samples_per_s:.4g} samples/s"
    return f"{point.step_s:.3g} s a step"


def _nodes(job: ElasticJob) -> frozenset[str]:
    return frozenset(job.base_nodes) | {grant.node for grant in job.grants}


def _where(job: ElasticJob) -> str:
    return ", ".join(grant.node for grant in job.grants) or "it has only its base"


def _for(seconds: float) -> str:
    return f" for {seconds:.0f} s" if seconds > 0 else " only where [controller] slow_gpu_s says so"


def _scaled(job: ElasticJob, workers: int | None) -> str:
    if workers is None:
        return f"job {job.key} may have all of {job.workers} workers again"
    now = job.granted_workers
    if now > workers:
        return (
            f"job {job.key} has {now} workers and gives back whole satellites until it has at most {workers}"
        )
    return f"job {job.key} has {now} workers and grows to at most {workers}"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"
