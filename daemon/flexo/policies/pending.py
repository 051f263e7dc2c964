"""Reserves resources for pending ordinary jobs, which come first, and names the satellites that have to
leave.

The cluster starts jobs and preempts satellites by itself. This module predicts that, so that no idle GPUs are
granted that a job is about to use. Satellites then leave a moment before they would have to. Where the
prediction cannot know (licences, topology, odd feature expressions), it errs on the side of the pending job.
The controller limits how long (Snapshot.passed_over).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import attrgetter

from flexo.model.node_filter import NodeFilter
from flexo.model.nodes import Node, Partition
from flexo.model.plans import Snapshot
from flexo.model.queue import JobState, QueuedJob, Request, in_order_of_start
from flexo.policies.node_capacity import HeldGrant, NodeCapacity, room_of
from flexo_protos.resources import Resources

_kind = attrgetter("requests", "partitions", "excluded_nodes", "features")
"""The attributes of a job that decide where it can start. Jobs of one kind fit or do not fit together."""
_SUBSETS_UP_TO = 8
"""The most satellites on one node of which every combination is tried. Of more, each one and all together are
tried."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Resources kept for a pending job, and the satellites that have to leave for it."""

    job: QueuedJob
    nodes: tuple[str, ...]
    taken_back: tuple[HeldGrant, ...] = ()


@dataclass(frozen=True, slots=True)
class _Choice:
    """A partition that a job may start in."""

    requests: tuple[Request, ...]
    """The job's requests there, all needed at once; of a divisible request, the largest part that would
    fit."""
    rooms: list[NodeCapacity]


_Free = Sequence[tuple[NodeCapacity, Resources]]
_Chosen = dict[str, tuple[NodeCapacity, Resources]]
"""Per node: the resources that a job takes of it."""


def waiting_jobs(snapshot: Snapshot) -> Iterator[QueuedJob]:
    """Ordinary jobs that wait for nothing but resources, without those of `Snapshot.passed_over`."""
    return (
        job for job in snapshot.jobs if waits_for_resources(job) and job.job_id not in snapshot.passed_over
    )


def waits_for_resources(job: QueuedJob) -> bool:
    """Whether the job is an ordinary job, or a base, that waits for nothing but resources."""
    return job.state is JobState.PENDING and job.satellite is None and job.wait.is_for_resources


def could_start(job: QueuedJob, nodes: Iterable[Node], partitions: Iterable[Partition]) -> bool:
    """Whether a pending job fits on these nodes as they are."""
    rooms = {node.name: room_of(node) for node in nodes}
    return bool(_make_claims([job], partitions, rooms, may_take_back=False))


def settle_claims(
    snapshot: Snapshot, rooms: dict[str, NodeCapacity]
) -> tuple[list[Reservation], dict[str, NodeCapacity]]:
    """The reservation of each waiting job, and the capacity that is left.

    A job that could not start even without satellites reserves nothing: something else blocks it, and idle
    GPUs that do not help it are free for others. Satellites are taken back only for jobs that still fit in a
    second calculation, once these satellites have left. Otherwise the satellites would be granted again, and
    taken back again.
    """
    fickle: set[int] = set()
    in_order = in_order_of_start(waiting_jobs(snapshot), snapshot.partitions)
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
    rooms: dict[str, NodeCapacity],
    *,
    may_take_back: bool,
) -> list[Reservation]:
    """Reserve in `rooms`, job by job, the resources on which each job could start."""
    ordered = sorted(
        (partition for partition in partitions if partition.up),
        key=lambda partition: (-partition.priority_tier, partition.name),
    )
    claims: list[Reservation] = []
    blocked: set[object] = set()  # free resources only shrink: what did not fit once never will
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
    job: QueuedJob, partitions: Sequence[Partition], rooms: dict[str, NodeCapacity], *, may_take_back: bool
) -> Reservation | None:
    """The cheapest way to let `job` start, carried out in `rooms`; None if there is none."""
    choices = [
        choice
        for partition in partitions
        if (choice := _choice(job, partition, rooms, may_take_back=may_take_back)) is not None
    ]
    chosen = _first_choice(choices)
    taken_back: tuple[HeldGrant, ...] = ()
    if chosen is None and may_take_back:
        ways = [way for choice in choices if (way := _take_back(choice)) is not None]
        if ways:
            taken_back = min(ways, key=_loss)
            for standing in taken_back:
                rooms[standing.grant.node].take_back(standing)
            chosen = _first_choice(choices)
    if chosen is None:
        return None
    for room, amount in chosen.values():
        room.take(amount)
    return Reservation(job, tuple(chosen), taken_back)


