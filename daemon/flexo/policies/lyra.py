"""Lyra's two phases: base demand, the shortest first, then flexible demand as a knapsack. The default policy.

Li, Xu, Zhu, Liu, Guo, Wang, "Lyra: Elastic Scheduling for Deep Learning Clusters" (EuroSys 2023; its slides).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Final, Literal

from flexo.model.nodes import Node
from flexo.model.queue import JobKey
from flexo.model.training import TrainingJob
from flexo.policies.base import Jobs, Policy, SiteFact, Target, Targets
from flexo.policies.demand import fewest_workers
from flexo.policies.flexible import Demand, RunningTimes, count, demand_of
from flexo.policies.gpu_speeds import MIXED_EFFICIENCY, T4_SPEED, GpuSpeeds, Paces
from flexo.policies.placement import Placement
from flexo.policies.servers import Servers
from flexo.policies.sharing import Sharing
from flexo.policies.starting import Start, Starting, StarvationLimit, in_order
from flexo.policies.taking import Taking
from flexo_protos.resources import Amount, total

_SHORTEST_S: Final = 60.0
"""The shortest own time that is assumed for a job: the last seconds of a job are worth no resize."""


@dataclass(frozen=True, slots=True)
class Lyra(Policy):
    """Schedules in two phases at every decision (slides, "Lyra - Job Scheduling Heuristic").

    Phase 1 starts bases, the one with the shortest running time first, as far as there is capacity. GPUs of
    flexible workers count as capacity, and are taken back for bases. A base that does not fit is passed over.
    Once it has waited for too long, it goes first, and room is kept for it as EASY backfilling does. A large
    base whose running time is uncertain leaves some flexible workers to small bases, while not all that wait
    find room. A job that is not elastic is all base. A running base is never taken. Phase 2 shares the
    remaining GPUs among all elastic jobs: a multiple-choice knapsack, whose values are the running time
    saved. The cost of a change is subtracted from its value, so that nothing changes without a larger gain.

    The slides leave four things open. A base that does not fit, and one whose running time is uncertain, are
    treated as described above. A resize pays by the rule of Amoeba, section 3.2. Running times come from
    `TrainingJob.source`.
    """

    name: ClassVar[str] = "lyra"
    orders_pending: ClassVar[bool] = True
    weighs_users: ClassVar[bool] = True
    in_flexod: ClassVar[Mapping[str, object]] = {"saved": "parts"}
    from_site: ClassVar[Mapping[str, SiteFact]] = {
        "inference": "borrowed_partition",
        "gpu_speeds": "gpu_speeds",
    }

    order: Literal["policy", "cluster"] = "policy"
    """The order in which pending jobs start: that of this policy (phase 1), or the cluster's own."""
    saved: Literal["seconds", "parts"] = "seconds"
    """The unit of the running time that flexible workers save: seconds, as in the slides, or parts of the
    job's own time. With parts, long jobs do not take GPUs from short ones."""
    inference: str = "borrowed"
    """The name of a partition or feature: nodes that have it are inference servers on loan."""
    gpu_speeds: Mapping[str, float] = field(default_factory=lambda: {"T4": T4_SPEED})
    """The speed of a GPU of a type, in GPUs of the types that are not named (slides: T4 = 1/3 V100)."""
    mixed_efficiency: float = MIXED_EFFICIENCY
    """The part of the sum of speeds that remains where a heterogeneous job has GPUs of several types."""
    patience_s: float = 86_400.0
    """A base that has waited for these seconds, and for `patience_times`, goes first. If it does not fit,
    room is kept for it."""
    patience_times: float = 10.0
    """The least wait of such a base, in its own running times. If all jobs wait for days, this tells which
    ones starve."""
    patience_share: float = 0.25
    """The part of the GPUs for jobs that had waited for so long. While they hold more, no further one goes
    first."""
    small_share: float = 0.25
    """The part of the GPUs that stays idle or flexible for the smallest bases while not all that wait find
    room. A larger base whose running time comes from like jobs, or is not known, takes flexible workers only
    beyond it. If it has waited for too long, it takes any."""
    unknown_running_time_s: float = 86_400.0
    """The running time that is assumed for a base of which nothing is known, so that it may grow. It starts
    last."""
    stay_s: float = 600.0
    """Seconds that flexible workers are likely to stay: growing has to pay within that time."""

    def __post_init__(self) -> None:
        if self.order not in ("policy", "cluster"):
            raise ValueError(f"order is 'policy' or 'cluster', not '{self.order}'")
        if self.saved not in ("seconds", "parts"):
            raise ValueError(f"saved is 'seconds' or 'parts', not '{self.saved}'")
        if not 0 <= self.patience_share <= 1:
            raise ValueError(f"patience_share is from 0 to 1, not {self.patience_share:g}")
        if not 0 <= self.small_share <= 1:
            raise ValueError(f"small_share is from 0 to 1, not {self.small_share:g}")
        GpuSpeeds(self.gpu_speeds, self.mixed_efficiency)  # raises ValueError for speeds that cannot be

    @property
    def patience(self) -> StarvationLimit:
        """The limit beyond which a job has waited for too long."""
        return StarvationLimit(self.patience_s, self.patience_times, self.patience_share)

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """The bases that start, and the workers that each job gets beyond its base."""
        return _Decision(self, jobs, placement).targets()

    def pending_order(self, jobs: Jobs, placement: Placement) -> tuple[JobKey, ...]:
        """Pending jobs: first those that have waited for too long, then the shortest first."""
        if self.order == "cluster":
            return ()
        times, gpus = self.times(jobs.at, placement.nodes), _gpus_of(placement.nodes)
        order = in_order(list(jobs.waiting()), jobs.running(), times, self.patience, gpus)
        return tuple(job.key for job in order)

    def times(self, at: float, nodes: Sequence[Node]) -> RunningTimes:
        """The estimates of running times on these nodes."""
        return RunningTimes(
            at,
            max((node.capacity.gpus for node in nodes), default=1),
            self.unknown_running_time_s,
            _paces(
                tuple(self.gpu_speeds.items()),
                self.mixed_efficiency,
                frozenset([node.capacity.gpu_type for node in nodes]),
            ),
        )


