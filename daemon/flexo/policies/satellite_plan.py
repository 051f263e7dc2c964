"""One plan of satellites in the making: the state that the steps of the planner share.

`satellites` runs the steps in turn. Each step changes rooms and jobs here, and adds actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.measured import SlowGpu
from flexo.model.plans import Action, Shrink, Snapshot
from flexo.model.queue import JobKey
from flexo.policies.base import Target
from flexo.policies.capacity_index import CapacityIndex, Kind
from flexo.policies.demand import rate
from flexo.policies.node_capacity import (
    HeldGrant,
    build_rooms,
    lent_nodes,
    satellite_nodes,
)
from flexo.policies.pending import Reservation
from flexo.policies.resize_benefit import PAUSE_S, START_S, idle_for, pays


@dataclass(slots=True)
class JobInPlan:
    """One elastic job while idle GPUs are dealt out."""

    job: ElasticJob
    workers: int
    """The job's workers, with those dealt to it."""
    rested_at: float
    """The job neither grows nor gives back for others before this time, because it was resized not long
    before."""
    may_grow_at: float
    closed: frozenset[str]
    """Nodes on which the job may not be given workers now."""
    target: Target
    """The job's target, at most its ceiling."""
    open_node: str = ""
    dealt: dict[str, int] = field(default_factory=dict)

    @property
    def before(self) -> int:
        """The job's workers, without those dealt to it in this plan."""
        return self.workers - sum(self.dealt.values())

    @property
    def steady(self) -> bool:
        """Whether it may be resized at all."""
        return self.job.scalable and not self.job.pending_command


