"""Plans the satellites of opportunistic jobs, on idle GPUs or on GPUs that other jobs hold. Pure.

AntMan, Algorithm 1, lines 9 and 10 (OSDI 2020): an opportunistic job goes to the GPUs with the least load,
if there are enough for it. Ordinary jobs and their satellites come first: what follows here uses what they
leave. A job has satellites of one kind at a time. On shared GPUs alone it would wait for the slowest, so it
moves to GPUs of its own as soon as there are enough for all of its workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from flexo.model.elastic import ElasticJob, Grant
from flexo.model.plans import Action, Grow, Note, Plan, Shrink, Snapshot
from flexo.model.queue import JobKey
from flexo.policies import satellites
from flexo.policies.base import Jobs, Policy, Targets
from flexo.policies.node_capacity import rooms_after
from flexo.policies.placement import Placement
from flexo.sharing.hosts import (
    Gpu,
    HeldGpus,
    Host,
    devices_of,
    gpus_of,
    gpus_on,
    hosts_of,
    may_use,
    offered,
    stands,
    taken,
)
from flexo.sharing.settings import SharingSettings
from flexo.words import duration, workers
from flexo_protos.resources import Resources


@dataclass(frozen=True, slots=True)
class SharingRules:
    """What the plan goes by, besides the snapshot."""

    settings: SharingSettings
    held: HeldGpus
    order: Sequence[JobKey] = ()
    """Opportunistic jobs in the order in which the policy serves them; those left out come last."""
    min_resize_interval_s: float = 0.0
    max_satellites: int | None = None


def with_opportunists(before: Plan, snapshot: Snapshot, rules: SharingRules) -> Plan:
    """`before`, with the changes for opportunistic jobs. `before` plans everything else of `snapshot`."""
    jobs = [job for job in snapshot.elastic if job.opportunistic]
    if not jobs:
        return before
    place = {key: number for number, key in enumerate(rules.order)}
    jobs.sort(key=lambda job: (place.get(job.key, len(place)), job.key))
    making = _Making(before, snapshot, rules)
    notes = tuple(Note(job.key, why := making.serve(job), why, _without_numbers(why)) for job in jobs)
    about = {job.key for job in jobs}
    return replace(
        before,
        actions=(*before.actions, *making.actions),
        notes=(*(note for note in before.notes if note.job not in about), *notes),
    )


def _without_numbers(text: str) -> str:
    """What stays of a reason while durations and counts in it change."""
    return "".join(each for each in text if not each.isdigit())


class _Making:
    """The plan in the making: what is free changes from job to job."""

    def __init__(self, before: Plan, snapshot: Snapshot, rules: SharingRules) -> None:
        self._before = before
        self._snapshot = snapshot
        self._rules = rules
        self._settings = rules.settings
        self._now = snapshot.at
        self.actions: list[Action] = []
        self._hosts = hosts_of(snapshot.elastic, rules.held)
        self._taken = set(taken(snapshot))
        self._rooms = rooms_after(before, snapshot)
        self._shared_nodes = _nodes_of_partition(snapshot, rules.settings.partition)
        self._bases = {job.key: job for job in snapshot.jobs if job.satellite is None}

    def serve(self, job: ElasticJob) -> str:
        """Plan for one job. Returns the sentence for people."""
        gone = {each.grant_id for each in self._before.actions if isinstance(each, Shrink)}
        standing = [grant for grant in job.grants if stands(grant) and grant.grant_id not in gone]
        shared = [grant for grant in standing if grant.shared_gpus]
        shared = self._without_hosts_lost(job, shared)
        own = [grant for grant in standing if not grant.shared_gpus]
        if why := self._why_not_now(job):
            return f"{_has(own, shared)}; {why}"
        if self._gives_up(job, own, shared):
            return f"fewer than its minimum of {workers(job.workers.min)} have been left for long: it pauses"
        fresh = self._now < job.last_resize_at + self._rules.min_resize_interval_s
        if fresh and (own or shared):
            return f"{_has(own, shared)}; it was resized not long before"
        if own or (job.auto and not shared):
            grown = self._grow_on_own(job, own, at_least=max(job.workers.min, _size(own) + 1))
            if grown or own:
                return _has(own, shared, grown)
        if shared and self._upgrade(job, shared):
            return f"upgraded: {workers(_size(shared))} or more fit on GPUs of their own now"
        told = self._share(job, shared)
        grown_on_shared = any(isinstance(each, Grow) and each.job == job.key for each in self.actions)
        if not (shared or grown_on_shared) and (grown := self._grow_on_own(job, (), job.workers.min)):
            return _has((), (), grown)
        return told

    def _why_not_now(self, job: ElasticJob) -> str:
        if job.suspended:
            return "its base is suspended"
        if not job.attached:
            return "its leader is not connected"
        if job.pending_command:
            return f"its owner's command is under way: {job.pending_command}"
        if job.unscalable_why:
            return f"it keeps its size: {job.unscalable_why}"
        if job.rest_until > self._now:
            rests = duration(job.rest_until - self._now)
            return f"it rests for {rests}, after the cluster refused a satellite"
        return ""

    # --- taking back -----------------------------------------------------------------------------------

    def _without_hosts_lost(self, job: ElasticJob, shared: Sequence[Grant]) -> list[Grant]:
        """`shared`, without the grants that end because a GPU is not to be shared with this job any more."""
        kept = []
        for grant in shared:
            lost = [gpu for gpu in gpus_of(grant) if not self._may_stay(job, gpu)]
            if lost:
                self._withdraw(job, grant, f"no job that shares it holds {_named(lost)} any more")
            else:
                kept.append(grant)
        return kept

    def _may_stay(self, job: ElasticJob, gpu: Gpu) -> bool:
        host = self._hosts.get(gpu)
        return host is not None and may_use(job, host, self._settings)

    def _gives_up(self, job: ElasticJob, own: Sequence[Grant], shared: Sequence[Grant]) -> bool:
        """Give everything back if too few satellites have stood for long: they train nothing meanwhile."""
        few = 0 < _size(own) + _size(shared) < job.workers.min
        if not few or self._now < job.last_resize_at + self._settings.wait_s:
            return False
        for grant in (*own, *shared):
            self._withdraw(job, grant, f"its job needs {workers(job.workers.min)} to train")
        return True

    def _withdraw(self, job: ElasticJob, grant: Grant, why: str) -> None:
        self.actions.append(Shrink(job.key, grant.grant_id, why))

    # --- GPUs of its own -------------------------------------------------------------------------------

    def _grow_on_own(self, job: ElasticJob, own: Sequence[Grant], at_least: int) -> int:
        """Grant idle GPUs, if the job then has `at_least` workers. Returns the new workers."""
        new = self._idle_for(job, own)
        if not new or _size(own) + sum(each.workers for each in new) < at_least:
            return 0
        self._take(new)
        return sum(each.workers for each in new)

    def _upgrade(self, job: ElasticJob, shared: Sequence[Grant]) -> bool:
        """Move the job to GPUs of its own if there are enough for all the workers that it has."""
        if not self._grow_on_own(job, (), at_least=max(job.workers.min, _size(shared))):
            return False
        for grant in shared:
            self._withdraw(job, grant, "its job gets GPUs of its own")
        return True

    def _idle_for(self, job: ElasticJob, own: Sequence[Grant]) -> tuple[Grow, ...]:
        """The satellites on idle GPUs that the job could have beside `own`: what the planner of satellites
        would give it if it were the only one. All are of one GPU type."""
        offers = (self._idle_of_type(job, own, kind) for kind in self._gpu_types(job, own))
        return max(offers, key=lambda new: sum(each.workers for each in new), default=())

    def _idle_of_type(self, job: ElasticJob, own: Sequence[Grant], gpu_type: str) -> tuple[Grow, ...]:
        kept = {grant.grant_id for grant in own}
        mine = replace(
            job,
            grants=tuple(grant for grant in job.grants if grant.grant_id in kept or not stands(grant)),
            shape=replace(job.shape, gpu_type=gpu_type),
            heterogeneous=not gpu_type,
            scalable=True,
            last_resize_at=0.0,
        )
        others = (self._frozen(each) for each in self._snapshot.elastic if each.key != job.key)
        alone = replace(self._snapshot, elastic=(*others, mine), training=())
        found = satellites.plan(_AllStay(), alone, 0.0, self._rules.max_satellites)
        return tuple(each for each in found.actions if isinstance(each, Grow) and each.job == job.key)

    def _gpu_types(self, job: ElasticJob, standing: Sequence[Grant]) -> list[str]:
        """The GPU types that the job may have: that of its satellites, or each; "" for all types together."""
        if job.heterogeneous:
            return [""]
        of_nodes = {node.name: node.gpu_type for node in self._snapshot.nodes if node.gpus}
        mine = {of_nodes[grant.node] for grant in standing if grant.node in of_nodes}
        return sorted(mine or set(of_nodes.values()))

    def _frozen(self, job: ElasticJob) -> ElasticJob:
        """The job with all that this plan gives it; nothing more is dealt to it."""
        new = tuple(
            Grant(f"new-{number}", job.key, each.node, each.workers, each.partition, self._now)
            for number, each in enumerate((*self._before.actions, *self.actions))
            if isinstance(each, Grow) and each.job == job.key
        )
        return replace(job, grants=(*job.grants, *new), scalable=False)

    # --- shared GPUs -----------------------------------------------------------------------------------

    def _share(self, job: ElasticJob, shared: Sequence[Grant]) -> str:
        """Grant shared GPUs, the least busy first, if the job then has its minimum."""
        if not self._settings.partition:
            return "no GPUs are idle for its minimum, and this site shares none ([sharing] partition)"
        if job.unit > 1:
            return "its workers come in units, and a shared GPU takes one worker alone"
        if left_s := self._waits_s(job):
            return f"it waits {duration(left_s)} more for GPUs of its own (auto)"
        has = _size(shared)
        offers = (self._choose(job, kind, job.ceiling - has) for kind in self._gpu_types(job, shared))
        chosen = max(offers, key=len, default=[])
        missing = job.workers.min - has - len(chosen)
        if missing > 0:
            free = workers(len(chosen)) if chosen else "none"
            return f"shared GPUs that are free and steady are enough for {free}, and it needs {missing} more"
        new = self._as_grants(job, chosen)
        self._take(new)
        return _has((), shared, len(chosen))

    def _waits_s(self, job: ElasticJob) -> float:
        """The seconds for which a job with `auto` still waits for GPUs of its own."""
        if not job.auto or any(grant.shared_gpus for grant in job.grants):
            return 0.0
        base = self._bases.get(job.key)
        since = max(job.last_resize_at, (base.started_at if base else None) or 0.0)
        return max(0.0, since + self._settings.wait_s - self._now)

    def _choose(self, job: ElasticJob, gpu_type: str, most: int) -> list[Host]:
        """Up to `most` shared GPUs of a type, the least busy first, with CPUs and memory for a worker.

        A job has one satellite on a node, so a node where it has one already is left out.
        """
        closed = {grant.node for grant in job.grants}
        closed |= {node for node, at in job.retry_at.items() if at > self._now}
        worker = _without_gpus(job.shape)
        fits = {
            name: self._rooms[name].idle.holds(worker)
            for name in self._shared_nodes - closed
            if name in self._rooms and self._rooms[name].usable
            if gpu_type in ("", self._rooms[name].node.gpu_type)
            if job.node_filter.permits(self._rooms[name].node)
        }
        chosen: list[Host] = []
        nodes: set[str] = set()
        ready = [host for host in self._hosts.values() if self._is_free(job, host)]
        for host in sorted(ready, key=_load):
            node = host.gpu[0]
            opens = node not in nodes and len(nodes) >= self._satellites_left()
            if len(chosen) < most and fits.get(node, 0) > 0 and not opens:
                fits[node] -= 1
                nodes.add(node)
                chosen.append(host)
        return chosen

    def _satellites_left(self) -> float:
        """The number of further satellites that are allowed."""
        if self._rules.max_satellites is None:
            return math.inf
        new = sum(isinstance(each, Grow) for each in (*self._before.actions, *self.actions))
        return self._rules.max_satellites - new - sum(len(job.all_grants) for job in self._snapshot.elastic)

    def _is_free(self, job: ElasticJob, host: Host) -> bool:
        node, number = host.gpu
        room = self._rooms.get(node)
        return (
            host.ready
            and host.gpu not in self._taken
            and may_use(job, host, self._settings)
            and room is not None
            and number in offered(room.node)
        )

    def _as_grants(self, job: ElasticJob, chosen: Iterable[Host]) -> tuple[Grow, ...]:
        by_node: dict[str, list[Host]] = {}
        for host in chosen:
            by_node.setdefault(host.gpu[0], []).append(host)
        return tuple(
            Grow(
                *(job.key, node, len(hosts), self._settings.partition),
                why=f"shared with {_holders(hosts)}",
                shared_gpus=devices_of(host.gpu[1] for host in hosts),
            )
            for node, hosts in by_node.items()
        )

    def _take(self, new: Iterable[Grow]) -> None:
        shapes = {job.key: job.shape for job in self._snapshot.elastic}
        for each in new:
            self.actions.append(each)
            worker = shapes[each.job]
            worker = _without_gpus(worker) if each.shared_gpus else worker
            self._rooms[each.node].take(worker * each.workers)
            self._taken.update(gpus_on(each.node, each.shared_gpus))


class _AllStay(Policy):
    """The policy by which every job that it knows keeps its size."""

    name: ClassVar[str] = "all stay"
    __slots__ = ()

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """No target at all."""
        return Targets()


def _nodes_of_partition(snapshot: Snapshot, name: str) -> frozenset[str]:
    return next((each.nodes for each in snapshot.partitions if name and each.name == name), frozenset())


def _without_gpus(worker: Resources) -> Resources:
    return replace(worker, gpus=0, gpu_type="")


def _load(host: Host) -> tuple[float, Gpu]:
    return (host.use.utilization if host.use else 1.0), host.gpu


def _size(grants: Iterable[Grant]) -> int:
    return sum(grant.workers for grant in grants)


def _has(own: Sequence[Grant], shared: Sequence[Grant], new: int = 0) -> str:
    kinds = Counter({"of its own": _size(own), "that others hold": _size(shared)})
    told = [f"{workers(number)} on GPUs {kind}" for kind, number in kinds.items() if number]
    if new:
        told.append(f"{workers(new)} more are granted now")
    return " and ".join(told) or "it has no workers"


def _named(gpus: Iterable[Gpu]) -> str:
    return " and ".join(f"GPU {number} of {node}" for node, number in gpus)


def _holders(hosts: Iterable[Host]) -> str:
    return ", ".join(f"job {host.holder} (GPU {host.gpu[1]}, {_load(host)[0]:.0%} busy)" for host in hosts)