def _first_choice(choices: Sequence[_Choice]) -> _Chosen | None:
    """The resources of the first choice that fits into idle resources, else into idle and coming ones; None:
    none fits."""
    for choice in choices:
        if chosen := _choose(choice.requests, [(room, room.idle) for room in choice.rooms]):
            return chosen
    for choice in choices:
        if chosen := _choose(choice.requests, [(room, room.idle + room.coming) for room in choice.rooms]):
            return chosen
    return None


def _choice(
    job: QueuedJob, partition: Partition, rooms: dict[str, NodeCapacity], *, may_take_back: bool
) -> _Choice | None:
    """The nodes of `partition` that `job` would take; None: it cannot start there whatever is taken back."""
    features = NodeFilter(job.features)
    suitable = [
        rooms[name]
        for name in sorted(partition.nodes - job.excluded_nodes)
        if name in rooms and rooms[name].usable and features.permits(rooms[name].node)
    ]
    # requests that need most of a node go first: the others fit in more easily beside them
    requests = tuple(sorted(job.requests, key=lambda each: (-each.unit.gpus, -each.unit.cpus)))
    if not any(request.divisible for request in requests):
        return _Choice(requests, suitable)
    standing = [each for room in suitable for each in room.standing] if may_take_back else ()
    parts = _largest_parts(requests, _free_without(suitable, standing))
    return None if parts is None else _Choice(parts, suitable)


def _largest_parts(requests: Iterable[Request], free: _Free) -> tuple[Request, ...] | None:
    """All requests, a divisible one cut to the part that `free` holds; None: a request does not fit even
    so."""
    parts = []
    for request in requests:
        part = request
        if request.divisible:
            units = min(request.units, sum(_times(request, amount, room.node) for room, amount in free))
            part = replace(request, units=units, min_nodes=min(units, request.min_nodes), divisible=False)
        chosen = _choose_for(part, free) if part.units else None
        if chosen is None:
            return None
        parts.append(part)
        free = _less(free, chosen)
    return tuple(parts)


def _times(request: Request, amount: Resources, node: Node) -> int:
    """The number of units of `request` that `amount` of `node` holds."""
    unit = request.unit
    if request.whole_nodes:
        has = node.capacity
        unit = replace(unit, gpus=max(has.gpus, unit.gpus), cpus=max(has.cpus, unit.cpus))
    return min(request.per_node, amount.holds(unit))


def _size_on(request: Request, node: Node, units: int) -> Resources:
    """The resources that `units` of the request take of `node`."""
    return node.capacity if request.whole_nodes else request.unit * units


def _less(free: _Free, chosen: _Chosen) -> _Free:
    """The rest of `free` after the choice."""
    return [
        (room, amount.minus(chosen[room.node.name][1]) if room.node.name in chosen else amount)
        for room, amount in free
    ]


def _choose(requests: Sequence[Request], free: _Free) -> _Chosen | None:
    """The nodes of all requests, one request after the other; None: a request does not fit."""
    chosen: _Chosen = {}
    for request in requests:
        found = _choose_for(request, free)
        if found is None:
            return None
        if not chosen and request is requests[-1]:
            return found
        for name, (room, amount) in found.items():
            chosen[name] = room, chosen[name][1] + amount if name in chosen else amount
        free = _less(free, found)
    return chosen


