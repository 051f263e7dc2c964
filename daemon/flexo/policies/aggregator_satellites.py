"""Plans the satellites in which Aggregators of jobs run (`--aggregators=satellites`), after all others. Pure.

Such a satellite has one CPU and no GPU. It must not use a CPU that a worker on an idle GPU would need. If
GPUs of its node become idle later, and the node has too few CPUs left for them, the satellite is withdrawn:
no cluster preempts one satellite for another.

Its CPU is its own, so it takes none from workers. But it is there to relieve the nodes where the job trains,
and their links. So none is granted on such a node, and one whose job has grown onto its node moves if another
node has a CPU for it. It never keeps the job from growing. Nodes without GPUs come first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from flexo.model.elastic import ElasticJob, Grant, satellite_resources
from flexo.model.nodes import WANTED_EMPTY, Node
from flexo.model.plans import Action, Grow, Note, Plan, Shrink, Snapshot
from flexo.policies.node_capacity import NodeCapacity, rooms_after
from flexo.words import duration
from flexo_protos.resources import Resources


def with_aggregators(
    before: Plan, snapshot: Snapshot, min_interval_s: float, max_satellites: int | None
) -> Plan:
    """`before`, with the changes for jobs that ask for Aggregators in satellites.

    `min_interval_s`: the least time from a change of one job's Aggregators to its next grant of one. When one
    has gone, its leader says within that time why. `max_satellites`: no grant makes more satellites of all
    jobs together. None: no limit.
    """
    jobs = [job for job in snapshot.elastic if _wanted(job) or job.aggregators.grants]
    if not jobs:
        return before
    making = _Making(before, snapshot, min_interval_s, max_satellites)
    making.leave_cpus_to_idle_gpus(jobs)
    notes = tuple(Note(job.key, why) for job in jobs if (why := making.serve(job)))
    return replace(before, actions=(*before.actions, *making.actions), notes=(*before.notes, *notes))


class _Making:
    """The plan in the making: what is free changes from job to job."""

    def __init__(
        self, before: Plan, snapshot: Snapshot, min_interval_s: float, max_satellites: int | None
    ) -> None:
        self._now = snapshot.at
        self._min_interval_s = min_interval_s
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._partition = snapshot.satellite_partition
        self._rooms = rooms_after(before, snapshot)
        grown = [action for action in before.actions if isinstance(action, Grow)]
        self._grown = {(action.job, action.node) for action in grown}
        self._open = frozenset[str]().union(
            *(each.nodes for each in snapshot.partitions if each.up and each.name == self._partition)
        )
        used = len(grown) + sum(len(job.all_grants) for job in snapshot.elastic)
        self._left = math.inf if max_satellites is None else max_satellites - used
        self._max_satellites = max_satellites
        self._withdrawn: set[str] = set()
        """The ids of grants that this plan withdraws."""
        self.actions: list[Action] = []

    def leave_cpus_to_idle_gpus(self, jobs: Collection[ElasticJob]) -> None:
        """Withdraw satellites whose CPUs workers on idle GPUs of their nodes would need, the newest first."""
        standing = [(grant, job) for job in jobs for grant in job.aggregators.standing]
        for grant, job in sorted(standing, key=lambda each: (-each[0].since_at, each[0].grant_id)):
            room = self._rooms.get(grant.node)
            if room is None or not room.usable:
                continue
            free = room.idle + room.coming
            if free.cpus < _cpus_of_idle_gpus(room.node, free):
                self._withdraw(job, grant, f"workers on idle GPUs of {grant.node} would need its CPU")
                room.leave(self._taken(job, room.node))

    def serve(self, job: ElasticJob) -> str:
        """Plan for one job. Returns why it does not have all that it asks for; "" if it has."""
        standing = list(self._without_wanted_empty(job))
        if not job.attached:  # what it asks for is not known
            return ""
        wanted = _wanted(job)
        for grant in standing[wanted:]:
            self.actions.append(Shrink(job.key, grant.grant_id, "its job asks for fewer", of_itself=True))
        missing = wanted - len(standing)
        placed = Counter(grant.node for grant in standing)
        if why := self._why_not_now(job):
            return f"no further Aggregators in satellites: {why}" if missing > 0 else ""
        if missing <= 0:
            self._move_off(job, standing[:wanted], placed)
        for _ in range(missing):
            if self._left <= 0:
                return (
                    f"no further Aggregators in satellites: {self._max_satellites} satellites are allowed"
                    " ([controller] max_satellites)"
                )
            node = self._best_node(job, placed)
            if not node:
                return (
                    f"no further Aggregators in satellites: no node of partition {self._partition} where it"
                    " does not train has a CPU that no worker on an idle GPU would need"
                )
            self._grow(job, node)
            placed[node] += 1
        return ""

    def _move_off(self, job: ElasticJob, standing: Collection[Grant], placed: Counter[str]) -> None:
        """Move one Aggregator off a node where the job trains by now, if another node has a CPU for it."""
        beside = next((grant for grant in standing if self._trains(job, grant.node)), None)
        if beside is None or self._left <= 0 or not (node := self._best_node(job, placed)):
            return
        self._withdraw(job, beside, f"its job trains on {beside.node} by now, and {node} has a CPU for it")
        self._grow(job, node)

    def _withdraw(self, job: ElasticJob, grant: Grant, why: str) -> None:
        self._withdrawn.add(grant.grant_id)
        self.actions.append(Shrink(job.key, grant.grant_id, why))

    def _without_wanted_empty(self, job: ElasticJob) -> Iterator[Grant]:
        """The job's grants that stand, oldest first, without those on nodes that are wanted empty."""
        for grant in sorted(job.aggregators.standing, key=lambda grant: (grant.since_at, grant.grant_id)):
            node = self._nodes.get(grant.node)
            if grant.grant_id in self._withdrawn:
                continue
            conditions = sorted(each.value for each in node.conditions & WANTED_EMPTY) if node else []
            if conditions:
                why = f"{grant.node} is wanted empty ({conditions[0]})"
                self.actions.append(Shrink(job.key, grant.grant_id, why))
            else:
                yield grant

    def _why_not_now(self, job: ElasticJob) -> str:
        if job.suspended:
            return "its base is suspended"
        if not job.scalable:
            return "its script does not train yet, or keeps its size"
        if job.pending_command:
            return f"its owner's command is under way: {job.pending_command}"
        if job.aggregators.rest_until > self._now:
            left_s = job.aggregators.rest_until - self._now
            return f"for {duration(left_s)}, after one that the cluster refused or did not start"
        if self._now < job.aggregators.last_change_at + self._min_interval_s:
            return "they have changed not long before"
        return ""

    def _best_node(self, job: ElasticJob, placed: Counter[str]) -> str:
        """The node for one more, one with few of the job's Aggregators; "" if there is none."""
        need = self._need(job)
        ranked = [
            (bool(room.node.gpus), placed[name], -_spare_cpus(room), name)
            for name, room in self._rooms.items()
            if self._may_use(job, name)
            and _spare_cpus(room) >= max(1, room.node.threads_per_core)
            and room.idle.memory_mib >= need.memory_mib
        ]
        return min(ranked)[-1] if ranked else ""

    def _may_use(self, job: ElasticJob, name: str) -> bool:
        rests = job.aggregators.retry_at.get(name, 0.0) > self._now
        room = self._rooms[name]
        here = name in self._open and room.usable and job.node_filter.permits(room.node)
        return here and not rests and not self._trains(job, name)

    def _trains(self, job: ElasticJob, name: str) -> bool:
        """Whether the job has workers on a node, or gets some by this plan."""
        has = name in job.base_nodes or any(grant.node == name for grant in job.grants)
        return has or (job.key, name) in self._grown

    def _grow(self, job: ElasticJob, name: str) -> None:
        room = self._rooms[name]
        has = "has no GPUs" if not room.node.gpus else "has a CPU that no worker on an idle GPU would need"
        why = f"it asks for Aggregators in satellites, does not train there, and {name} {has}"
        self.actions.append(Grow(job.key, name, 0, self._partition, why))
        self._left -= 1
        room.take(self._taken(job, room.node))

    def _taken(self, job: ElasticJob, node: Node) -> Resources:
        """What one satellite takes of a node: a cluster that allocates cores gives all their threads."""
        need = self._need(job)
        return replace(need, cpus=max(need.cpus, node.threads_per_core))

    @staticmethod
    def _need(job: ElasticJob) -> Resources:
        return satellite_resources(job.shape, 0, ())


def _spare_cpus(room: NodeCapacity) -> int:
    """Idle CPUs of a node without those that belong to its idle GPUs."""
    return max(0, room.idle.cpus - _cpus_of_idle_gpus(room.node, room.idle))


def _cpus_of_idle_gpus(node: Node, idle: Resources) -> int:
    """The share of the node's CPUs that belongs to its idle GPUs."""
    return math.ceil(idle.gpus * node.capacity.cpus / node.gpus) if node.gpus else 0


def _wanted(job: ElasticJob) -> int:
    return job.aggregation.satellites if job.aggregation else 0
