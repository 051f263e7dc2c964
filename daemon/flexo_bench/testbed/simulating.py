"""The schemes of the testbed, and the testbed in the simulator, with the delays that the lab has shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.loaning.orchestrator import Rules
from flexo.loaning.reclaim_steps import Timing
from flexo.policies.gpu_speeds import GpuSpeeds
from flexo.policies.lyra import Lyra
from flexo_bench.fidelity.calibration import Calibration
from flexo_bench.fidelity.running import NOTHING, Life
from flexo_bench.fidelity.workload import Job, simulated
from flexo_bench.testbed import running, workload
from flexo_bench.testbed.figures import Course, Loans
from flexo_bench.testbed.workload import GPUS_EACH, SERVERS, Need
from flexo_lab import LabSpec
from flexo_simulation.demand_trace import DemandTrace
from flexo_simulation.engine import simulate
from flexo_simulation.inference import Inference
from flexo_simulation.loan_story import loan_figures
from flexo_simulation.on_slurm.times import SlurmTimes
from flexo_simulation.records import JobRecord
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario

GRACE_S, KILL_WAIT_S, AGAIN_S = 20.0, 10.0, 30.0
"""GraceTime of the lab's partitions of lent servers, its KillWait and its cred_expire."""
EDIT_INTERVAL_S = 5.0
"""edit_interval_s of a lab that lends."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme of the slides' table."""

    lends: bool
    spec: LabSpec
    loaning: Mapping[str, str]
    jobs: Callable[[tuple[Job, ...]], tuple[Job, ...]]
    """Makes the scheme's jobs of those that are drawn."""


SCHEMES = {
    "baseline": Scheme(False, running.BASELINE_SPEC, NOTHING, workload.rigid),
    "basic": Scheme(True, running.LENDING_SPEC, running.LOANING, workload.as_drawn),
}


def simulated_course(
    jobs: tuple[Job, ...], needs: tuple[Need, ...], scheme: Scheme, found: Calibration
) -> Course:
    """Simulate the jobs of a scheme. `found`: delays and speeds of the lab."""
    scenario = Scenario(
        (NodeGroup(running.NODES, running.GPUS, "v100", "t"),),
        gpu_speeds=GpuSpeeds({"t4": 1 / jobs[0].slower_on_loan}),
        checkpoints=False,
        inference=inference_of(needs, scheme) if scheme.lends else None,
        on_slurm=times_of(found.times),
    )
    outcome = simulate(simulated(jobs, found.speed), Lyra(saved="parts"), scenario)
    lives = tuple(_life(job, record) for job, record in zip(jobs, outcome.records, strict=True))
    return Course(lives, _loans(outcome, jobs[-1].at_s) if scheme.lends else None)


@dataclass(frozen=True, slots=True)
class Variant:
    """Scheme Basic in the simulator, with other jobs than in the lab."""

    what: str
    courses: tuple[Course, ...]
    """One for each seed."""

    @property
    def uses(self) -> tuple[float, ...]:
        """Use of servers on loan."""
        return tuple(course.loans.use for course in self.courses if course.loans is not None)

    @property
    def preempted(self) -> tuple[float, ...]:
        """Preemptions of bases over jobs."""
        return tuple(course.preempted for course in self.courses)


def variants(seeds: Sequence[int], seconds: float, jobs: int, found: Calibration) -> Iterator[Variant]:
    """Simulate scheme Basic with other jobs: what do use and preemption of servers on loan come from?"""
    changes: Mapping[str, Callable[[Job], Job]] = {
        "as in the lab": lambda job: job,
        "all jobs fungible": lambda job: replace(job, fungible=True),
        "all jobs twice as long": _twice,
        "all jobs fungible and twice as long": lambda job: replace(_twice(job), fungible=True),
        "T4 as fast as V100": lambda job: replace(job, slower_on_loan=1),
    }
    drawn = {seed: workload.draw(seed, seconds, jobs) for seed in seeds}
    for what, change in changes.items():
        courses = (
            simulated_course(
                tuple(map(change, drawn[seed])), workload.needs(seed, seconds), SCHEMES["basic"], found
            )
            for seed in seeds
        )
        yield Variant(what, tuple(courses))


def _twice(job: Job) -> Job:
    return replace(job, epochs=2 * job.epochs, seconds=2 * job.seconds)


def times_of(measured: SlurmTimes) -> SlurmTimes:
    """The measured times, and those that the lab's configuration gives."""
    return replace(measured, order="policy", evict_s=KILL_WAIT_S, grace_s=GRACE_S, again_s=AGAIN_S)


def inference_of(needs: tuple[Need, ...], scheme: Scheme) -> Inference:
    """The inference cluster, with the rules of lending of the lab."""
    said = {key: float(value) for key, value in scheme.loaning.items()}
    demand = DemandTrace(
        "the testbed's day", tuple(need.at for need in needs), tuple(float(need.servers) for need in needs)
    )
    return Inference(
        servers=NodeGroup(SERVERS, GPUS_EACH, "t4", "i"),
        demand=demand,
        rules=Rules(
            most_per_interval=int(said["most_per_interval"]),
            interval_s=said["interval_s"],
            rest_s=said["rest_s"],
            hysteresis_servers=0.0,
            reclaim_s=said["reclaim_s"],
        ),
        timing=Timing(said["save_within_s"], said["preempt_within_s"], said["force_within_s"]),
        edit_interval_s=EDIT_INTERVAL_S,
        forecast=False,
    )


def _life(job: Job, record: JobRecord) -> Life:
    assert record.first_start_at is not None
    assert record.ended_at is not None
    held = [(each.at, each.workers) for each in record.timeline if each.workers]
    # a preemption is no scaling: only the sizes with which it ran count
    sizes = tuple(each for before, each in zip([(0.0, 0), *held], held, strict=False) if before[1] != each[1])
    return Life(job, job.at_s, record.first_start_at, record.ended_at, sizes, record.preemptions)


def _loans(outcome: SimulatedRun, until: float) -> Loans:
    assert outcome.loans is not None
    figures = loan_figures(outcome.loans, outcome.records, outcome.gpus, (0.0, until))
    return Loans(
        use=figures.on_loan_use,
        loans=figures.loans,
        reclaims=figures.reclaims,
        servers_reclaimed=figures.servers_reclaimed,
        jobs_on_loan=figures.jobs_on_loan,
        away_share=figures.server_hours * 3600 / (SERVERS * until),
    )
