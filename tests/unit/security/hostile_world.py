"""A cluster on which one user does whatever Slurm permits, and its twin in which he claims nothing.

Both have the same honest users. In the twin his leader does what flexod says. His elastic job is capped
there at what it really holds here, and jobs without a comment hold what his other jobs really hold.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from controller_world import ADA, BOB, FakeLeader, World, slurm_job
from flat_records import change_job

from flexo.control.leaders import GrantOffer
from flexo.controller import Controller
from flexo.model.elastic import FailureReason, GrantFailure, LeaderReport, SatelliteReport
from flexo.model.queue import JobKey, JobState, QueuedJob, SatelliteTag

TIME_LIMIT_S: Final = 60
CYCLE_S: Final = 5.0
VICTIM, HIS = JobKey(1), JobKey(2)
FIRST_OF_HIS: Final = 100_000
"""Slurm's number of the first job that he submits by himself."""
HELD: Final = "JobHeldUser"
NODES: Final = tuple(f"t{number}" for number in range(1, 14))


class HostileLeader(FakeLeader):
    """Does as it is told until a test has it do something else."""

    def __init__(self, cluster, base) -> None:
        super().__init__(cluster, base)
        self.claims: tuple[SatelliteReport, ...] | None = None
        """What it reports instead of what it has."""
        self.renews = False
        """Its claims have new names every 40 s."""
        self.cancels = True
        self.gives_back: FailureReason | None = None
        """Why it gives every grant back that it has had for `after_s` and not submitted."""
        self.after_s = 0.0
        self.offered: dict[str, GrantOffer] = {}
        """All grants that it ever heard."""
        self.heard_at: dict[str, float] = {}
        """When it first heard each."""

    def hear(self, orders) -> None:
        self.offered |= {offer.grant_id: offer for offer in orders.grants}
        for offer in orders.grants:
            self.heard_at.setdefault(offer.grant_id, self.cluster.now)
        if not self.cancels:
            for grant_id in self.own.keys() - {offer.grant_id for offer in orders.grants}:
                self.own.pop(grant_id)
        super().hear(orders)

    def take_failures(self) -> list[GrantFailure]:
        """What it gives back in this cycle."""
        standing = self.told[-1] if self.told else ()
        unused = [offer.grant_id for offer in standing if offer.grant_id not in self.own]
        return [
            GrantFailure(self.key, grant_id, self.gives_back, "as he likes")
            for grant_id in unused
            if self.gives_back and self.cluster.now - self.heard_at[grant_id] >= self.after_s
        ]

    def report(self) -> LeaderReport:
        report = super().report()
        if self.claims is None:
            return report
        since = f".{self.cluster.now // 40:.0f}" if self.renews else ""
        claims = tuple(replace(told, grant_id=told.grant_id + since) for told in self.claims)
        return replace(report, satellites=claims)


