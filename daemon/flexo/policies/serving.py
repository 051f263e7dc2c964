"""Serves jobs in an order, and takes GPUs from those that come later: the common part of preemptive policies.

`choose` decides by counting GPUs which jobs run, and with how many workers. `serve` then finds nodes for
them. Running jobs stay where they are, and a job is preempted only if another one takes its GPUs. A job with
workers on an unusable node is left alone, because no other job could have its GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexo.model.nodes import Node
from flexo.model.queue import JobKey
from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Target
from flexo.policies.demand import fewest_workers
from flexo.policies.placement import FreeGpus, Placement, shares_to_keep
from flexo_protos.resources import Amount

Size = Callable[[TrainingJob], int]
"""Returns the number of workers that a job is to run with."""
Chooser = Callable[[Sequence[TrainingJob]], "Chosen"]
"""Chooses which of the jobs in an order run."""
Why = Callable[[TrainingJob], str]
"""Returns half a sentence: why a job has its turn, or has lost it."""
Place = Callable[[FreeGpus, TrainingJob, int], tuple[NodeShare, ...] | None]
"""Returns the nodes of a job that starts with this number of workers, or None if it does not fit."""


@dataclass(slots=True)
class Serving:
    """A job that is to run with `workers`."""

    job: TrainingJob
    workers: int


class Budget:
    """GPUs that can be given out, by type: idle ones, and those that can be taken from running jobs."""

    __slots__ = ("_granted", "_nodes", "_one_type", "left")

    def __init__(self, nodes: Sequence[Node], jobs: Sequence[TrainingJob]) -> None:
        self.left: dict[str, Amount] = {}
        """The GPUs that are left, by type."""
        for node in nodes:
            gpu_type = node.capacity.gpu_type
            self.left[gpu_type] = self.left.get(gpu_type, 0) + node.gpus_idle
        self._one_type = next(iter(self.left)) if len(self.left) == 1 else None
        alike = self._one_type is not None
        self._nodes = {} if alike else {node.name: node.gpu_type for node in nodes}
        self._granted: dict[JobKey, str] = {}
        """The GPU type of each job that names none and has been granted its first workers. Its further ones
        are of the same type, whichever has most GPUs left by then."""
        for job in jobs:
            if job.shares:
                gpu_type = self._one_type if self._one_type is not None else self._type_of(job)
                self.left[gpu_type] += job.allocated * job.shape.gpus - _kept(job)

    def grant(self, job: TrainingJob, workers: int) -> int:
        """Give GPUs to `job`, and return its number of workers: `workers`; if these do not fit, fewer for a
        job that cannot be preempted, and 0 for any other."""
        gpu_type = self._type_of(job)
        each = job.shape.gpus
        kept, left = _kept(job), self.left.get(gpu_type, 0)
        if kept:
            workers = max(workers, fewest_workers(job))
        if workers * each - kept > left:
            if not kept:
                return 0
            workers = (kept + left) // each
        self.left[gpu_type] = left + kept - workers * each
        if self._one_type is None:
            self._granted[job.key] = gpu_type
        return workers

    def grow(self, serving: Serving) -> bool:
        """Give one more worker to `serving`, if enough GPUs are left. Returns whether they were."""
        gpu_type = self._type_of(serving.job)
        if self.left.get(gpu_type, 0) < serving.job.shape.gpus:
            return False
        self.left[gpu_type] -= serving.job.shape.gpus
        serving.workers += 1
        return True

    def shrink(self, serving: Serving, workers: int) -> None:
        """Leave only `workers` of the granted ones to `serving`."""
        self.left[self._type_of(serving.job)] += (serving.workers - workers) * serving.job.shape.gpus
        serving.workers = workers

    def _type_of(self, job: TrainingJob) -> str:
        """The GPU type of a job: that of its nodes, else the one that it names or was granted, else the one
        with most GPUs left."""
        if self._one_type is not None and (job.shares or job.shape.gpu_type in ("", self._one_type)):
            return self._one_type
        if job.shares:
            return self._nodes.get(job.shares[0].node, job.shape.gpu_type)
        granted = self._granted.get(job.key)
        if granted is not None:
            return granted
        return job.shape.gpu_type or max(self.left, key=self.left.__getitem__, default="")


@dataclass(slots=True)
class Chosen:
    """The jobs that are to run, the other jobs, and the GPUs that are left."""

    servings: list[Serving]
    waiting: list[TrainingJob]
    """The other jobs in the order of service, those that are preempted included."""
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
    """The jobs in `order` that `chooser` lets run, and their targets, put into `placement`.

    A job that fits by count, but on no set of nodes (its workers take several GPUs each), is left out and
    waits. The others are then chosen anew, so that no job is preempted in vain.
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


def consolidated(free: FreeGpus, job: TrainingJob, workers: int) -> tuple[NodeShare, ...] | None:
    """Nodes for the workers: one node if one holds all, else as few as possible."""
    return free.place(job.shape, workers)


class _Settling:
    """Finds nodes for the jobs whose shares change. Mutable: belongs to one decision."""

    def __init__(self, placement: Placement, chosen: Chosen, why: Why) -> None:
        servings = chosen.servings
        self._resized = [each for each in servings if each.job.shares and each.workers != each.job.allocated]
        self._starters = [each for each in servings if not each.job.shares]
        self._preempted = [job for job in chosen.waiting if job.shares]
        self._placement = placement
        self._places: dict[JobKey, tuple[NodeShare, ...]] = {}
        self._why = why

    def targets(self, place: Place) -> tuple[Target, ...] | TrainingJob:
        """The changes; or the first job that does not fit."""
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
        """The targets of jobs that did not get their turn. Such a job runs on if no other job has taken its
        GPUs."""
        taken: list[Target] = []
        for job in self._preempted:
            if all(free.of_node(share.node) >= share.workers * job.shape.gpus for share in job.shares):
                free.take(job.shape, job.shares)
            else:
                taken.append(Target(job.key, 0, f"gives way and waits: {self._why(job)}"))
        return taken

    def _resize(self, free: FreeGpus, serving: Serving) -> Target | None:
        """Resize a job as near to its new size as there is room, beside its present workers. `free` includes
        its own GPUs."""
        job = serving.job
        keep = shares_to_keep(job)
        workers = serving.workers
        while (shares := free.place(job.shape, workers, keep)) is None:
            workers -= 1  # ends at the present size, which fits
        free.take(job.shape, shares)
        if workers == job.allocated:
            return None
        return self._target(job, shares, "grows to" if workers > job.allocated else "shrinks to")

    def _target(self, job: TrainingJob, shares: tuple[NodeShare, ...], what: str) -> Target:
        self._places[job.key] = shares
        workers = sum(share.workers for share in shares)
        return Target(job.key, workers, f"{what} {workers} of {job.workers} workers: {self._why(job)}")


def _kept(job: TrainingJob) -> Amount:
    """GPUs that cannot be taken from a job."""
    return 0 if job.preemptible or not job.shares else fewest_workers(job) * job.shape.gpus
