"""Random small clusters that carry plans out, and what must hold of every plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from flat_records import change_job, change_node
from hypothesis import strategies as st
from small_clusters import NOW, elastic, node, pending, satellites_of, snapshot

from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.nodes import Node
from flexo.model.plans import Grow, Plan, Shrink, Snapshot
from flexo.model.queue import QueuedJob
from flexo_protos.resources import Resources

REST_S = 60.0
STEP_S = 20.0


class World:
    """A cluster that does what a plan says: satellites start, and leave one step after they are told to."""

    def __init__(self, nodes: list[Node], jobs: list[ElasticJob], queue: list[QueuedJob]) -> None:
        self.now = NOW
        self.nodes = nodes
        self.jobs = {job.key: job for job in jobs}
        self.queue = queue
        self.grants = 0

    def snapshot(self) -> Snapshot:
        held: dict[str, Counter[str]] = {each.name: Counter() for each in self.nodes}
        for job in self.jobs.values():
            for grant in job.grants:
                held[grant.node] += Counter(
                    gpus=grant.workers * job.shape.gpus,
                    cpus=grant.workers * job.shape.cpus,
                    memory=grant.workers * job.shape.memory_mib,
                )
        nodes = [
            change_node(
                each,
                gpus_allocated=each.allocated.gpus + held[each.name]["gpus"],
                cpus_allocated=each.allocated.cpus + held[each.name]["cpus"],
                memory_allocated_mib=each.allocated.memory_mib + held[each.name]["memory"],
            )
            for each in self.nodes
        ]
        seen = snapshot(nodes, list(self.jobs.values()), self.queue, at=self.now)
        satellites = tuple(
            change_job(satellite, memory_mib=satellite.satellite.workers * job.shape.memory_mib)
            for job in self.jobs.values()
            for satellite in satellites_of(job)
        )
        return replace(seen, jobs=(*self.queue, *satellites))

    def carry_out(self, decided: Plan) -> None:
        self.now += STEP_S
        for key, job in self.jobs.items():
            stay = tuple(grant for grant in job.grants if grant.state is not SatelliteState.LEAVING)
            self.jobs[key] = replace(job, grants=stay)
        for action in decided.actions:
            job = self.jobs[action.job]
            if isinstance(action, Grow):
                self.grants += 1
                grant = Grant(
                    f"w{self.grants}",
                    job.key,
                    action.node,
                    action.workers,
                    action.partition,
                    self.now,
                    SatelliteState.TRAINING,
                    100_000 + self.grants,
                )
                grants = (*job.grants, grant)
            else:
                grants = tuple(
                    replace(grant, state=SatelliteState.LEAVING)
                    if grant.grant_id == action.grant_id
                    else grant
                    for grant in job.grants
                )
            self.jobs[action.job] = replace(job, grants=grants, last_resize_at=self.now)


def check_is_safe(seen: Snapshot, decided: Plan) -> None:
    """Nothing granted twice, no job below its minimum or above its ceiling, only its own grants taken."""
    free = {
        each.name: Counter(
            gpus=each.gpus - each.allocated.gpus,
            cpus=each.capacity.cpus - each.allocated.cpus,
            memory=each.capacity.memory_mib - each.allocated.memory_mib,
        )
        for each in seen.nodes
    }
    jobs = {job.key: job for job in seen.elastic}
    sizes = {key: job.granted_workers for key, job in jobs.items()}
    for action in decided.actions:
        job = jobs[action.job]
        if isinstance(action, Shrink):
            grant = next(grant for grant in job.grants if grant.grant_id == action.grant_id)
            assert grant.state is not SatelliteState.LEAVING
            sizes[action.job] -= grant.workers
            continue
        assert action.workers > 0
        assert action.node not in {grant.node for grant in job.grants}
        free[action.node].subtract(
            gpus=action.workers * job.shape.gpus,
            cpus=action.workers * job.shape.cpus,
            memory=action.workers * job.shape.memory_mib,
        )
        sizes[action.job] += action.workers
        assert seen.at >= job.last_resize_at + REST_S or not job.last_resize_at
    assert all(amount >= 0 for amounts in free.values() for amount in amounts.values())
    for key, size in sizes.items():
        assert size >= jobs[key].base_workers
        assert size <= max(jobs[key].ceiling, jobs[key].granted_workers)
    assert {note.job for note in decided.notes} == set(jobs)


def run(world: World, steps: int, planned: Callable[[Snapshot], Plan]) -> int:
    """Go on until nothing has changed for longer than any job rests; the number of steps that took."""
    quiet = 0
    for step in range(steps):
        seen = world.snapshot()
        decided = planned(seen)
        check_is_safe(seen, decided)
        world.carry_out(decided)
        quiet = 0 if decided.actions else quiet + 1
        if quiet * STEP_S > REST_S + STEP_S:
            return step
    raise AssertionError(f"still changing after {steps} steps: {decided.actions}")


@st.composite
def nodes_of(draw):
    return [
        node(
            f"n{number}",
            size,
            used=draw(st.integers(0, size)),
            cpus=draw(st.sampled_from([size, 2 * size, 16])),
            cpus_allocated=0,
            memory_mib=draw(st.sampled_from([4_000, 16_000])),
        )
        for number, size in enumerate(draw(st.lists(st.integers(1, 8), min_size=1, max_size=6)))
    ]


@st.composite
def elastic_jobs(draw, names):
    shapes = st.builds(
        Resources, gpus=st.integers(1, 2), cpus=st.integers(1, 3), memory_mib=st.sampled_from([0, 0, 1500])
    )
    count = draw(st.integers(1, 5))
    jobs = []
    for job_id in range(1, count + 1):
        low = draw(st.integers(1, 3))
        high = draw(st.integers(low, 16))
        unit = low if draw(st.booleans()) else 1
        cap = draw(st.one_of(st.none(), st.none(), st.integers(low, high)))
        jobs.append(
            elastic(
                job_id,
                f"{low}-{high}",
                base=draw(st.sampled_from(names)),
                shape=draw(shapes),
                wanted=cap,
                unit=unit,
                scalable=draw(st.booleans()) or draw(st.booleans()),
            )
        )
    return jobs


@st.composite
def queues(draw, names):
    jobs = []
    for job_id in range(500, 500 + draw(st.integers(0, 4))):
        jobs.append(
            pending(
                job_id,
                draw(st.integers(0, 8)),
                nodes=draw(st.integers(1, 3)),
                cpus=draw(st.integers(1, 24)),
                memory_mib=draw(st.sampled_from([0, 0, 3_000, 20_000])),
                exclusive=draw(st.integers(0, 5)) == 0,
                priority=draw(st.integers(1, 3)),
                required_nodes=frozenset(draw(st.lists(st.sampled_from(names), max_size=1))),
            )
        )
    return jobs