class HostileWorld(World):
    """Nodes of one GPU, so that any idle GPU is as good as another; two honest jobs, and his."""

    def __init__(self, directory: Path, *, honest: bool) -> None:
        """`honest`: this is the twin."""
        self.honest = honest
        self.extended: dict[tuple[JobKey, str], int] = {}
        self.numbers = 0
        super().__init__(directory, min_resize_interval_s=0.0, time_limit_s=TIME_LIMIT_S, start_within_s=15)
        self.cluster.sizes = dict.fromkeys(NODES, 1)
        self.cluster.starts_in_a_turn = 4
        self.victims = [self.job(1, "1-12", "t1"), self.job(3, "1-3", "t2")]
        for leader in self.victims:
            leader.scalable = False  # they grow later
        self.his = HostileLeader(self.cluster, self.cluster.base(2, "1-12", "t3", owner=BOB, user="bob"))
        self.leaders.attached[HIS] = self.his
        self.base = self.cluster.queue[HIS.job_id]

    def new_controller(self, **more: Any) -> Controller:
        ids = iter(range(10**6))
        life = f"{'t' if self.honest else 'h'}{self.numbers}"
        self.numbers += 1
        return super().new_controller(new_grant_id=lambda: f"{life}-{next(ids)}", **more)

    def lose_event_store(self) -> None:
        """flexod begins anew, and has only what leaders show it."""
        self.event_store.close()
        for path in self.directory.glob("journal.sqlite*"):
            path.unlink()
        self.restart()

    # What he has in Slurm beside what his leader submits.

    def submit(self, job_id: int, tag: SatelliteTag | None, node: str, gpus: int, **changes: object) -> None:
        plain = slurm_job(
            job_id,
            BOB,
            partitions=("flex",),
            state=JobState.PENDING,
            reason="None",
            submitted_at=self.cluster.now,
            started_at=None,
            time_limit_s=TIME_LIMIT_S,
            required_nodes=frozenset({node}),
            gpus=gpus,
            cpus=max(1, gpus),
            satellite=tag,
        )
        self.cluster.add(change_job(plain, **changes))

    def own_jobs(self) -> list[QueuedJob]:
        return [job for job in self.cluster.queue.values() if job.job_id >= FIRST_OF_HIS]

    def change(self, job: QueuedJob, **changes: object) -> None:
        self.cluster.add(change_job(job, **changes))

    def do_as(self, hostile: HostileWorld) -> None:
        """In the twin: the same jobs of his, without comments. They hold here what they hold there, and his
        elastic job is to have no more than it really holds there.
        """
        self.cap_his_job(
            hostile.he_holds() - sum(job.resources.gpus for job in hostile.own_jobs() if job.nodes)
        )
        theirs = {job.job_id: replace(job, satellite=None) for job in hostile.own_jobs()}
        before = {job.job_id: self.cluster.queue.pop(job.job_id) for job in self.own_jobs()}
        for job in theirs.values():
            # one that began there since the last look may have to begin elsewhere here
            here = before.get(job.job_id)
            runs = here is not None and here.nodes and here.state is not JobState.PENDING
            if job.state is JobState.PENDING or runs:
                self.cluster.add(replace(job, nodes=here.nodes if here and job.nodes else ()))
                continue
            for node in sorted(self.cluster.sizes, key=lambda name: (name not in job.nodes, name)):
                if self.cluster.sizes[node] - self.cluster.held(node) >= job.resources.gpus:
                    self.cluster.add(replace(job, nodes=(node,)))
                    break

    def cap_his_job(self, workers: int) -> None:
        """As its owner would, by `flexo scale`."""
        for view in self.controller.jobs():
            workers = view.job.workers.clamp(workers)
            if view.job.key == self.base.key and view.job.wanted != workers:
                self.controller.scale(view.job.key, workers)

    def cycle(self) -> None:
        if isinstance(self.his, HostileLeader) and self.his.key in self.leaders.attached:
            self.leaders.failures += self.his.take_failures()
        before, queue = len(self.cluster.extended), dict(self.cluster.queue)
        self.controller.cycle()
        for job_id, _ in self.cluster.extended[before:]:
            self.check_granted(queue[job_id])
        self.cluster.pass_time(CYCLE_S)

    def check_granted(self, job: QueuedJob) -> None:
        """A job that is extended is what flexod told a leader that it may submit, and the only one."""
        assert job.satellite is not None
        if job.owner != BOB or self.honest:
            return
        offer = self.his.offered.get(job.satellite.grant_id)
        assert offer is not None, f"job {job.job_id} is extended, and flexod never granted it"
        assert offer.grant_id.startswith("h"), f"job {job.job_id} is extended, and flexod never granted it"
        assert job.nodes == (offer.node,), (
            f"job {job.job_id} is extended on {job.nodes} instead of {offer.node}"
        )
        assert job.resources.gpus == offer.workers, (
            f"job {job.job_id} is extended with {job.resources.gpus} GPUs"
        )
        first = self.extended.setdefault((job.satellite.base, job.satellite.grant_id), job.job_id)
        assert first == job.job_id, f"jobs {first} and {job.job_id} are extended for one grant"

    # How things stand.

    def workers(self) -> int:
        """Of all honest jobs, in satellites that run."""
        return sum(
            job.resources.gpus
            for job in self.cluster.queue.values()
            if job.satellite is not None and job.owner == ADA and job.state is JobState.RUNNING
        )

    def he_holds(self) -> int:
        """GPUs of all his jobs."""
        return sum(
            job.resources.gpus
            for job in self.cluster.queue.values()
            if job.owner == BOB and job.state is not JobState.PENDING
        )
