"""Simulates a workload on Slurm, under the controller and the planner of satellites that flexod runs on a
real one.

The course of events: jobs arrive, Slurm starts them and preempts satellites, bases boot and train. flexod
polls the cluster and grants; satellites start, warm up, join and leave. An inference cluster may lend
servers. Jobs leave them when flexod reclaims them, or when an inference job has nowhere else to go. Each
event takes its time (`SlurmTimes`). Here Slurm alone starts a base, and the base stays where it is. A policy
decides about the workers beyond it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final

from flexo.clusters.simulated.nodes import BORROWED, make_nodes
from flexo.config import ControllerSettings, Settings
from flexo.control.leaders import GrantOffer, Orders
from flexo.controller import Controller
from flexo.model.elastic import FailureReason, GrantFailure, LeaderReport, SatelliteReport, SatelliteState
from flexo.model.queue import JobKey
from flexo.model.training import NodeShare
from flexo.policies.base import Policy
from flexo_protos.resources import Amount
from flexo_simulation.capacity import Capacity
from flexo_simulation.costs import Costs
from flexo_simulation.live_job import LiveJob
from flexo_simulation.loan_story import LoanStory
from flexo_simulation.on_slurm.inference import InferenceOnSlurm
from flexo_simulation.on_slurm.leaders import SimulatedLeaders
from flexo_simulation.on_slurm.slurm import NOBODY, SimulatedSlurm
from flexo_simulation.on_slurm.times import SlurmTimes
from flexo_simulation.records import End, JobRecord
from flexo_simulation.results import SimulatedRun, summarize
from flexo_simulation.scenario import Scenario
from flexo_simulation.silence import NoEventStore
from flexo_simulation.true_paces import TruePaces
from flexo_simulation.workload import TraceJob, Workload

_USER: Final = "user"
"""The user of jobs whose trace names none."""


@dataclass(slots=True)
class _Satellite:
    """One of a job's satellites, from its grant until its GPUs are free."""

    job_id: int
    offer: GrantOffer
    ready_at: float
    """Time when Slurm has taken up the satellite, and may start it."""
    state: SatelliteState = SatelliteState.PENDING
    runs_since: float | None = None


@dataclass(slots=True)
class _Job:
    """One job of the workload."""

    live: LiveJob
    base: tuple[NodeShare, ...] = ()
    began_at: float | None = None
    booted: bool = False
    over: bool = False
    """Whether the job's training is done."""
    gpu_s: float = 0.0
    """GPU seconds held by satellites that have gone."""
    satellites: dict[str, _Satellite] = field(default_factory=dict)
    """The job's satellites by grant, until their GPUs are free."""
    refused: set[str] = field(default_factory=set)
    """Grants that were given back, which flexod may still list."""
    restarts: int = 0
    """How often the base was preempted and requeued."""

    @property
    def elastic(self) -> bool:
        """Whether the job can grow."""
        return self.live.trace.workers.max > self.live.trace.workers.min

    @property
    def gpus_each(self) -> Amount:
        """GPUs of a worker."""
        return self.live.trace.shape.gpus

    @property
    def key(self) -> JobKey:
        """flexo's key of the present run."""
        return JobKey(self.live.trace.job_id, self.restarts)


def simulate_on_slurm(
    workload: Workload,
    policy: Policy,
    scenario: Scenario,
    times: SlurmTimes,
    progress: Callable[[int, int], None] | None = None,
) -> SimulatedRun:
    """Run `workload` to its end on a Slurm with the delays `times`; `policy` decides about satellites."""
    begun = time.perf_counter()
    world = _SlurmWorld(workload, policy, scenario, times)
    records = world.run(progress or (lambda ended, jobs: None))
    loans = world.loan_story()
    result = summarize(
        records,
        world.gpus,
        loans,
        nodes=make_nodes(scenario.nodes),
        wall_s=time.perf_counter() - begun,
        events=world.events,
        oracle=policy.oracle,
    )
    return SimulatedRun(policy.name, result, records, world.gpus, loans)


