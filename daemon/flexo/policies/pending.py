"""Pending ordinary jobs come first: what could start now is set aside for them, or taken back.

The cluster starts jobs and takes satellites back by itself; this predicts it, so that nobody's idle GPUs are
granted away under a job that is about to use them, and satellites leave a moment before they would have to.
Where the prediction cannot know (licences, topology, odd feature expressions) it errs on the side of the
pending job; the controller bounds how long (Snapshot.passed_over).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from operator import attrgetter

from flexo.model.nodes import Node, Partition
from flexo.model.plans import Snapshot
from flexo.model.queue import JobState, QueuedJob, WaitReason
from flexo.policies.rooms import Resources, Room, Standing

_PLAIN_FEATURES = re.compile(r"[\w.:-]+(&[\w.:-]+)*")
_kind = attrgetter(
    "num_nodes",
    "gpus",
    "gpus_per_node",
    "cpus",
    "memory_mib",
    "exclusive",
    "partitions",
    "gpu_type",
    "required_nodes",
    "excluded_nodes",
    "features",
)
"""All of a job that says where it can start: jobs of one kind fit or do not fit together."""
_SUBSETS_UP_TO = 8
"""Satellites on one node of which every combination is tried; beyond, one by one and all together."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Resources kept for a pending job, and the satellites that have to go for it."""

    job: QueuedJob
    nodes: tuple[str, ...]
    taken_back: tuple[Standing, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a job needs: `units` of `unit`, at most `per_node` of them on a node, on at least `min_nodes`."""

    unit: Resources
    units: int
    per_node: int
    min_nodes: int
    whole_nodes: bool

    @classmethod
    def of(cls, job: QueuedJob) -> _Ask:
        nodes = max(1, job.num_nodes)
        if job.gpus_per_node or job.exclusive:
            gpus = job.gpus_per_node or -(-job.gpus // nodes)
            unit = Resources(gpus, -(-job.cpus // nodes), -(-job.memory_mib // nodes))
            return cls(unit, nodes, 1, nodes, job.exclusive)
        units = job.gpus or max(1, job.cpus)
        unit = Resources(min(1, job.gpus), -(-job.cpus // units), -(-job.memory_mib // units))
        return cls(unit, units, units, min(nodes, units), False)

    def times(self, amount: Resources, node: Node) -> int:
        """How many units `amount` of `node` holds."""
        unit = self.unit
        if self.whole_nodes:
            unit = Resources(max(node.gpus, unit.gpus), max(node.cpus, unit.cpus), unit.memory_mib)
        return min(self.per_node, amount.times(unit))

    def size_on(self, node: Node, units: int) -> Resources:
        """What `units` of it take of `node`."""
        if self.whole_nodes:
            return Resources(node.gpus, node.cpus, node.memory_mib)
        unit = self.unit
        return Resources(unit.gpus * units, unit.cpus * units, unit.memory_mib * units)


def waiting_jobs(snapshot: Snapshot) -> Iterator[QueuedJob]:
    """Ordinary jobs that wait for nothing but resources."""
    return (
        job for job in snapshot.jobs if waits_for_resources(job) and job.job_id not in snapshot.passed_over
    )


def waits_for_resources(job: QueuedJob) -> bool:
    """Whether it is an ordinary job, or a base, that waits for nothing else."""
    return job.state is JobState.PENDING and job.satellite is None and job.wait is WaitReason.RESOURCES


def _in_the_clusters_order(snapshot: Snapshot) -> list[QueuedJob]:
    """The waiting jobs, as the cluster looks at them."""
    tiers = {partition.name: partition.priority_tier for partition in snapshot.partitions}

    @cache
    def tier(partitions: Sequence[str]) -> int:
        return max((tiers.get(name, 0) for name in partitions), default=0)

    def order(job: QueuedJob) -> tuple[int, int, float, int]:
        return -tier(job.partitions), -job.priority, job.submitted_at, job.job_id

    return sorted(waiting_jobs(snapshot), key=order)


def settle_claims(snapshot: Snapshot, rooms: dict[str, Room]) -> tuple[list[Claim], dict[str, Room]]:
    """What each waiting job could start on, and the rooms without it.

    A job that could not start even then claims nothing: it is blocked by something else, and idle GPUs that
    do not help it are free for others. Satellites are taken back only for jobs that still fit when these
    have left and everything is looked at anew; else they would be granted again, and taken again.
    """
    fickle: set[int] = set()
    in_order = _in_the_clusters_order(snapshot)
    while True:
        waiting = [job for job in in_order if job.job_id not in fickle]
        after = {name: room.copy() for name, room in rooms.items()}
        claims = _make_claims(waiting, snapshot.partitions, after, may_take_back=True)
        demanding = {claim.job.job_id for claim in claims if claim.taken_back}
        if not demanding:
            return claims, after
        later = {name: room.copy() for name, room in rooms.items()}
        for claim in claims:
            for standing in claim.taken_back:
                later[standing.grant.node].take_back(standing)
        for room in later.values():
            room.arrive()
        lasting = _make_claims(waiting, snapshot.partitions, later, may_take_back=False)
        news = demanding - {claim.job.job_id for claim in lasting}
        if not news:
            return claims, after
        fickle |= news


def _make_claims(
    waiting: Iterable[QueuedJob],
    partitions: Iterable[Partition],
    rooms: dict[str, Room],
    *,
    may_take_back: bool,
) -> list[Claim]:
    """Set aside in `rooms`, job by job, what each could start on."""
    ordered = sorted(
        (partition for partition in partitions if partition.up),
        key=lambda partition: (-partition.priority_tier, partition.name),
    )
    claims: list[Claim] = []
    blocked: set[object] = set()  # resources only shrink on the way, so what did not fit once never will
    for job in waiting:
        kind = _kind(job)
        if kind in blocked:
            continue
        mine = [partition for partition in ordered if partition.name in job.partitions]
        claim = _claim(job, mine, rooms, may_take_back=may_take_back)
        if claim is None:
            blocked.add(kind)
        else:
            claims.append(claim)
    return claims


def _claim(
    job: QueuedJob, partitions: Sequence[Partition], rooms: dict[str, Room], *, may_take_back: bool
) -> Claim | None:
    """The cheapest way to let `job` start, carried out in `rooms`; None if there is none."""
    ask = _Ask.of(job)
    choices = [_candidates(job, partition, rooms) for partition in partitions]
    chosen = _first_choice(job, ask, choices)
    taken_back: tuple[Standing, ...] = ()
    if chosen is None and may_take_back:
        ways = [way for choice in choices if (way := _take_back(job, ask, choice)) is not None]
        if ways:
            taken_back = min(ways, key=_loss)
            for standing in taken_back:
                rooms[standing.grant.node].take_back(standing)
            chosen = _first_choice(job, ask, choices)
    if chosen is None:
        return None
    for room, units in chosen.values():
        room.take(ask.size_on(room.node, units))
    return Claim(job, tuple(chosen), taken_back)


def _first_choice(
    job: QueuedJob, ask: _Ask, choices: Sequence[Sequence[Room]]
) -> dict[str, tuple[Room, int]] | None:
    """A way to start on what is idle, else on what is idle or coming."""
    for choice in choices:
        if chosen := _choose(job, ask, [(room, room.idle) for room in choice]):
            return chosen
    for choice in choices:
        if chosen := _choose(job, ask, [(room, room.idle + room.coming) for room in choice]):
            return chosen
    return None


def _candidates(job: QueuedJob, partition: Partition, rooms: dict[str, Room]) -> list[Room]:
    return [
        rooms[name]
        for name in sorted(partition.nodes - job.excluded_nodes)
        if name in rooms and rooms[name].usable and _suits(job, rooms[name].node)
    ]


def _suits(job: QueuedJob, node: Node) -> bool:
    if job.gpu_type and (job.gpus or job.gpus_per_node) and job.gpu_type != node.gpu_type:
        return False
    plain = _PLAIN_FEATURES.fullmatch(job.features)
    return plain is None or node.features.issuperset(job.features.split("&"))


def _choose(
    job: QueuedJob, ask: _Ask, free: Sequence[tuple[Room, Resources]]
) -> dict[str, tuple[Room, int]] | None:
    """Nodes and units on each that hold the whole job; None if they do not.

    Required nodes first; then the smallest node that could ever hold all that is wanted, else the largest;
    not the fullest: who gets which node must not change with every satellite that comes or goes.
    """
    holds = {
        room.node.name: (room, times) for room, amount in free if (times := ask.times(amount, room.node))
    }
    if not job.required_nodes <= holds.keys():
        return None
    wanted = ask.units - ask.min_nodes + 1

    def order(name: str) -> tuple[bool, int, str]:
        node = holds[name][0].node
        times = ask.times(Resources(node.gpus, node.cpus, node.memory_mib), node)
        return times < wanted, times if times >= wanted else -times, name

    chosen: dict[str, tuple[Room, int]] = {}
    left, nodes_left = ask.units, ask.min_nodes
    for name in [*sorted(job.required_nodes), *sorted(holds.keys() - job.required_nodes, key=order)]:
        if left <= 0 and name not in job.required_nodes:
            break
        room, times = holds[name]
        # the nodes still to come get at least one unit each
        units = max(1, min(times, left - max(0, nodes_left - 1)))
        chosen[name] = room, units
        left, nodes_left = left - units, nodes_left - 1
    return chosen if left <= 0 and nodes_left <= 0 else None


def _take_back(job: QueuedJob, ask: _Ask, choice: list[Room]) -> tuple[Standing, ...] | None:
    """Satellites, as few workers as possible, without which `job` could start; None: not even so."""
    gone: list[Standing] = []

    def free(without: Iterable[Standing]) -> list[tuple[Room, Resources]]:
        left: dict[str, Resources] = {room.node.name: room.idle + room.coming for room in choice}
        for standing in without:
            left[standing.grant.node] += standing.resources
        return [(room, left[room.node.name]) for room in choice]

    if _choose(job, ask, free(standing for room in choice for standing in room.standing)) is None:
        return None
    while _choose(job, ask, free(gone)) is None:
        gone.extend(_best_step(job, ask, free(gone), gone))
    for standing in sorted(gone, key=lambda each: (-each.workers_lost, -each.started_at)):
        without = [each for each in gone if each is not standing]
        if _choose(job, ask, free(without)) is not None:
            gone = without
    return tuple(gone)


def _best_step(
    job: QueuedJob, ask: _Ask, free: Sequence[tuple[Room, Resources]], gone: list[Standing]
) -> tuple[Standing, ...]:
    """The satellites of one node that give most for the fewest workers; among equals the oldest.

    In that order the cluster itself takes one-node satellites until the job fits.
    """
    have = {room.node.name: ask.times(amount, room.node) for room, amount in free}
    missing_required = {name for name in job.required_nodes if not have.get(name)}
    missing = max(1, ask.units - sum(have.values()))

    def steps() -> Iterator[tuple[tuple[bool, float, int, float, str], tuple[Standing, ...]]]:
        for room, amount in free:
            name = room.node.name
            for some in _combinations([each for each in room.standing if each not in gone]):
                freed = sum((each.resources for each in some), amount)
                gain = min(missing, ask.times(freed, room.node) - have[name])
                if gain > 0:
                    lost = sum(each.workers_lost for each in some)
                    youngest = max(each.started_at for each in some)
                    yield (name not in missing_required, lost / gain, -gain, youngest, name), some

    return min(steps(), key=lambda step: step[0])[1]


def _combinations(standing: list[Standing]) -> Iterator[tuple[Standing, ...]]:
    if len(standing) > _SUBSETS_UP_TO:
        yield from ((each,) for each in standing)
        yield tuple(standing)
        return
    for size in range(1, len(standing) + 1):
        yield from combinations(standing, size)


def _loss(taken_back: tuple[Standing, ...]) -> tuple[int, int, float]:
    return (
        sum(each.workers_lost for each in taken_back),
        len(taken_back),
        max((each.started_at for each in taken_back), default=0.0),
    )
