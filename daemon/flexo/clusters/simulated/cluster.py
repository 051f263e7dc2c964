"""SimulatedCluster: nodes and jobs in virtual time, behind the same interface as real clusters.

It keeps the state that policies see, and checks their plans. The simulator (`Trainer`) decides what jobs
really do, and what a change costs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from flexo.clusters.base import (
    ActionRefused,
    ClusterState,
    ClusterTraits,
    ImpossiblePlan,
    StartBounds,
)
from flexo.clusters.simulated.inference import InferenceServers
from flexo.clusters.simulated.ledger import Ledger
from flexo.clusters.simulated.nodes import PARTITION
from flexo.clusters.simulated.queue import Queue
from flexo.model.nodes import Node, Partition
from flexo.model.plans import Allocate, Drop
from flexo.model.queue import JobKey
from flexo.model.training import Quota, TrainingJob
from flexo_protos.resources import Amount

_TRAITS: Final = ClusterTraits("simulated", "", StartBounds(0.0), software="the simulated cluster")


class Trainer(Protocol):
    """Carries out a plan on the simulated jobs."""

    def reshare(self, job: TrainingJob, allocation: Allocate) -> TrainingJob:
        """Give `job` the shares of `allocation` from now on. Returns the job as it is then."""
        ...

    def drop(self, job: TrainingJob) -> None:
        """Note that `job` is refused for good."""
        ...


class SimulatedCluster:
    """A Cluster in virtual time that allocates and lends."""

    software = _TRAITS.software

    def __init__(
        self,
        nodes: Sequence[Node],
        trainer: Trainer,
        clock: Callable[[], float],
        quotas: tuple[Quota, ...] = (),
        inference: Sequence[Node] = (),
    ) -> None:
        """`inference`: the servers of the inference cluster, none of them lent at first."""
        self._ledger = Ledger(nodes, inference)
        self.inference = InferenceServers(inference, self._ledger) if inference else None
        self._trainer = trainer
        self._clock = clock
        self._quotas = quotas
        self._training = Partition(PARTITION, 1, frozenset(node.name for node in nodes))
        self._partitions = self._all_partitions()
        self._queue = Queue()
        self._ended = 0

    # For the controller.

    def traits(self) -> ClusterTraits:
        """The traits, which all simulated clusters share."""
        return _TRAITS

    def observe(self) -> ClusterState:
        """The nodes and jobs of this instant. Unchanged parts are the same objects as before."""
        return ClusterState(
            self._clock(),
            self._ledger.nodes,
            self._partitions,
            (),
            0.0,
            self._queue.jobs,
            self._quotas,
            self._ended,
        )

    def allocate(self, allocations: Sequence[Allocate], drops: Sequence[Drop]) -> None:
        """Carry a plan out, or raise ImpossiblePlan and change nothing."""
        changes = [(self._known(allocation.job), allocation) for allocation in allocations]
        dropped = [self._known(drop.job) for drop in drops]
        _check_once([job for job, _ in changes] + dropped)
        for job in dropped:
            if job.shares:
                raise ImpossiblePlan(f"job {job.key} runs with {job.allocated} workers, and is to be dropped")
        self._ledger.carry_out(changes)
        for job, allocation in changes:
            self._queue.replace(self._trainer.reshare(job, allocation))
        for job in dropped:
            self._queue.remove(job.key)
            self._trainer.drop(job)

    def extend(self, time_limits: Sequence[str], seconds_from_now: int) -> None:
        """Refuse: there are no satellites here."""
        named = ", ".join(time_limits)
        raise ActionRefused(f"there is no satellite {named}: this cluster allocates itself")

    def cancel(self, job: str) -> None:
        """Refuse: there are no satellites here."""
        raise ActionRefused(f"there is no satellite {job}: this cluster allocates itself")

    def lend(self, nodes: frozenset[str]) -> None:
        """Lend exactly these servers of the inference cluster. Raises ActionRefused."""
        if self.inference is None:
            raise ActionRefused("there is no inference cluster that could lend its servers")
        self.inference.lend(nodes)
        self._partitions = self._all_partitions()

    # For the simulator.

    @property
    def gpus_held_on_loan(self) -> Amount:
        """GPUs of inference servers that jobs hold."""
        return self._ledger.held_apart

    def submit(self, job: TrainingJob) -> None:
        """Put a new job at the end of the queue."""
        self._queue.add(job)

    def renew(self, job: TrainingJob) -> None:
        """Replace a job of which something else is known now. Its shares are the same."""
        self._queue.replace(job)

    def end(self, key: JobKey) -> None:
        """End a job, and free the GPUs that it held."""
        self._ledger.free(self._queue.remove(key))
        self._ended += 1

    def take_back(self, name: str) -> tuple[JobKey, ...]:
        """Take a server for the inference cluster, whatever is on it. Returns the jobs that are preempted for
        it."""
        assert self.inference is not None
        there = [job for job in self._queue.jobs if any(share.node == name for share in job.shares)]
        why = f"the inference cluster takes {name} back"
        changes = [(job, Allocate(job.key, (), why)) for job in there]
        self._ledger.carry_out(changes)
        for job, allocation in changes:
            self._queue.replace(self._trainer.reshare(job, allocation))
        self.lend(self.inference.lent - {name})
        return tuple(job.key for job in there)

    def _all_partitions(self) -> tuple[Partition, ...]:
        """All partitions. `observe` returns the same object until one of them changes."""
        return (self._training,) if self.inference is None else (self._training, *self.inference.partitions)

    def _known(self, key: JobKey) -> TrainingJob:
        job = self._queue.get(key)
        if job is None:
            raise ImpossiblePlan(f"there is no job {key}")
        return job


def _check_once(jobs: Sequence[TrainingJob]) -> None:
    if len(jobs) > 1 and len({job.key for job in jobs}) < len(jobs):
        names = [str(job.key) for job in jobs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ImpossiblePlan(f"the plan has two words for job {twice}")