class _SlurmWorld:
    """One simulation under way. Mutable."""

    def __init__(self, workload: Workload, policy: Policy, scenario: Scenario, times: SlurmTimes) -> None:
        nodes = make_nodes(scenario.nodes)
        self.gpus = sum(node.gpus for node in nodes)
        self.events = 0
        """The number of events so far."""
        self._times = times
        self._limits_end_jobs = scenario.limits_end_jobs
        self._trace = workload.jobs
        servers = scenario.inference.nodes_to_lend if scenario.inference else ()
        self._capacity = Capacity(nodes)
        self._paces = TruePaces((*nodes, *servers), scenario.gpu_speeds)
        self._checkpoints = scenario.checkpoints
        self._now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._jobs: dict[int, _Job] = {}
        """The jobs that wait or run, by number."""
        self._ended: dict[int, JobRecord] = {}
        self._next_id = max((job.job_id for job in workload.jobs), default=0) + 1
        self._looking = False
        self._backfilling = False
        self._slurm = SimulatedSlurm(nodes, times.backfill_s, servers, self._requeue)
        self._inference = (
            InferenceOnSlurm(scenario.inference, self._slurm) if scenario.inference and servers else None
        )
        self._leaders = SimulatedLeaders(self._reports, self._obey)
        settings = Settings(
            controller=ControllerSettings(
                policy=policy.name, min_resize_interval_s=times.min_resize_interval_s, order=times.order
            )
        )
        numbers = count(1)
        self._controller = Controller(
            settings,
            self._slurm,
            self._leaders,
            NoEventStore(),
            policy=policy,
            clock=lambda: self._now,
            lending=self._inference.lending if self._inference else None,
            new_grant_id=lambda: f"g{next(numbers):012}",
        )

    def run(self, progress: Callable[[int, int], None]) -> tuple[JobRecord, ...]:
        """Handle all events. Returns the record of every job, in the order of submission."""
        for trace in self._trace:
            self._at(trace.submitted_at, partial(self._arrive, trace))
        for at in self._inference.changes if self._inference else ():
            self._at(at, self._serve)
        if self._always_looks:
            self._looking = True
            self._at(0.0, self._look)
        while self._agenda and len(self._ended) < len(self._trace):
            self._now, _, happen = heapq.heappop(self._agenda)
            self._slurm.now = self._now
            self.events += 1
            happen()
            if self._inference is not None:
                self._inference.note(self._now)
            progress(len(self._ended), len(self._trace))
        return tuple(
            self._ended.get(job.job_id) or self._jobs[job.job_id].live.record(End.NEVER_STARTED, None)
            for job in self._trace
        )

    @property
    def _always_looks(self) -> bool:
        """Whether flexod polls the cluster also while no elastic job trains."""
        return self._inference is not None or self._times.order == "policy"

    def loan_story(self) -> LoanStory | None:
        """The story of the inference cluster's servers, if there is one."""
        return self._inference.story() if self._inference else None

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (max(when, self._now), next(self._order), happen))

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        self._at(self._now + seconds, happen)

    # Slurm.

    def _arrive(self, trace: TraceJob) -> None:
        live = LiveJob(trace)
        if not self._capacity.holds(trace):
            self._ended[trace.job_id] = live.record(End.NEVER_FITS, None)
            return
        self._jobs[trace.job_id] = _Job(live)
        self._slurm.submit(trace, _USER)
        self._after(self._times.submit_s, self._start_jobs)

    def _start_jobs(self) -> None:
        """Let Slurm run one pass over everything that waits."""
        if self._inference is not None:
            for server in self._slurm.start_inference():
                self._vacate(server)
        for chosen in self._slurm.chosen():
            for satellite_job_id in chosen.preempted:
                self._preempt(satellite_job_id)
        for job_id in tuple(self._jobs):
            self._begin(job_id)
        for job in self._jobs.values():
            for satellite in tuple(job.satellites.values()):
                self._start_satellite(job, satellite)
        if not self._backfilling and self._slurm.waits():
            self._backfilling = True
            self._after(self._times.backfill_s, self._backfill)

    def _backfill(self) -> None:
        self._backfilling = False
        if any(job.began_at is not None for job in self._jobs.values()):
            self._start_jobs()

    def _begin(self, job_id: int) -> None:
        """Start a job that has its place, once its GPUs are free."""
        job = self._jobs[job_id]
        if job.began_at is not None or not self._slurm.begin(job_id):
            return
        entry = self._slurm.entry(job_id)
        assert entry is not None
        job.base, job.began_at = entry.shares, self._now
        if entry.job.partitions == (BORROWED,):
            job.live.on_loan = True
        workers = sum(share.workers for share in job.base)
        boot_s = self._times.boot.of(workers) if job.elastic else 0.0
        self._reshare(job, boot_s)
        if self._limits_end_jobs and job.live.trace.time_limit_s is not None:
            self._after(job.live.trace.time_limit_s, partial(self._run_out, job, job.restarts))
        if job.elastic:
            self._after(boot_s, partial(self._booted, job, job.restarts))

    def _run_out(self, job: _Job, restarts: int) -> None:
        if job.restarts == restarts:
            self._end(job, End.LIMIT)

    def _preempt(self, satellite_job_id: int) -> None:
        for job in self._jobs.values():
            for satellite in tuple(job.satellites.values()):
                if satellite.job_id == satellite_job_id:
                    self._refuse(job, satellite, FailureReason.PREEMPTED)
                    self._send_away(job, satellite)

    # The inference cluster.

    def _serve(self) -> None:
        """Let inference have as many servers as it needs by now; its new jobs start a while later."""
        assert self._inference is not None
        for job_id in self._inference.leaving(self._now):
            self._slurm.remove(job_id)
        for _ in range(self._inference.missing(self._now)):
            self._slurm.submit_inference(self._next_id)
            self._inference.serving.append(self._next_id)
            self._next_id += 1
        self._after(self._times.submit_s, self._start_jobs)

    def _vacate(self, server: str) -> None:
        """Slurm preempts what is on a server that an inference job waits for."""
        for job_id in self._slurm.jobs_on(server):
            if job_id in self._jobs:
                self._evict(job_id, self._times.grace_s)
            else:
                self._preempt(job_id)

    def _requeue(self, job_id: int) -> None:
        """Preempt a base as flexod says."""
        self._evict(job_id, self._times.evict_s)

    def _evict(self, job_id: int, seconds: float) -> None:
        """Stop a base. After `seconds` its GPUs are free; a while later it may start again."""
        job = self._jobs[job_id]
        if job.over or job.began_at is None or not job.base:
            return
        job.live.advance(self._now)
        if job.live.run.finished:
            return
        assert self._inference is not None
        self._inference.preempted.append(job_id)
        for satellite in tuple(job.satellites.values()):
            self._send_away(job, satellite)
        job.base, job.booted = (), False
        job.live.reshare(self._now, (), 1.0, 0, Costs(), checkpoints=self._checkpoints)
        job.live.version += 1
        self._slurm.complete(job_id)
        self._after(seconds, partial(self._evicted, job))

    def _evicted(self, job: _Job) -> None:
        job_id = job.live.trace.job_id
        job.restarts, job.began_at = job.restarts + 1, None
        job.refused.clear()
        self._slurm.wait_again(job_id)
        self._after(self._times.again_s, partial(self._may_start_again, job_id))
        self._start_jobs()

    def _may_start_again(self, job_id: int) -> None:
        self._slurm.let_start(job_id)
        self._start_jobs()

    # The course of a job.

    def _reshare(self, job: _Job, start_s: float = 0.0) -> None:
        """Let the job train with its base and the satellites that have joined, from now on."""
        times, workers = self._times, {share.node: share.workers for share in job.base}
        for satellite in job.satellites.values():
            if satellite.state is SatelliteState.TRAINING:
                node = satellite.offer.node
                workers[node] = workers.get(node, 0) + satellite.offer.workers
        shares = tuple(NodeShare(node, number) for node, number in workers.items())
        costs = Costs(start_s, max(times.join_s, times.part_s), times.join_s, times.part_s)
        pace = self._paces.of(job.live.trace, shares)
        job.live.reshare(self._now, shares, pace, 0, costs, checkpoints=True)
        job.live.version += 1
        self._plan_end(job)

    def _plan_end(self, job: _Job) -> None:
        version, at = job.live.version, job.live.next_at()
        if at < math.inf:
            self._at(at, lambda: self._look_at(job, version))

    def _look_at(self, job: _Job, version: int) -> None:
        """Handle the planned end of the job's training, unless the job has changed since."""
        if job.over or job.live.version != version:
            return
        job.live.advance(self._now)
        if not job.live.run.finished:
            self._plan_end(job)
        else:
            self._end(job, End.FINISHED)

    def _end(self, job: _Job, end: End) -> None:
        """End the job's training; a while later its GPUs are free."""
        if job.over:
            return
        job.live.advance(self._now)
        job.over = True
        self._slurm.complete(job.live.trace.job_id)
        for satellite in tuple(job.satellites.values()):
            self._send_away(job, satellite)
        self._after(self._times.end_s if job.elastic else 0.0, lambda: self._be_gone(job, end))

    def _be_gone(self, job: _Job, end: End) -> None:
        trace, began_at = job.live.trace, job.began_at
        assert began_at is not None
        held_gpu_s = sum(share.workers for share in job.base) * job.gpus_each * (self._now - began_at)
        satellites_gpu_s = job.gpu_s + sum(self._held_gpu_s(job, each) for each in job.satellites.values())
        record = job.live.record(end, self._now)
        self._ended[trace.job_id] = replace(record, gpu_s=held_gpu_s + satellites_gpu_s)
        del self._jobs[trace.job_id]
        self._after(self._times.free_s, lambda: self._free(trace.job_id))

    def _free(self, job_id: int) -> None:
        """Release the GPUs of a job that has ended, and let Slurm start others."""
        self._slurm.remove(job_id)
        self._start_jobs()

    # flexod, and the leaders that report to it.

    def _booted(self, job: _Job, restarts: int) -> None:
        """Record that the job's script trains. Its leader has told flexod, which polls the cluster at
        once."""
        if job.restarts != restarts or not job.base:
            return
        job.booted = True
        if not self._looking:
            self._looking = True
            self._look()

    def _look(self) -> None:
        self._controller.turn()
        self._looking = self._always_looks or any(job.booted for job in self._jobs.values())
        if self._looking:
            self._after(self._times.look_s, self._look)

    def _reports(self) -> tuple[LeaderReport, ...]:
        return tuple(self._report(job) for job in self._jobs.values() if job.booted and not job.over)

    def _report(self, job: _Job) -> LeaderReport:
        trace = job.live.trace
        job.live.advance(self._now)
        left, whole = job.live.run.remaining_work(), trace.training.begin().remaining_work()
        satellites = tuple(
            SatelliteReport(each.job_id, grant_id, each.offer.node, each.offer.workers, each.state)
            for grant_id, each in job.satellites.items()
        )
        trains = [each.workers for each in satellites if each.state is SatelliteState.TRAINING]
        return LeaderReport(
            key=job.key,
            owner=NOBODY,
            workers=trace.workers,
            shape=trace.shape,
            base_nodes=tuple(share.node for share in job.base),
            training_workers=trace.workers.min + sum(trains),
            generation=0,
            batches_committed=0,
            scalable=True,
            satellites=satellites,
            progress=1 - left / whole if left is not None and whole else 0.0,
        )

    def _obey(self, key: JobKey, orders: Orders) -> None:
        """Let a leader make the grants that stand real, and end all other satellites."""
        job = self._jobs.get(key.job_id)
        if job is None or job.over or key != job.key or not job.base:
            return
        standing = {offer.grant_id for offer in orders.grants}
        for grant_id, satellite in tuple(job.satellites.items()):
            if grant_id not in standing:
                self._send_away(job, satellite)
        for offer in orders.grants:
            if offer.grant_id not in job.satellites.keys() | job.refused:
                self._submit_satellite(job, offer)

    # Satellites.

    def _submit_satellite(self, job: _Job, offer: GrantOffer) -> None:
        satellite = _Satellite(self._next_id, offer, self._now + self._times.satellite_s)
        self._next_id += 1
        job.satellites[offer.grant_id] = satellite
        self._slurm.submit_satellite(
            satellite.job_id, job.key, offer.grant_id, offer.node, offer.workers, offer.time_limit_s
        )
        self._after(self._times.satellite_s, self._start_jobs)
        self._after(self._times.satellite_s + offer.start_within_s, lambda: self._give_up(job, satellite))

    def _start_satellite(self, job: _Job, satellite: _Satellite) -> None:
        """Start the satellite, if it waits and its node has room for it."""
        if satellite.state is not SatelliteState.PENDING or self._now < satellite.ready_at:
            return
        if self._slurm.may_start(satellite.job_id) and self._slurm.begin(satellite.job_id):
            satellite.state, satellite.runs_since = SatelliteState.WARMING, self._now
            self._after(self._times.warm.of(satellite.offer.workers), lambda: self._join(job, satellite))

    def _join(self, job: _Job, satellite: _Satellite) -> None:
        if satellite.state is SatelliteState.WARMING and not job.over and job.base:
            satellite.state = SatelliteState.TRAINING
            self._reshare(job)

    def _give_up(self, job: _Job, satellite: _Satellite) -> None:
        """Cancel a satellite that has not started in time; its leader gives the grant back."""
        if satellite.state is SatelliteState.PENDING:
            self._refuse(job, satellite, FailureReason.NOT_STARTED)
            self._send_away(job, satellite)

    def _refuse(self, job: _Job, satellite: _Satellite, reason: FailureReason) -> None:
        if satellite.state is not SatelliteState.LEAVING and not job.over:
            job.refused.add(satellite.offer.grant_id)
            self._leaders.fail(GrantFailure(job.key, satellite.offer.grant_id, reason, reason.value))

    def _send_away(self, job: _Job, satellite: _Satellite) -> None:
        """Let a satellite's workers leave; then its GPUs are free. If it has not started, it ends at once."""
        state = satellite.state
        if state is SatelliteState.LEAVING:
            return
        satellite.state = SatelliteState.LEAVING
        if state is SatelliteState.PENDING:
            self._satellite_gone(job, satellite)
            return
        self._slurm.let_go(satellite.job_id)
        if state is SatelliteState.TRAINING and not job.over and job.base:
            self._reshare(job)
        self._after(self._times.leave_s, lambda: self._satellite_left(job, satellite))

    def _satellite_left(self, job: _Job, satellite: _Satellite) -> None:
        self._satellite_gone(job, satellite)
        self._start_jobs()

    def _satellite_gone(self, job: _Job, satellite: _Satellite) -> None:
        if job.satellites.pop(satellite.offer.grant_id, None) is not None:
            job.gpu_s += self._held_gpu_s(job, satellite)
        self._slurm.remove(satellite.job_id)

    def _held_gpu_s(self, job: _Job, satellite: _Satellite) -> float:
        """GPU seconds that a satellite has held so far."""
        since = self._now if satellite.runs_since is None else satellite.runs_since
        return satellite.offer.workers * job.gpus_each * (self._now - since)
