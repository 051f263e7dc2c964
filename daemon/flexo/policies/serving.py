"""Serves jobs in an order, taking GPUs from those that come later: what preemptive policies share.

First who runs, and with how many workers, is decided by counting GPUs (`choose`); then where (`settle`). What
runs on stays where it is, and a job is preempted only if somebody takes its GPUs. A job with workers on an
unusable node is left alone: nobody else could have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexo.model.nodes import Node
from flexo.model.queue import JobKey
from flexo.model.training import Share, TrainingJob
from flexo.policies.base import Jobs, Target
from flexo.policies.demand import least
from flexo.policies.placement import FreeGpus, Placement, dearest_first
from flexo_protos.resources import Amount

Size = Callable[[TrainingJob], int]
"""Workers that a job is to run with."""
Chooser = Callable[[Sequence[TrainingJob]], "Chosen"]
"""Who of the jobs in an order runs."""
Why = Callable[[TrainingJob], str]
"""Half a sentence: why a job has its turn, or has lost it."""
Place = Callable[[FreeGpus, TrainingJob, int], tuple[Share, ...] | None]
"""Where a job that starts with so many workers goes, if it fits."""


@dataclass(slots=True)
class Serving:
    """A job that is to run with `workers`."""

    job: TrainingJob
    workers: int


class Budget:
    """GPUs that can be had, by type: idle ones, and those that can be taken from running jobs."""

    __slots__ = ("_nodes", "_one_type", "left")

    def __init__(self, nodes: Sequence[Node], jobs: Sequence[TrainingJob]) -> None:
        self.left: dict[str, Amount] = {}
        """By GPU type."""
        for node in nodes:
            self.left[node.gpu_type] = self.left.get(node.gpu_type, 0) + node.gpus_idle
        self._one_type = next(iter(self.left)) if len(self.left) == 1 else None
        alike = self._one_type is not None
        self._nodes = {} if alike else {node.name: node.gpu_type for node in nodes}
        for job in jobs:
            if job.shares:
                self.left[self._type_of(job)] += job.gpus - _kept(job)

    def grant(self, job: TrainingJob, workers: int) -> int:
        """Workers that `job` may run with: `workers`, else, if it cannot be preempted, fewer, else none."""
        gpu_type = self._type_of(job)
        each = job.shape.gpus
        kept, left = _kept(job), self.left.get(gpu_type, 0)
        if kept:
            workers = max(workers, least(job))
        if workers * each - kept > left:
            if not kept:
                return 0
            workers = (kept + left) // each
        self.left[gpu_type] = left + kept - workers * each
        return workers

    def grow(self, serving: Serving) -> bool:
        """One worker more for `serving`, if there is enough."""
        gpu_type = self._type_of(serving.job)
        if self.left.get(gpu_type, 0) < serving.job.shape.gpus:
            return False
        self.left[gpu_type] -= serving.job.shape.gpus
        serving.workers += 1
        return True

    def shrink(self, serving: Serving, workers: int) -> None:
        """Only `workers` for `serving`, of those that it was granted."""
        self.left[self._type_of(serving.job)] += (serving.workers - workers) * serving.job.shape.gpus
        serving.workers = workers

    def _type_of(self, job: TrainingJob) -> str:
        """Of a running job, the type of its nodes; of a waiting one that names none, that with most left."""
        if self._one_type is not None and (job.shares or job.shape.gpu_type in ("", self._one_type)):
            return self._one_type
        if job.shares:
            return self._nodes.get(job.shares[0].node, job.shape.gpu_type)
        return job.shape.gpu_type or max(self.left, key=self.left.__getitem__, default="")


@dataclass(slots=True)
class Chosen:
    """Who runs, who does not, and what that leaves."""

    servings: list[Serving]
    waiting: list[TrainingJob]
    """In the order of service, with those that are preempted."""
    budget: Budget


def movable(jobs: Jobs, placement: Placement) -> list[TrainingJob]:
    """All jobs but those with workers on unusable nodes, in the order of submission."""
    unusable = {node.name for node in placement.nodes if node.unusable}
    if not unusable:
        return list(jobs.training)
    return [job for job in jobs.training if all(share.node not in unusable for share in job.shares)]


def choose(placement: Placement, order: Sequence[TrainingJob], size: Size) -> Chosen:
    """Serve jobs in `order` as long as there are GPUs; one that does not fit is passed over."""
    budget = Budget(placement.nodes, order)
    servings: list[Serving] = []
    waiting: list[TrainingJob] = []
    for job in order:
        workers = budget.grant(job, size(job))
        if workers:
            servings.append(Serving(job, workers))
        else:
            waiting.append(job)
    return Chosen(servings, waiting, budget)


def serve(
    placement: Placement, order: Sequence[TrainingJob], chooser: Chooser, why: Why, place: Place
) -> tuple[Chosen, tuple[Target, ...]]:
    """Who runs, as `chooser` says of `order`, and the targets that this comes to, put into `placement`.

    A job that fits by count, but on no set of nodes (its workers take several GPUs each), is left out and
    waits; the others are then chosen anew, so that nobody is preempted in vain.
    """
    left_out: list[TrainingJob] = []
    while True:
        chosen = chooser(order)
        settled = _Settling(placement, chosen, why).targets(place)
        if not isinstance(settled, TrainingJob):
            chosen.waiting.extend(left_out)
            return chosen, settled
        left_out.append(settled)
        order = [job for job in order if job is not settled]


def consolidated(free: FreeGpus, job: TrainingJob, workers: int) -> tuple[Share, ...] | None:
    """On one node if one holds it, else on as few as possible."""
    return free.place(job.shape, workers)


class _Settling:
    """Places for those whose shares change. Mutable: one plan in the making."""

    def __init__(self, placement: Placement, chosen: Chosen, why: Why) -> None:
        servings = chosen.servings
        self._resized = [each for each in servings if each.job.shares and each.workers != each.job.allocated]
        self._starters = [each for each in servings if not each.job.shares]
        self._preempted = [job for job in chosen.waiting if job.shares]
        self._placement = placement
        self._places: dict[JobKey, tuple[Share, ...]] = {}
        self._why = why

    def targets(self, place: Place) -> tuple[Target, ...] | TrainingJob:
        """What changes; or the first job that has no place."""
        if not (self._resized or self._starters or self._preempted):
            return ()
        shrunk = [each for each in self._resized if each.workers < each.job.allocated]
        grown = [each for each in self._resized if each.workers > each.job.allocated]
        free = self._placement.free([*self._preempted, *(each.job for each in shrunk)])
        targets = [self._resize(free, each) for each in shrunk]
        for each in self._starters:
            shares = place(free, each.job, each.workers)
            if shares is None:
                return each.job
            free.take(each.job.shape, shares)
            targets.append(self._target(each.job, shares, "starts with"))
        targets += self._preemptions(free)
        for each in grown:
            free.give(each.job.shape, each.job.shares)
            targets.append(self._resize(free, each))
        for key, shares in self._places.items():
            self._placement.put(key, shares)
        return tuple(target for target in targets if target is not None)

    def _preemptions(self, free: FreeGpus) -> list[Target]:
        """Of those that did not get their turn: they run on if nobody has taken their GPUs."""
        taken: list[Target] = []
        for job in self._preempted:
            if all(free.of_node(share.node) >= share.workers * job.shape.gpus for share in job.shares):
                free.take(job.shape, job.shares)
            else:
                taken.append(Target(job.key, 0, f"gives way and waits: {self._why(job)}"))
        return taken

    def _resize(self, free: FreeGpus, serving: Serving) -> Target | None:
        """As near to what it is to have as there is room, beside what it has; its GPUs are free here."""
        job = serving.job
        keep = dearest_first(job)
        workers = serving.workers
        while (shares := free.place(job.shape, workers, keep)) is None:
            workers -= 1  # ends at what it has, which fits
        free.take(job.shape, shares)
        if workers == job.allocated:
            return None
        return self._target(job, shares, "grows to" if workers > job.allocated else "shrinks to")

    def _target(self, job: TrainingJob, shares: tuple[Share, ...], what: str) -> Target:
        self._places[job.key] = shares
        workers = sum(share.workers for share in shares)
        return Target(job.key, workers, f"{what} {workers} of {job.workers} workers: {self._why(job)}")


def _kept(job: TrainingJob) -> Amount:
    """GPUs that cannot be taken from a job."""
    return 0 if job.preemptible or not job.shares else least(job) * job.shape.gpus