class PlanInMaking:
    """The free resources, the jobs' present and future workers, and the changes. Mutable."""

    def __init__(self, snapshot: Snapshot, min_resize_interval_s: float, max_satellites: int | None) -> None:
        self.snapshot = snapshot
        self.now = snapshot.at
        self.min_resize_interval_s = min_resize_interval_s
        self.max_satellites = max_satellites
        self.satellites_left = _left(max_satellites, snapshot.elastic)
        """Number of further satellites that are allowed."""
        self.satellites_are_few = False
        """Whether fewer satellites are allowed than jobs would grow."""
        self.evenly = False
        """Whether the policy has jobs share evenly, instead of setting a size for each."""
        self.rooms = build_rooms(snapshot)
        self.slow, self.slow_of = _slow_nodes(snapshot.slow_gpus)
        """Slow GPUs: `slow` by node, for every job; `slow_of` by user and node."""
        self.lent = lent_nodes(snapshot)
        places = satellite_nodes(snapshot) & self.rooms.keys()
        self.nodes = sorted(places - self.slow.keys())
        self.left_alone = sorted(places & self.slow.keys())
        self.idle_for = idle_for(snapshot, self.nodes)
        self.index: CapacityIndex
        """The index of the rooms after pending jobs have got their reservations."""
        self.actions: list[Action] = []
        self.resting: set[JobKey] = set()
        """Jobs that give something back in this plan, so that they do not grow in it."""
        self.claims: list[Reservation] = []
        self.jobs: dict[JobKey, JobInPlan] = {}
        self._known = {job.key: job for job in snapshot.training}
        self._withdrawn: set[str] = set()

    def withdraw(self, standing: HeldGrant, why: str, *, of_itself: bool = False) -> None:
        """Make a job give a satellite back. The caller has to take back its room."""
        self._withdrawn.add(standing.grant.grant_id)
        self.resting.add(standing.job.key)
        self.actions.append(Shrink(standing.job.key, standing.grant.grant_id, why, of_itself))

    def settle_jobs(self) -> None:
        """Enter all elastic jobs, after pending jobs have got their reservations. From here on, jobs grow."""
        self.index = CapacityIndex(self.rooms, self.nodes, self.idle_for)
        self.jobs = {job.key: self._job(job) for job in self.snapshot.elastic}

    def _job(self, job: ElasticJob) -> JobInPlan:
        rested_at = job.last_resize_at + self.min_resize_interval_s if job.last_resize_at else 0.0
        if job.key in self.resting:
            rested_at = self.now + self.min_resize_interval_s
        held_back = {node for node, at in job.retry_at.items() if at > self.now}
        # also the nodes of satellites that are leaving: a job has one satellite per node
        own = {grant.node for grant in job.grants} | self.slow_of.get(job.user, {}).keys()
        workers = job.granted_workers - sum(
            grant.workers for grant in job.grants if grant.grant_id in self._withdrawn
        )
        target = Target(job.key, job.ceiling)
        may_grow_at = max(rested_at, job.rest_until)
        return JobInPlan(job, workers, rested_at, may_grow_at, frozenset(held_back | own), target)

    # The satellites that a job has.

    def satellites_of(self, job: ElasticJob) -> list[HeldGrant]:
        """The job's satellites that stand, node by node."""
        nodes = sorted({grant.node for grant in job.grants} & self.rooms.keys())
        return [each for node in nodes for each in self.rooms[node].standing if each.job.key == job.key]

    def standing_of(self, job: ElasticJob) -> tuple[Grant, ...]:
        """The job's grants, without those that are on their way out."""
        return tuple(
            grant
            for grant in job.grants
            if grant.state is not SatelliteState.LEAVING and grant.grant_id not in self._withdrawn
        )

    def may_give(self, job: JobInPlan, standing: HeldGrant) -> bool:
        """Whether the satellite may be taken from the job for the sake of others."""
        settled = standing.grant.state in (SatelliteState.WARMING, SatelliteState.TRAINING)
        return settled and job.steady and standing.grant.grant_id not in self._withdrawn

    # The nodes on which a job may grow.

    def takes_part(self, job: JobInPlan) -> bool:
        """Whether idle GPUs are dealt to the job: not while the cluster refuses it satellites."""
        return job.steady and job.workers < job.target.workers and job.job.rest_until <= self.now

    def may_open(self, job: JobInPlan, node: str) -> bool:
        """Whether the job may be given a satellite on `node`."""
        free = node not in job.closed and node not in job.dealt
        return free and self.suits(job.job, node) and self.pays(job, node)

    def room_for(self, job: JobInPlan) -> int:
        """Further workers that the job could be given on all nodes that it may open."""
        kind = self.kind(job.job)
        held = {name: self.index.holds(kind, name) for name in job.closed | job.dealt.keys()}
        closed = sum(fits for name, fits in held.items() if fits and self.pays(job, name))
        return self.index.total(kind, partial(self.pays_with, job)) - closed

    def kind(self, job: ElasticJob) -> Kind:
        """The nodes that suit the job: those that its own request permits, of the GPU type that its base is
        on, or of all types if the job is heterogeneous.

        A job that names a type fits nowhere else. For a job without GPUs, no type matters.
        """
        if job.heterogeneous or job.shape.gpu_type or not job.shape.gpus:
            return Kind(job.shape, None, job.node_filter)
        types = (self.rooms[name].node.gpu_type for name in job.base_nodes if name in self.rooms)
        return Kind(job.shape, frozenset(types), job.node_filter)

    def suits(self, job: ElasticJob, node: str) -> bool:
        """Whether the job's own request permits the node, and its GPUs are of a type that the job has."""
        return self.kind(job).suits(self.rooms[node].node)

    def pays(self, job: JobInPlan, node: str) -> bool:
        """Whether a satellite on `node` gains more than it costs, before its GPUs are likely to be needed
        elsewhere."""
        room, shape = self.rooms[node], job.job.shape
        fits = room.idle.holds(shape) or room.node.capacity.holds(shape)
        return self.pays_with(job, fits, self.idle_for[node])

    def pays_with(self, job: JobInPlan, fits: int, stay_s: float) -> bool:
        """Whether a satellite pays where `fits` workers fit and GPUs stay for `stay_s`.

        While the satellite starts, the job trains as before. If nothing is known of the job, a satellite
        pays.
        """
        known = self._known.get(job.job.key)
        if known is None or stay_s == math.inf:
            return True
        grown = min(job.target.workers, job.workers + fits)
        nodes = len(job.job.base_nodes) + len(job.job.grants)
        rates = rate(known, job.before, nodes), rate(known, grown, nodes + 1)
        return pays(*rates, max(0.0, stay_s - START_S), PAUSE_S)

    def may_begin(self, job: JobInPlan) -> Iterator[tuple[str, int]]:
        """The workers dealt to the job, by node, as far as the ceiling allows. Satellites that are leaving
        still count."""
        left = job.job.ceiling - job.job.base_workers - sum(grant.workers for grant in job.job.grants)
        for node, workers in job.dealt.items():
            if workers <= left:
                left -= workers
                yield node, workers


def _slow_nodes(
    slow: Iterable[SlowGpu],
) -> tuple[dict[str, SlowGpu], dict[str, dict[str, SlowGpu]]]:
    """Slow GPUs by node, for nodes that no job gets because two users report the node; and by user and node.

    A report without a user counts for every user.
    """
    users: dict[str, set[str]] = {}
    everybody: dict[str, SlowGpu] = {}
    of_user: dict[str, dict[str, SlowGpu]] = {}
    for gpu in slow:
        said = users.setdefault(gpu.node, set())
        said.add(gpu.user)
        of_user.setdefault(gpu.user, {})[gpu.node] = gpu
        if "" in said or len(said) > 1:
            everybody[gpu.node] = gpu
    return everybody, of_user


def _left(max_satellites: int | None, jobs: Iterable[ElasticJob]) -> float:
    """The number of further satellites that are allowed; infinite: there is no limit."""
    if max_satellites is None:
        return math.inf
    return max(0, max_satellites - sum(len(job.all_grants) for job in jobs))
