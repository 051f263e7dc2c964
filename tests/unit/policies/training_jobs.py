"""Jobs that train, small clusters of them, a cluster that carries plans out, and what must hold of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from flat_records import change_node, make_node
from hypothesis import strategies as st
from small_clusters import NOW

from flexo.model.nodes import Node
from flexo.model.plans import Plan, Snapshot
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.model.training import Held, NodeShare, TrainingJob
from flexo.policies import allocating
from flexo.policies.base import Jobs, Policy
from flexo.policies.placement import Placement
from flexo_protos.resources import Amount, Resources

ONE_GPU = Resources(gpus=1, cpus=1)
Shares = Mapping[str, int]


@dataclass(frozen=True)
class TableSpeed:
    """Work a second by the number of workers, wherever they are."""

    rates: tuple[float, ...]

    def rate(self, workers: int, nodes: int, batch: int = 0) -> float:
        return self.rates[workers - 1] if 0 < workers <= len(self.rates) else 0.0

    def best_batch(self, workers: int, nodes: int) -> int:
        return 0


def node(name: str, gpus: int = 4, **changes) -> Node:
    """A node with as many CPUs as anybody wants."""
    plain = make_node(name, gpus, 0, 1000, 0, 1_000_000, 0, frozenset({"train"}))
    return change_node(plain, **changes)


def job(job_id: int, workers: str | int = 1, on: Shares | None = None, **changes) -> TrainingJob:
    """A job that wants `workers` one-GPU workers; submitted in the order of its number, `on` nodes if any."""
    size = Range(workers, workers) if isinstance(workers, int) else Range.parse(workers)
    submitted_at = NOW - 1000.0 + job_id
    plain = TrainingJob(
        key=JobKey(job_id),
        user="ada",
        workers=size,
        shape=ONE_GPU,
        submitted_at=submitted_at,
        waiting_since=submitted_at,
        shares=tuple(NodeShare(name, count) for name, count in (on or {}).items()),
        started_at=submitted_at if on else None,
    )
    return replace(plain, **changes)


def snapshot(nodes: Sequence[Node], jobs: Sequence[TrainingJob], at: float = NOW) -> Snapshot:
    """A cluster where nobody but `jobs` holds GPUs, besides what `nodes` say."""
    held: dict[str, int] = {}
    for each in jobs:
        for share in () if each.shared else each.shares:
            held[share.node] = held.get(share.node, 0) + share.workers * each.shape.gpus
    return Snapshot(
        at=at,
        nodes=tuple(
            change_node(each, gpus_allocated=each.allocated.gpus + held.get(each.name, 0)) for each in nodes
        ),
        partitions=(),
        jobs=(),
        elastic=(),
        satellite_partition="",
        training=tuple(sorted(jobs, key=lambda each: (each.submitted_at, each.key))),
    )


def planned(policy: Policy, seen: Snapshot) -> Plan:
    """What the policy's targets come to on a cluster that gives jobs what it is told."""
    return allocating.plan(policy, seen)


def pending_order(policy: Policy, seen: Snapshot) -> list[int]:
    """Numbers of pending jobs, the first to start first."""
    return [key.job_id for key in policy.pending_order(Jobs.of(seen), Placement(seen.nodes))]


def after(before: Snapshot, plan: Plan, seconds: float = 0.0) -> Snapshot:
    """The cluster once `plan` has been carried out and `seconds` have gone by."""
    allocated = {each.job: each for each in plan.allocations}
    held = {each.name: 0 for each in before.nodes}
    at = before.at + seconds
    jobs = []
    for each in before.training:
        for share in () if each.shared else each.shares:
            held[share.node] -= share.workers * each.shape.gpus
        if each.key in allocated:
            now = allocated[each.key]
            each = replace(_changed(each, now.shares, before.at), shared=now.shared)
        each = _later(each, before.at, at)
        for share in () if each.shared else each.shares:
            held[share.node] += share.workers * each.shape.gpus
        jobs.append(each)
    nodes = [change_node(each, gpus_allocated=each.allocated.gpus + held[each.name]) for each in before.nodes]
    return replace(before, at=at, nodes=tuple(nodes), training=tuple(jobs))


