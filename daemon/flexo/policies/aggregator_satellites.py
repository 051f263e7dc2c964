"""Plans the satellites in which Aggregators of jobs run (`--aggregators=satellites`), after all others. Pure.

Such a satellite has one CPU and no GPU. It must not use a CPU that somebody needs: neither one that a worker
on an idle GPU would need, nor one of a node where the job itself trains. Nodes without GPUs come first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from flexo.model.elastic import ElasticJob, Grant, satellite_resources
from flexo.model.nodes import WANTED_EMPTY
from flexo.model.plans import Action, Grow, Note, Plan, Shrink, Snapshot
from flexo.policies.node_capacity import NodeCapacity, rooms_after
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
        self.actions: list[Action] = []

    def serve(self, job: ElasticJob) -> str:
        """Plan for one job. Returns why it does not have all that it asks for; "" if it has."""
        standing = list(self._without_wanted_empty(job))
        if not job.attached:  # what it asks for is not known
            return ""
        wanted = _wanted(job)
        for grant in standing[wanted:]:
            self.actions.append(Shrink(job.key, grant.grant_id, "its job asks for fewer", of_itself=True))
        missing = wanted - len(standing)
        why = self._why_not_now(job) if missing > 0 else ""
        if missing <= 0 or why:
            return why and f"no further Aggregators in satellites: {why}"
        placed = Counter(grant.node for grant in standing)
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

    def _without_wanted_empty(self, job: ElasticJob) -> Iterator[Grant]:
        """The job's grants that stand, oldest first, without those on nodes that are wanted empty."""
        for grant in sorted(job.aggregators.standing, key=lambda grant: (grant.since_at, grant.grant_id)):
            node = self._nodes.get(grant.node)
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
            return f"for {left_s:.0f} s, after one that the cluster refused or did not start"
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
        trains = name in job.base_nodes or any(grant.node == name for grant in job.grants)
        rests = job.aggregators.retry_at.get(name, 0.0) > self._now
        here = name in self._open and self._rooms[name].usable
        return here and not trains and not rests and (job.key, name) not in self._grown

    def _grow(self, job: ElasticJob, name: str) -> None:
        room = self._rooms[name]
        has = "has no GPUs" if not room.node.gpus else "has a CPU that no worker on an idle GPU would need"
        why = f"its user asks for Aggregators in satellites, it does not train there, and {name} {has}"
        self.actions.append(Grow(job.key, name, 0, self._partition, why))
        self._left -= 1
        need = self._need(job)
        room.take(replace(need, cpus=max(need.cpus, room.node.threads_per_core)))

    @staticmethod
    def _need(job: ElasticJob) -> Resources:
        return satellite_resources(job.shape, 0, ())


def _spare_cpus(room: NodeCapacity) -> int:
    """Idle CPUs of a node without those that belong to its idle GPUs."""
    idle, all_gpus = room.idle, room.node.gpus
    kept = math.ceil(idle.gpus * room.node.capacity.cpus / all_gpus) if all_gpus else 0
    return max(0, idle.cpus - kept)


def _wanted(job: ElasticJob) -> int:
    return job.aggregation.satellites if job.aggregation else 0