class _Decision:
    """One decision in the making."""

    def __init__(self, rules: Lyra, jobs: Jobs, placement: Placement) -> None:
        self._rules = rules
        self._jobs = jobs
        self._placement = placement
        self._times = rules.times(jobs.at, placement.nodes)

    def targets(self) -> Targets:
        """Run both phases, and return the targets."""
        running = [job for job in self._jobs.training if job.shares]
        able = [job for job in running if job.elastic]
        if self._rests(able):
            return Targets()
        usable = {node.name for node in self._placement.nodes if not node.unusable}
        demands = [demand_of(self._weighed(job), usable) for job in able]
        self._servers = self._make_servers(running, demands)
        for demand in demands:
            demand.flexible.sort(key=self._servers.flexible_rank)
        starts = self._start_bases(running, demands)
        demands += [
            Demand(self._weighed(job), shares, [], starts=True) for job, shares in starts if job.elastic
        ]
        self._share_out(demands)
        put = self._placement.put
        whole = (
            Target(job.key, put(job.key, shares), _why_whole(job))
            for job, shares in starts
            if not job.elastic
        )
        elastic = (
            Target(demand.job.key, put(demand.job.key, demand.shares()), _why(demand))
            for demand in demands
            if demand.changes
        )
        return Targets((*whole, *elastic))

    def _rests(self, able: Sequence[TrainingJob]) -> bool:
        """Whether neither phase can change anything; `able`: the elastic jobs that run.

        A simulation asks at each of its events, and mostly this is so. Counting tells it sooner than a
        search among free GPUs does.
        """
        nodes = self._placement.nodes
        idle = total([node.gpus_idle for node in nodes])
        loose = [(max(0, job.allocated - fewest_workers(job)), job) for job in able]
        if not idle and not any(workers for workers, _ in loose):
            return True
        if any(job.allocated < job.workers.max for job in able):
            return False
        if able and len({node.capacity.gpu_type for node in nodes}) > 1:
            return False  # workers may move to faster GPUs
        if self._rules.order == "cluster":
            return True
        room = idle + total([workers * job.shape.gpus for workers, job in loose])
        waiting = (job for job in self._jobs.training if not job.shares)
        return not any(job.workers.min * job.shape.gpus <= room for job in waiting)

    def _weighed(self, job: TrainingJob) -> TrainingJob:
        """The job with a weight that turns the seconds that it saves into the unit of `saved`."""
        if self._rules.saved == "seconds":
            return job
        alone_s = self._times.on_base(job)
        if alone_s == math.inf:
            alone_s = self._rules.unknown_running_time_s
        return replace(job, weight=job.weight / max(_SHORTEST_S, alone_s))

    def _start_bases(self, running: Sequence[TrainingJob], demands: Sequence[Demand]) -> list[Start]:
        """Phase 1: the bases that start."""
        waiting = list(self._jobs.waiting())
        if self._rules.order == "cluster" or not waiting:
            return []
        gpus = _gpus_of(self._placement.nodes)
        taking = Taking(self._servers, demands, self._times)
        starting = Starting(self._servers, taking, self._times, self._rules.small_share * float(gpus))
        starting.start_bases(waiting, running, self._rules.patience, gpus)
        return list(starting.starts)

    def _make_servers(self, running: Sequence[TrainingJob], demands: Sequence[Demand]) -> Servers:
        """The servers with their idle GPUs; those with base demand are marked."""
        rigid = [job for job in running if not job.elastic]
        base_nodes = {share.node for job in rigid for share in job.shares}
        base_nodes.update(share.node for demand in demands for share in demand.base)
        return Servers(self._placement.nodes, base_nodes, self._rules.inference, self._times.gpus)

    def _share_out(self, demands: Sequence[Demand]) -> None:
        """Phase 2: share the remaining GPUs, one GPU type after the other.

        The fastest type comes first, or a job would have its fill of slow workers. Of equally fast ones,
        inference servers come first, as in the slides.
        """
        for gpu_type in sorted(self._servers.gpu_types, key=self._slowness):
            members = [demand for demand in demands if self._may_use(demand, gpu_type)]
            if members:
                Sharing(self._servers, gpu_type, self._times, self._rules.stay_s).share_out(members)

    def _slowness(self, gpu_type: str) -> float:
        return -self._times.gpus.of_one("", gpu_type)

    def _may_use(self, demand: Demand, gpu_type: str) -> bool:
        """Whether a job may have flexible workers on this GPU type: that of its base, or any if it is
        heterogeneous."""
        if demand.job.heterogeneous:
            return True
        return any(self._servers.gpu_type_of(share) == gpu_type for share in demand.base[:1])


