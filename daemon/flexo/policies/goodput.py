"""The policy goodput: every GPU goes where it shortens jobs most (docs/explanation/policies-speed.md).

Goodput is that of Pollux (Qiao et al., OSDI 2021, section 3): work per second, at the best batch, as far as a
job has found that out. In each round a multiple-choice knapsack gives every job one of the sizes that it
could have. A size is worth

    weight * (speedup * (1 - cost_s / H))^beta / T^alpha   (the cost only where the size is another)

The speedup is relative to the job's smallest size. T is the time that the job would still take with its
smallest size. A job that is nearly done counts for more, as in SRPT, but the exponent is below one. Jobs
scale worse than linearly, and two half-sized jobs get more out of the GPUs than one after the other (Berg et
al., "heSRPT: Parallel scheduling to minimize mean slowdown", 2020). With beta below one, a job's first GPUs
count for more than its later ones, so that fewer jobs are preempted (as with Sia's power p). If the rest of a
job's work is unknown, it is taken to be as much as the work so far.

H is how long a size is likely to last. Jobs that have had theirs for long are likely to keep the next one for
long. A change to more workers than a job ever had counts twice: it may have to be undone.

Where nodes have several GPU types and jobs know their speed on each, a size is one of a type, and the speedup
is relative to the smallest size on the slowest type (as in Sia, Jayaram Subramanya et al., SOSP 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.demand import fewest_workers, rate, requested
from flexo.policies.knapsack import Group, choose
from flexo.policies.knapsack_by_type import TypedGroup, choose_by_type
from flexo.policies.placement import FreeGpus, Placement, shares_to_keep
from flexo.policies.serving import movable
from flexo_protos.resources import Amount, total

_SHORTEST_S = 60.0
"""The shortest time to its end that is assumed for a job."""
_MOST_LOST = 0.9
"""The largest part of a size's worth that the cost of changing to it can take away."""
_EVERY_SIZE_UP_TO = 8
"""The number of workers up to which every size is tried. Beyond it, sizes are tried in steps of about an
eighth."""


@dataclass(frozen=True, slots=True)
class Goodput(Policy):
    """The policy and its settings."""

    name: ClassVar[str] = "goodput"
    weighs_users: ClassVar[bool] = True

    alpha: float = 0.6
    """The exponent of the remaining time: 0: it does not count; 1: as in shortest-remaining-time-first."""
    guessed_alpha: float = 0.4
    """The same for a job whose remaining time is a guess."""
    beta: float = 0.6
    """The exponent of the speedup: 1: a job's last GPU counts like its first; 0: all sizes count alike."""
    lasts_s: float = 100.0
    """H: the least seconds that a size is likely to last."""
    stay_costs: float = 2.0
    """A size is likely to last at least this many times as long as the change to it costs."""
    stay_share: float = 0.2
    """A size is likely to last for at least this part of the time for which the job has had its present
    one."""
    untried_costs: float = 2.0
    """How many times the cost of a change to more workers than a job ever had counts."""
    first_workers: int = 2
    """The most workers with which a job starts that has not run before."""
    growth: int = 8
    """The most workers of a job are this number times the most workers that it has run with."""
    patience_s: float = 1800.0
    """The wait that doubles the worth of a pending job; twice this wait triples it, and so on."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """The changes of this round."""
        return _Round(self, jobs, placement).targets()


@dataclass(frozen=True, slots=True)
class _Size:
    """The size that one job gets."""

    workers: int
    nodes: int
    gpu_type: str
    """The GPU type; "": of any type."""


@dataclass(frozen=True, slots=True)
class _Worth:
    """What decides the worth of all sizes of one job."""

    weight: float
    beta: float
    slowest: float
    """Work per second with its smallest size."""
    left: float
    """Work that is left."""
    cost_s: float
    """The cost of a change to a size that it has tried."""
    untried_cost_s: float
    most_tried: int
    stays_s: float
    """The seconds that a size is likely to last."""

    @classmethod
    def of(cls, job: TrainingJob, settings: Goodput, now: float, slowest: float, left: float) -> _Worth:
        """The worth of this job's sizes."""
        cost_s = job.change_cost_s
        stays_s = max(
            settings.lasts_s,
            settings.stay_costs * cost_s,
            settings.stay_share * (now - job.last_change_at),
        )
        waited_s = 0.0 if job.shares else now - job.waiting_since
        alpha = settings.guessed_alpha if job.remaining_work is None else settings.alpha
        left_s = max(_SHORTEST_S, left / slowest)
        weight = job.weight * (1.0 + waited_s / settings.patience_s) * math.pow(left_s, -alpha)
        tried = max(job.most_workers, settings.first_workers)
        return cls(
            *(weight, settings.beta, slowest, left),
            *(cost_s, cost_s * settings.untried_costs, tried, stays_s),
        )

    def value(self, workers: int, pace: float, *, changes: bool) -> float:
        """The worth of a size: the job's weight times its speedup, less the loss by a change to it."""
        kept = 1.0 - self._lost(workers, pace) if changes else 1.0
        return self.weight * math.pow(kept * pace / self.slowest, self.beta)

    def _lost(self, workers: int, pace: float) -> float:
        """The part of the time with a new size that the change to it takes away."""
        left_s = self.left / pace if pace > 0 else math.inf
        cost_s = self.untried_cost_s if workers > self.most_tried else self.cost_s
        return min(_MOST_LOST, cost_s / max(_SHORTEST_S, min(self.stays_s, left_s)))


