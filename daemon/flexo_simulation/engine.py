"""The simulation's engine: discrete events in virtual time, under the controller of flexod and any policy.

Events: jobs arrive and end, time limits run out, jobs outrun their estimates, and runs announce a change of
speed. The policy or lending may ask to be called again. After these events, or at multiples of
`Scenario.interval_s`, the controller runs one cycle. A job that pays for a start or a change holds its GPUs
and does not train.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

from flexo.clusters.simulated.cluster import SimulatedCluster
from flexo.clusters.simulated.nodes import make_nodes
from flexo.config import Settings
from flexo.controller import Controller
from flexo.model.measured import Source
from flexo.model.plans import Allocate
from flexo.model.training import TrainingJob
from flexo.policies.base import Policy
from flexo_simulation.capacity import Capacity
from flexo_simulation.costs import Costs
from flexo_simulation.estimates import Estimator
from flexo_simulation.inference_side import InferenceSide
from flexo_simulation.live_job import LiveJob
from flexo_simulation.loan_story import LoanStory
from flexo_simulation.on_slurm.world import simulate_on_slurm
from flexo_simulation.pairs import utilization_of
from flexo_simulation.records import End, JobRecord
from flexo_simulation.results import SimulatedRun, summarize
from flexo_simulation.scenario import Scenario
from flexo_simulation.seats import Seats
from flexo_simulation.silence import NoEventStore, NoLeaders
from flexo_simulation.true_paces import TruePaces
from flexo_simulation.workload import TraceJob, Workload

Progress = Callable[[int, int], None]
"""Called now and then with the number of jobs whose story has ended, and the number of all jobs."""

_PROGRESS_EVERY: Final = 256
"""Instants between two calls of `Progress`."""
_MOST_AT_ONCE: Final = 10_000
"""The most events at one instant, in addition to one for each job."""
_MOST_PREEMPTIONS: Final = 1000
"""The most preemptions, for each job that waits or runs, while none ends. Beyond it, jobs take turns without
progress."""
_SAME_S: Final = 1e-6
"""Two instants that are nearer than this are one, because sums of times are not exact."""
_STALLED_S: Final = 86400.0
"""Seconds after which a simulation ends if all jobs have come, none trains, and the policy changes
nothing."""


class SimulationStuck(RuntimeError):
    """The error of a simulation that would go on for ever; the message says why."""


def simulate(
    workload: Workload, policy: Policy, scenario: Scenario, progress: Progress | None = None
) -> SimulatedRun:
    """Run `workload` to its end under `policy`.

    Raises ImpossiblePlan if the policy asks for the impossible, and whatever the policy raises. Raises
    SimulationStuck if jobs run for ever, or have workers with which they cannot train. Raises ValueError if
    the workload's jobs are not in the order of submission, or two have the same number.
    """
    _check(workload)
    if scenario.on_slurm is not None:
        return simulate_on_slurm(workload, policy, scenario, scenario.on_slurm, progress)
    begun = time.perf_counter()
    world = _World(workload, policy, scenario)
    world.run(progress or (lambda ended, jobs: None))
    records = world.records()
    loans = world.loan_story()
    result = summarize(
        records,
        world.gpus,
        loans,
        nodes=make_nodes(scenario.nodes),
        wall_s=time.perf_counter() - begun,
        events=world.events,
        oracle=policy.oracle or (world.told_truth and policy.uses_running_times),
    )
    return SimulatedRun(policy.name, result, records, world.gpus, loans)


def _check(workload: Workload) -> None:
    jobs = workload.jobs
    if len({job.job_id for job in jobs}) < len(jobs):
        raise ValueError(f"two jobs of {workload.name} have the same number")
    if any(job.submitted_at > after.submitted_at for job, after in pairwise(jobs)):
        raise ValueError(f"the jobs of {workload.name} are not in the order of submission")


class _World:
    """One simulation under way. Mutable."""

    def __init__(self, workload: Workload, policy: Policy, scenario: Scenario) -> None:
        nodes = make_nodes(scenario.nodes)
        self.gpus = sum(node.gpus for node in nodes)
        self.events = 0
        """The number of events of jobs, and of decisions at ticks."""
        self.told_truth = False
        """Whether policies were told a running time that no scheduler can know."""
        self._scenario = scenario
        self._now = 0.0
        self._jobs = workload.jobs
        self._arrived = 0
        """The number of `_jobs` that have arrived."""
        self._live: dict[int, LiveJob] = {}
        """Jobs that wait or run, by number."""
        self._unsteady: dict[int, LiveJob] = {}
        """Running jobs that are advanced at every decision, by number."""
        self._ended: dict[int, JobRecord] = {}
        self._due: list[tuple[float, int, int]] = []
        """A heap of (when, job, version): the next updates of jobs. An entry is void if its job has another
        version by now."""
        self._preempted = 0
        """The number of preemptions since a job last ended."""
        self._changed_at = 0.0
        """Time when a job last arrived, ended, or was given or refused something."""
        self._news = False
        """Whether something that calls for a decision has happened since the last decision."""
        self._wanted_at = math.inf
        """Time at which the policy or lending has to be asked even if nothing has happened."""
        self._estimator = Estimator(scenario.estimates)
        servers = scenario.inference.nodes_to_lend if scenario.inference else ()
        self._capacity = Capacity((*nodes, *servers))
        self._paces = TruePaces((*nodes, *servers), scenario.gpu_speeds)
        self._seats = Seats((*nodes, *servers), scenario.sharing)
        self._cluster = SimulatedCluster(nodes, self, self._clock, scenario.quotas, servers)
        self._inference = InferenceSide(scenario.inference, self._cluster) if scenario.inference else None
        self._controller = Controller(
            Settings(),
            self._cluster,
            NoLeaders(),
            NoEventStore(),
            policy=policy,
            lending=self._inference.lending if self._inference else None,
            clock=self._clock,
        )

    def run(self, progress: Progress) -> None:
        """Handle all events, until nothing can happen any more."""
        for turn, at in enumerate(self._instants()):
            self._happen_until(at)
            self._now = at
            for job in tuple(self._unsteady.values()):
                self._look_at(job)
            if self._news or at >= self._wanted_at:
                self._decide()
                self._give_back()
            if turn % _PROGRESS_EVERY == 0:
                progress(len(self._ended), len(self._jobs))
        progress(len(self._ended), len(self._jobs))
        self._raise_if_stuck()

    def _raise_if_stuck(self) -> None:
        """Raise SimulationStuck if a job still has workers: nothing more happens, so it cannot train with
        them."""
        held = [job for job in self._live.values() if job.allocated]
        if held:
            names = ", ".join(f"{job.trace.job_id} with {job.allocated} workers" for job in held)
            raise SimulationStuck(
                f"at {self._now:.0f} s no job that runs can train with its workers, and the policy changes"
                f" nothing: {names}"
            )

    def _decide(self) -> None:
        self._news = False
        self._look_at_inference()
        self._controller.turn()
        again_at = self._controller.again_at
        self._wanted_at = math.inf if again_at is None else again_at
        if self._inference is not None:
            self._wanted_at = min(self._wanted_at, self._inference.again_at)
            self._look_at_inference()

    def _give_back(self) -> None:
        """Let empty servers return, and take servers whose deadlines are over."""
        if self._inference is None:
            return
        overdue = self._inference.take_overdue(self._now)
        if self._inference.vacated() or overdue:
            self._decide()

    def _look_at_inference(self) -> None:
        if self._inference is not None:
            self._inference.look(self._now)

    def loan_story(self) -> LoanStory | None:
        """The story of the inference cluster's servers, if there is one."""
        return self._inference.story() if self._inference else None

    def records(self) -> tuple[JobRecord, ...]:
        """The record of every job, in the order of submission; jobs that still wait have never started."""
        return tuple(
            self._ended.get(job.job_id) or self._live[job.job_id].record(End.NEVER_STARTED, None)
            for job in self._jobs
        )

    def _clock(self) -> float:
        return self._now

    # The instants of decisions.

    def _instants(self) -> Iterator[float]:
        interval_s = self._scenario.interval_s
        return self._each_event() if interval_s is None else self._ticks(interval_s)

    def _each_event(self) -> Iterator[float]:
        while (at := min(self._next_at(), self._wanted_at)) < math.inf:
            if self._inference is not None and (self._is_over() or self._is_stalled()):
                return
            yield at

    def _ticks(self, interval_s: float) -> Iterator[float]:
        number = 0
        while not self._is_stalled():
            if not self._live:
                arrives_at = self._arrives_at()
                if arrives_at == math.inf:
                    return
                number = max(number, math.ceil(arrives_at / interval_s))
            self.events += 1
            self._news = True
            yield number * interval_s
            number += 1

    def _is_over(self) -> bool:
        return self._arrived == len(self._jobs) and not self._live

    def _is_stalled(self) -> bool:
        """Whether all jobs have come, nothing happens any more, and no job can train with its workers."""
        if self._arrived < len(self._jobs) or self._now - self._changed_at <= _STALLED_S:
            return False
        return all(job.next_at() == math.inf for job in self._live.values())

    def _arrives_at(self) -> float:
        return self._jobs[self._arrived].submitted_at if self._arrived < len(self._jobs) else math.inf

    def _next_at(self) -> float:
        """The time of the next event."""
        due = self._due
        while due and self._is_void(due[0]):
            heapq.heappop(due)
        return min(self._arrives_at(), due[0][0] if due else math.inf)

    def _is_void(self, entry: tuple[float, int, int]) -> bool:
        job = self._live.get(entry[1])
        return job is None or job.version != entry[2]

    # Events.

    def _happen_until(self, until: float) -> None:
        """Handle all events up to and at `until`, each at its own instant."""
        at_once = 0
        while (at := self._next_at()) <= until:
            at_once = at_once + 1 if at == self._now else 0
            if at_once > _MOST_AT_ONCE + len(self._jobs):
                raise SimulationStuck(f"something happens for ever at {at} s, to job {self._due[0][1]}")
            self._now = at
            self.events += 1
            if self._due and self._due[0][0] == at:
                _, number, _ = heapq.heappop(self._due)
                self._live[number].due_at = math.inf
                self._look_at(self._live[number])
            else:
                self._arrive(self._jobs[self._arrived])
                self._arrived += 1

    def _arrive(self, trace_job: TraceJob) -> None:
        self._changed_at, self._news = self._now, True
        job = LiveJob(trace_job, utilization_of(trace_job.model, self._scenario.sharing.utilization))
        if not self._capacity.holds(trace_job):
            self._ended[trace_job.job_id] = job.record(End.NEVER_FITS, None)
            return
        self._live[trace_job.job_id] = job
        self._cluster.submit(self._picture(job))

    def _look_at(self, job: LiveJob) -> None:
        """Advance a running job to the present. The job ends, or policies get a new picture of it."""
        at = job.advance(self._now)
        if job.run.finished:
            job.tell_history(self._estimator)
            self._end(job, End.FINISHED, at)
        elif self._scenario.limits_end_jobs and job.limit_at() <= self._now:
            self._end(job, End.LIMIT, self._now)
        else:
            self._news |= not job.steady
            self._cluster.renew(self._picture(job))
            self._plan_ahead(job)

    def _picture(self, job: LiveJob) -> TrainingJob:
        """The job as policies see it, with the present estimate."""
        job.estimate(self._estimator)
        seen = job.picture(self._costs_of(job), self._scenario.checkpoints)
        self.told_truth |= seen.source is Source.ORACLE and seen.remaining_work is not None
        return seen

    def _costs_of(self, job: LiveJob) -> Costs:
        return self._scenario.costs if job.trace.costs is None else job.trace.costs

    def _end(self, job: LiveJob, end: End, at: float) -> None:
        self._cluster.end(job.key)
        self._go_on(self._seats.leave(job.trace.job_id))
        if job.on_loan:
            self._look_at_inference()
        self._forget(job, end, at)

    def _forget(self, job: LiveJob, end: End, at: float) -> None:
        number = job.trace.job_id
        self._changed_at, self._news = self._now, True
        self._preempted = 0
        self._live.pop(number)
        self._unsteady.pop(number, None)
        self._ended[number] = job.record(end, at)

    def _plan_ahead(self, job: LiveJob) -> None:
        """Schedule the next update of a job, in place of the earlier schedule."""
        seen_at_ticks = self._scenario.interval_s is not None and not job.steady
        at = math.inf if seen_at_ticks else job.next_at()
        if self._scenario.limits_end_jobs:
            at = min(at, job.limit_at())
        if abs(at - job.due_at) <= _SAME_S:
            return
        job.due_at = at
        job.version += 1
        if at < math.inf:
            heapq.heappush(self._due, (at, job.trace.job_id, job.version))

    # The calls of the cluster (Trainer).

    def reshare(self, seen: TrainingJob, allocation: Allocate) -> TrainingJob:
        """Give a job the shares of `allocation` from now on."""
        job, checkpoints = self._live[seen.key.job_id], self._scenario.checkpoints
        pace = self._paces.of(job.trace, allocation.shares)
        job.reshare(self._now, allocation.shares, pace, allocation.samples, self._costs_of(job), checkpoints)
        job.guaranteed, job.second = allocation.guaranteed, allocation.shared
        others = self._seats.sit(seen.key.job_id, job.seated())
        if (beside := self._seats.of(seen.key.job_id)) != job.beside:
            job.go_on_beside(self._now, beside)
        self._go_on(others)
        if self._inference is not None:
            self._inference_sees(job, seen, allocation)
        self._changed_at = self._now
        if not allocation.shares:
            self._unsteady.pop(seen.key.job_id, None)
            self._count_preemption()
        elif not job.steady:
            self._unsteady[seen.key.job_id] = job
        seen = self._picture(job)
        self._plan_ahead(job)
        return seen

    def _go_on(self, numbers: Iterable[int]) -> None:
        """Let these jobs train with what they have of the others now."""
        for number in numbers:
            job = self._live[number]
            job.go_on_beside(self._now, self._seats.of(number))
            self._cluster.renew(self._picture(job))
            self._plan_ahead(job)

    def _count_preemption(self) -> None:
        self._preempted += 1
        if self._preempted > _MOST_PREEMPTIONS * len(self._live):
            raise SimulationStuck(
                f"at {self._now:.0f} s the policy has preempted jobs {self._preempted:,} times"
                f" since the last one ended; {len(self._live):,} are there, and none gets on"
            )

    def _inference_sees(self, job: LiveJob, seen: TrainingJob, allocation: Allocate) -> None:
        assert self._inference is not None
        if not allocation.shares:
            self._inference.preempted(seen)
        elif not job.on_loan:
            job.on_loan = self._inference.hosts(allocation.shares)

    def drop(self, seen: TrainingJob) -> None:
        """Refuse a job for good."""
        self._forget(self._live[seen.key.job_id], End.DROPPED, self._now)