def _choose_for(request: Request, free: _Free) -> _Chosen | None:
    """Nodes that hold the whole request, and the resources that it takes of each; None: it does not fit.

    Required nodes come first. Then comes the smallest node that could ever hold the whole request, else the
    largest. It is not the fullest one, because the choice must not change with every satellite that comes or
    goes.
    """
    holds = {
        room.node.name: (room, times)
        for room, amount in free
        if (times := _times(request, amount, room.node))
    }
    if not request.required_nodes <= holds.keys():
        return None
    wanted = request.units - request.min_nodes + 1

    def order(name: str) -> tuple[bool, int, str]:
        node = holds[name][0].node
        times = _times(request, node.capacity, node)
        return times < wanted, times if times >= wanted else -times, name

    chosen: _Chosen = {}
    left, nodes_left = request.units, request.min_nodes
    required = request.required_nodes
    for name in [*sorted(required), *sorted(holds.keys() - required, key=order)]:
        if left <= 0 and name not in required:
            break
        room, times = holds[name]
        # the nodes still to come get at least one unit each
        units = max(1, min(times, left - max(0, nodes_left - 1)))
        chosen[name] = room, _size_on(request, room.node, units)
        left, nodes_left = left - units, nodes_left - 1
    return chosen if left <= 0 and nodes_left <= 0 else None


def _free_without(rooms: Sequence[NodeCapacity], gone: Iterable[HeldGrant]) -> _Free:
    """Per node: the idle and coming resources, and those of the satellites in `gone`."""
    left = {room.node.name: room.idle + room.coming for room in rooms}
    for standing in gone:
        left[standing.grant.node] += standing.resources
    return [(room, left[room.node.name]) for room in rooms]


def _take_back(choice: _Choice) -> tuple[HeldGrant, ...] | None:
    """Satellites with as few workers as possible, without which a job could start; None: it could not start
    even so."""
    everything = [standing for room in choice.rooms for standing in room.standing]
    gone: list[HeldGrant] = []

    def can_start(without: Iterable[HeldGrant]) -> bool:
        return _choose(choice.requests, _free_without(choice.rooms, without)) is not None

    if not can_start(everything):
        return None
    while not can_start(gone):
        gone.extend(_best_step(choice, gone) or [each for each in everything if each not in gone])
    for standing in sorted(gone, key=lambda each: (-each.workers_lost, -each.started_at)):
        without = [each for each in gone if each is not standing]
        if can_start(without):
            gone = without
    return tuple(gone)


def _best_step(choice: _Choice, gone: list[HeldGrant]) -> tuple[HeldGrant, ...]:
    """The satellites of one node that free most units for the fewest workers; among equals, the oldest.

    In this order the cluster itself preempts one-node satellites until the job fits. Only the first request
    that does not fit counts. (): no node's satellites help by themselves.
    """
    request, free = _first_unmet(choice.requests, _free_without(choice.rooms, gone))
    have = {room.node.name: _times(request, amount, room.node) for room, amount in free}
    missing_required = {name for name in request.required_nodes if not have.get(name)}
    missing = max(1, request.units - sum(have.values()))

    def steps() -> Iterator[tuple[tuple[bool, float, int, float, str], tuple[HeldGrant, ...]]]:
        for room, amount in free:
            name = room.node.name
            for some in _combinations([each for each in room.standing if each not in gone]):
                freed = sum((each.resources for each in some), amount)
                gain = min(missing, _times(request, freed, room.node) - have[name])
                if gain > 0:
                    lost = sum(each.workers_lost for each in some)
                    youngest = max(each.started_at for each in some)
                    yield (name not in missing_required, lost / gain, -gain, youngest, name), some

    best = min(steps(), key=lambda step: step[0], default=None)
    return () if best is None else best[1]


def _first_unmet(requests: Sequence[Request], free: _Free) -> tuple[Request, _Free]:
    """The first request that finds no place, and the resources that the requests before it leave."""
    for request in requests[:-1]:
        chosen = _choose_for(request, free)
        if chosen is None:
            return request, free
        free = _less(free, chosen)
    return requests[-1], free


def _combinations(standing: list[HeldGrant]) -> Iterator[tuple[HeldGrant, ...]]:
    if len(standing) > _SUBSETS_UP_TO:
        yield from ((each,) for each in standing)
        yield tuple(standing)
        return
    for size in range(1, len(standing) + 1):
        yield from combinations(standing, size)


def _loss(taken_back: tuple[HeldGrant, ...]) -> tuple[int, int, float]:
    return (
        sum(each.workers_lost for each in taken_back),
        len(taken_back),
        max((each.started_at for each in taken_back), default=0.0),
    )