@lru_cache(maxsize=1 << 14)
def _tried(low: int, high: int, present: int, on_one: int) -> tuple[int, ...]:
    """The sizes to try from `low` to `high`, and the present one. `on_one`: workers that one node holds."""
    sizes = {low, high} | ({present} if low <= present else set())
    size = low
    while size < high:
        sizes.add(size)
        size += max(1, size // _EVERY_SIZE_UP_TO)
    sizes.update(range(on_one, min(high, on_one * _EVERY_SIZE_UP_TO) + 1, on_one))
    return tuple(sorted(size for size in sizes if low <= size <= max(high, present)))


@dataclass(slots=True)
class _Offer:
    """All sizes that one job could have, column by column. If none is chosen, the job gets `held` workers.

    A round has some hundred thousand sizes, and an object for each would take as long as all the rest.
    Mutable: belongs to one round.
    """

    job: TrainingJob
    held: int
    """Workers that the job has in any case."""
    workers: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    gpu_types: list[str] = field(default_factory=list)
    """"": of any type."""
    gpus: list[Amount] = field(default_factory=list)
    """GPUs beyond those that the job has in any case."""
    values: list[float] = field(default_factory=list)

    def size(self, item: int) -> _Size:
        """The size of an item."""
        return _Size(self.workers[item], self.nodes[item], self.gpu_types[item])

    def add(self, workers: int, nodes: int, gpu_type: str, gpus: Amount, value: float) -> None:
        """Add a size."""
        self.workers.append(workers)
        self.nodes.append(nodes)
        self.gpu_types.append(gpu_type)
        self.gpus.append(gpus)
        self.values.append(value)


class _Round:
    """One decision in the making."""

    def __init__(self, settings: Goodput, jobs: Jobs, placement: Placement) -> None:
        self._settings = settings
        self._now = jobs.at
        self._placement = placement
        self._jobs = [job for job in movable(jobs, placement) if job.shape.gpus]
        usable = [node for node in placement.nodes if not node.unusable]
        self._largest = {"": max((node.gpus for node in usable), default=0)}
        self._gpus = {"": total(node.gpus for node in usable)}
        self._type_of: dict[str, str] = {}
        if len({node.gpu_type for node in usable}) > 1 and any(job.speeds for job in self._jobs):
            self._type_of = {node.name: node.gpu_type for node in placement.nodes}
            for node in usable:
                self._largest[node.gpu_type] = max(self._largest.get(node.gpu_type, 0), node.gpus)
                self._gpus[node.gpu_type] = self._gpus.get(node.gpu_type, 0) + node.gpus

    def targets(self) -> Targets:
        offers = [self._offer(job) for job in self._jobs]
        free = self._placement.free(self._jobs)
        changed: list[tuple[TrainingJob, _Size]] = []
        for offer, item in zip(offers, self._choose(offers, free), strict=True):
            job, here = offer.job, self._type_here(offer.job)
            size = offer.size(item) if item >= 0 else _Size(offer.held, 0, here)
            same_place = item < 0 or (size.nodes == len(job.shares) and size.gpu_type == here)
            if size.workers != job.allocated or not same_place:
                changed.append((job, size))
        return Targets(tuple(self._placed(free, changed)))

    def _choose(self, offers: Sequence[_Offer], free: FreeGpus) -> Sequence[int]:
        """Per offer: the index of its size; -1: none."""
        if not self._type_of:
            held = total(offer.held * offer.job.shape.gpus for offer in offers)
            return choose(
                [Group(offer.gpus, offer.values) for offer in offers], max(0, free.total - held)
            ).items
        capacity = {name: 0 for name in self._gpus if name}
        for name, gpu_type in self._type_of.items():
            if gpu_type in capacity:
                capacity[gpu_type] += int(free.of_node(name))
        for offer in offers:
            if offer.held:
                capacity[self._type_here(offer.job)] -= int(offer.held * offer.job.shape.gpus)
        room = {name: max(0, gpus) for name, gpus in capacity.items()}
        return choose_by_type(
            [TypedGroup(offer.gpu_types, offer.gpus, offer.values) for offer in offers], room
        )

    def _type_here(self, job: TrainingJob) -> str:
        """The GPU type that the job has; "": none, or types make no difference."""
        return self._type_of.get(job.shares[0].node, "") if job.shares else ""

    def _types_of(self, job: TrainingJob, held: int) -> tuple[str, ...]:
        """The GPU types among which the job's sizes are chosen."""
        if not self._type_of:
            return ("",)
        if job.shape.gpu_type:
            return (job.shape.gpu_type,)
        return (self._type_here(job),) if held else tuple(name for name in self._gpus if name)

    def _offer(self, job: TrainingJob) -> _Offer:
        held = fewest_workers(job) if job.base or (job.shares and self._runs_on(job)) else 0
        types = self._types_of(job, held)
        slowest = self._slowest(job, types)
        worth = _Worth.of(job, self._settings, self._now, slowest, self._left(job))
        offer = _Offer(job, held)
        for gpu_type in types:
            self._add_sizes(offer, gpu_type, worth)
        base = offer.values[offer.workers.index(held)] if held in offer.workers else 0.0
        if base:
            offer.values = [value - base for value in offer.values]
        return offer

    def _add_sizes(self, offer: _Offer, gpu_type: str, worth: _Worth) -> None:
        """Add the sizes to try on a GPU type, each with its worth: the present size on its present nodes,
        every size on as few nodes as possible."""
        job = offer.job
        here = gpu_type == self._type_here(job)
        speed = job.speed_on(gpu_type) if gpu_type else job.speed
        present, on_nodes = job.allocated, len(job.shares)
        on_one = self._workers_of_a_node(job, gpu_type)
        each = int(job.shape.gpus) if gpu_type else job.shape.gpus
        for workers in self._sizes(job, gpu_type):
            fewest, gpus = -(-workers // on_one), (workers - offer.held) * each
            stays = here and workers == present
            if stays and on_nodes != fewest:
                pace = float(workers) if speed is None else speed.rate(workers, on_nodes)
                offer.add(workers, on_nodes, gpu_type, gpus, worth.value(workers, pace, changes=False))
            pace = float(workers) if speed is None else speed.rate(workers, fewest)
            changes = on_nodes > 0 and not (stays and on_nodes == fewest)
            offer.add(workers, fewest, gpu_type, gpus, worth.value(workers, pace, changes=changes))

    def _slowest(self, job: TrainingJob, types: Sequence[str]) -> float:
        """Work per second with the smallest size, on the slowest of these types on which it can train."""
        smallest = self._sizes(job, types[0])[0]
        rates = [
            rate(job, smallest, -(-smallest // self._workers_of_a_node(job, each)), each) for each in types
        ]
        # no rate is known for its smallest size, or it cannot train so: assume that it is linear
        return min((each for each in rates if each > 0), default=float(smallest))

    def _runs_on(self, job: TrainingJob) -> bool:
        """Whether the job may not be preempted now.

        A job is preempted neither before it has trained for as long as its start took, nor if it would lose
        all its work. Otherwise, where a start takes as long as a round, jobs would take turns for ever
        without progress.
        """
        lately = self._now - job.resumes_at < job.start_cost_s
        return lately or not (job.preemptible and job.checkpoints)

    def _sizes(self, job: TrainingJob, gpu_type: str) -> Sequence[int]:
        """The sizes that the job may be given in this round on a GPU type, ascending; at least one."""
        if not job.elastic:
            return (requested(job),)
        low = fewest_workers(job)
        settings = self._settings
        tried = max(settings.first_workers, job.most_workers * settings.growth)
        most = self._gpus[gpu_type] // job.shape.gpus
        high = max(low, min(job.workers.max, tried, most))
        return _tried(low, high, job.allocated, self._workers_of_a_node(job, gpu_type))

    def _workers_of_a_node(self, job: TrainingJob, gpu_type: str) -> int:
        return max(1, self._largest[gpu_type] // job.shape.gpus)

    def _left(self, job: TrainingJob) -> float:
        """Work that is left; if that is not known, as much as the job has done."""
        left = job.remaining_at(self._now)
        if left is not None:
            return max(0.0, left)
        return job.service_at(self._now) / job.shape.gpus * rate(job, 1, 1)

    def _placed(self, free: FreeGpus, changed: Sequence[tuple[TrainingJob, _Size]]) -> Iterator[Target]:
        """Place the jobs that change, the largest first, around the jobs that stay and all bases."""
        moving = {job.key for job, _ in changed}
        for job in self._jobs:
            free.take(job.shape, job.base if job.key in moving else job.shares)
        for job, size in sorted(changed, key=lambda each: -each[1].workers * each[0].shape.gpus):
            free.give(job.shape, job.base)
            shares = self._place(free, job, size)
            free.take(job.shape, shares)
            if shares != job.shares:
                yield Target(job.key, self._placement.put(job.key, shares), _why(job, shares))

    def _place(self, free: FreeGpus, job: TrainingJob, size: _Size) -> tuple[NodeShare, ...]:
        """Nodes for a size: as few as possible, the present ones if these are as few. Fewer workers if need
        be."""
        shape = replace(job.shape, gpu_type=size.gpu_type) if size.gpu_type else job.shape
        keep = shares_to_keep(job) if size.gpu_type == self._type_here(job) else job.base
        workers = size.workers
        while workers >= fewest_workers(job):
            here = free.place(shape, workers, keep)
            anywhere = free.place(shape, workers, job.base)
            if here is not None and (anywhere is None or len(here) <= len(anywhere)):
                return here
            if anywhere is not None:
                return anywhere
            if not job.elastic:
                break
            workers -= 1
        return job.base


def _why(job: TrainingJob, shares: tuple[NodeShare, ...]) -> str:
    workers, before = sum(share.workers for share in shares), job.allocated
    if not workers:
        return "its GPUs shorten the time of others more"
    size = f"{workers} of {job.workers} workers on {len(shares)} nodes"
    if not before:
        return f"starts with {size}"
    if workers == before:
        return f"moves together: {size}"
    return (
        f"{'grows' if workers > before else 'shrinks'} to {size}: worth most among what all jobs could have"
    )