def _changed(job: TrainingJob, shares: tuple[NodeShare, ...], at: float) -> TrainingJob:
    held = Held(at, sum(share.workers for share in shares), len(shares))
    now = replace(job, shares=shares, last_change_at=at, history=(*job.history, held))
    if not shares:
        return replace(now, base=(), started_at=None, waiting_since=at)
    if not job.shares:
        return replace(now, started_at=at, resumes_at=at + job.start_cost_s)
    return replace(now, resumes_at=at + job.change_cost_s)


def _later(job: TrainingJob, was: float, now: float) -> TrainingJob:
    known = replace(job, as_of=was) if job.shares else job
    return replace(
        job, service_gpu_s=known.service_at(now), remaining_work=known.remaining_at(now), as_of=None
    )


def workers(plan: Plan, before: Snapshot) -> dict[int, int]:
    """Workers by job number once `plan` has been carried out."""
    return {each.key.job_id: each.allocated for each in after(before, plan).training}


def check_plan(before: Snapshot, plan: Plan) -> None:
    """What must hold of every plan of every policy."""
    jobs = {each.key: each for each in before.training}
    assert len({each.job for each in plan.allocations}) == len(plan.allocations), "one job, one allocation"
    for allocation in plan.allocations:
        was = jobs[allocation.job]
        assert set(allocation.shares) != set(was.shares), "only what changes is in a plan"
        assert all(share.workers > 0 for share in allocation.shares)
        assert len({share.node for share in allocation.shares}) == len(allocation.shares)
        assert allocation.why
        _check_job(was, {share.node: share.workers for share in allocation.shares})
        _check_types(before, was, allocation.shares)
    _check_nodes(before, after(before, plan))


def _check_job(was: TrainingJob, now: Shares) -> None:
    count = sum(now.values())
    if not count:
        assert was.shares, f"job {was.key} has nothing that could be taken"
        assert was.preemptible, f"job {was.key} cannot be taken"
        return
    assert was.workers.min <= count <= was.workers.max, f"job {was.key} left its range"
    for share in was.base:
        assert now.get(share.node, 0) >= share.workers, f"the base of job {was.key} was moved"


def _check_types(before: Snapshot, was: TrainingJob, shares: tuple[NodeShare, ...]) -> None:
    types = {each.name: each.gpu_type for each in before.nodes}
    kept = {share.node for share in was.shares}
    for share in shares:
        if share.node not in kept and was.shape.gpu_type:
            assert types[share.node] == was.shape.gpu_type


def _check_nodes(before: Snapshot, now: Snapshot) -> None:
    for old, new in zip(before.nodes, now.nodes, strict=True):
        assert new.allocated.gpus <= max(new.gpus, old.allocated.gpus), f"{new.name} is over-committed"
        if old.unusable:
            assert new.allocated.gpus <= old.allocated.gpus, f"{new.name} may not be used"