def _gpus_of(nodes: Sequence[Node]) -> Amount:
    return total(node.gpus for node in nodes)


@lru_cache(maxsize=64)
def _paces(speeds: tuple[tuple[str, float], ...], mixed_efficiency: float, types: frozenset[str]) -> Paces:
    """The paces on one cluster. They are cached, because a simulation makes thousands of plans on one
    cluster."""
    return Paces(GpuSpeeds(dict(speeds), mixed_efficiency), types)


def _why_whole(job: TrainingJob) -> str:
    return f"starts with all of its {job.workers.min} workers: of those that may start it is the shortest"


def _why(demand: Demand) -> str:
    job = demand.job
    now, then = job.allocated, count(demand.base) + count(demand.flexible)
    of = f"of {job.workers} workers"
    if demand.starts:
        return f"starts with {then} {of}: of those whose bases may start it is the shortest"
    if then < now:
        due = f"its due is {then} {of} now"  # whole satellites leave: not always as many as are too many
        if demand.gave_to is not None:
            return f"{due}: the base of job {demand.gave_to} starts"
        return f"{due}: other jobs save more time with the rest"
    if then > now:
        return f"grows from {now} to {then} {of}: of all jobs these save the most time here"
    if demand.gave_to is None:
        return f"moves some of its {now} workers to faster GPUs, which are idle"
    return f"moves some of its {now} workers: the base of job {demand.gave_to} needs their nodes"