@st.composite
def snapshots(
    draw: st.DrawFn, *, gpus_per_worker: int = 2, shared: bool = False, types: Sequence[str] = ("",)
) -> Snapshot:
    """Small clusters with running and waiting jobs of all kinds; some nodes unusable, some used by others.

    `shared`: workers may take half a GPU or less.
    """
    sizes = [*range(1, gpus_per_worker + 1), *([Fraction(1, 2), Fraction(1, 3)] if shared else [])]
    nodes = [
        node(
            f"n{index}",
            draw(st.integers(1, 8)),
            gpu_type=draw(st.sampled_from(list(types))),
            unusable=draw(st.sampled_from(["", "", "", "", "DOWN"])),
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    others = [draw(st.integers(0, min(2, each.gpus))) for each in nodes]
    nodes = [change_node(each, gpus_allocated=used) for each, used in zip(nodes, others, strict=True)]
    free = {each.name: each.gpus - each.allocated.gpus for each in nodes}
    jobs = [
        _drawn_job(draw, number, nodes, free, sizes, types)
        for number in range(1, draw(st.integers(1, 12)) + 1)
    ]
    return snapshot(nodes, jobs)


def _drawn_job(
    draw: st.DrawFn,
    number: int,
    nodes: Sequence[Node],
    free: dict[str, int],
    sizes: Sequence[Amount],
    types: Sequence[str],
) -> TrainingJob:
    low = draw(st.integers(1, 4))
    high = low + draw(st.sampled_from([0, 0, 1, 4]))
    shape = Resources(draw(st.sampled_from(sizes)), 1, gpu_type=draw(st.sampled_from(["", *types])))
    drawn = job(
        number,
        f"{low}-{high}",
        shape=shape,
        requested_workers=draw(st.sampled_from([0, low, high])),
        service_gpu_s=float(draw(st.sampled_from([0, 0, 5_000, 10_000, 60_000, 300_000]))),
        remaining_work=draw(st.sampled_from([None, 0.0, 100.0, 1000.0, 50_000.0])),
        waiting_since=NOW - draw(st.sampled_from([10.0, 5_000.0, 1_000_000.0])),
        speed=draw(st.sampled_from([None, TableSpeed((1.0, 1.7, 2.2, 2.2, 2.1, 2.5, 2.6, 2.7))])),
        start_cost_s=draw(st.sampled_from([0.0, 30.0])),
    )
    return _drawn_place(draw, drawn, nodes, free)


def _drawn_place(
    draw: st.DrawFn, job: TrainingJob, nodes: Sequence[Node], free: dict[str, int]
) -> TrainingJob:
    """`job` running somewhere, if it is drawn so and there is room."""
    wanted = draw(st.integers(job.workers.min, job.workers.max)) if draw(st.booleans()) else 0
    on: dict[str, int] = {}
    kind = None
    for each in nodes:
        if job.shape.gpu_type not in ("", each.gpu_type) or kind not in (None, each.gpu_type):
            continue
        here = min(wanted - sum(on.values()), free[each.name] // job.shape.gpus)
        if here > 0:
            on[each.name], kind = here, each.gpu_type
    if not wanted or sum(on.values()) < wanted:
        return replace(job, history=_earlier(job, job.service_gpu_s, job.waiting_since))
    for name, count in on.items():
        free[name] -= count * job.shape.gpus
    shares = tuple(NodeShare(name, count) for name, count in on.items())
    started_at = NOW - draw(st.sampled_from([0.0, 100.0, 4_000.0]))
    fixed = draw(st.sampled_from([False, False, True]))
    base = _part(shares, job.workers.min) if fixed else ()
    service = max(job.service_gpu_s, (NOW - started_at) * wanted * job.shape.gpus)
    waiting_since = min(job.waiting_since, started_at)
    before = service - (NOW - started_at) * wanted * job.shape.gpus
    return replace(
        job,
        shares=shares,
        base=base,
        preemptible=not fixed or draw(st.booleans()),
        started_at=started_at,
        waiting_since=waiting_since,
        service_gpu_s=service,
        history=(*_earlier(job, before, waiting_since), Held(started_at, wanted, len(shares))),
    )


def _earlier(job: TrainingJob, service_gpu_s: float, until: float) -> tuple[Held, ...]:
    """The history of a job that had had so much, on its fewest workers, when it began to wait."""
    if not service_gpu_s:
        return ()
    seconds = service_gpu_s / (job.workers.min * job.shape.gpus)
    return Held(until - seconds, job.workers.min, 1), Held(until, 0, 0)


def _part(shares: tuple[NodeShare, ...], count: int) -> tuple[NodeShare, ...]:
    part = []
    for share in shares:
        here = min(share.workers, count)
        if here:
            part.append(NodeShare(share.node, here))
            count -= here
    return tuple(part)
