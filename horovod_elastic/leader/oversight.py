"""What a leader does besides resizing: flexod's commands, the batch and its parts, an eye on slow workers.

Most of what decides is pure and elsewhere (errands.py, profiling.py, stragglers.py); here it meets the
leader, in whose thread all of this runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flexo_protos.v1 import jobs_pb2, tasks_pb2, workers_pb2
from horovod_elastic.leader import profiling
from horovod_elastic.leader.errands import Effect, Errands, Limit, Tell, Training
from horovod_elastic.leader.stragglers import Straggler, StragglerWatch, advice
from horovod_elastic.trace import say

SLOWEST, FASTEST = 0.001, 1000.0
"""Speeds of nodes beyond are a mistake of whoever declared them."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a worker runs."""

    agent: str
    node: str
    base: bool
    """On a node of the base, which nobody gives back."""
    workers: int
    """Of this job in the same satellite, itself included: they go together."""
    gpus: tuple[int, ...]
    """Its own, as the cluster numbers them on the node; empty: not known."""


class Office(Protocol):
    """What this needs of the leader."""

    def training(self) -> Training:
        """Who trains now."""
        ...

    def home_of(self, worker_id: str) -> Home | None:
        """Where a worker runs; None if it is gone."""
        ...

    def limit_workers(self, workers: int | None) -> None:
        """Train with so many at most, the others aside and warm; None: with all."""
        ...

    def tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        """Through its agent; silent about one that is gone."""
        ...

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        """If it is there."""
        ...

    def give_back_slow(self, agent: str, why: str) -> None:
        """Let the satellite of this agent go, because one of its workers is slow."""
        ...


class Oversight:
    """See the module. Times are monotonic seconds."""

    def __init__(self, office: Office, *, profiling_allowed: bool) -> None:
        self._office = office
        self._profiling_allowed = profiling_allowed
        self._errands = Errands(profiling_allowed)
        self._watches: dict[float, StragglerWatch] = {}
        """By speed: only workers on GPUs that are as fast are expected to take as long as each other."""
        self._training = Training(0, ())
        self._batch = 0
        self._speeds = NodeSpeeds()
        self._speeds_told: dict[str, float] = {}
        """By worker."""

    @property
    def errand(self) -> str:
        """For Report.errand."""
        return self._errands.under_way

    @property
    def unscalable_why(self) -> str:
        """For Report.unscalable_why: while it is not "", the job is not scalable."""
        return "" if self._profiling_allowed else profiling.OPTED_OUT

    def batch_wanted(self, samples: int) -> None:
        """flexod's word on the aggregate batch (Grants.batch), for the next generation; 0: as the script
        says.
        """
        self._batch = samples

    def speeds_are(self, said: Iterable[jobs_pb2.NodeSpeed]) -> None:
        """flexod's word on how fast the job's nodes are (Grants.speeds). Workers hear of it as they stand."""
        if self._speeds.told(said):
            self._watch_anew()

    def commanded(self, command: jobs_pb2.Command, now: float) -> None:
        """flexod passes a command on."""
        self._carry_out(self._errands.asked(command, self._office.training(), now))

    def goes(self, generation: int, worker_ids: Sequence[str]) -> None:
        """These are about to be told to go on in `generation`: before their Go they hear of its batch."""
        for worker_id in worker_ids:
            self._tell_speed(worker_id)
        if self._batch:
            batch = tasks_pb2.SetBatch(aggregate=self._batch, generation=generation)
            for worker_id in worker_ids:
                message = workers_pb2.ToWorker(task=tasks_pb2.Task(set_batch=batch))
                self._office.tell_worker(worker_id, message)

    def stands(self, worker_id: str, standing: workers_pb2.Standing, now: float) -> None:
        """A worker has said where it stands, and how long its last mini-batches took."""
        self._look_who_trains(now)
        self._tell_speed(worker_id)
        steps = standing.steps
        watch = self._watches.get(self._speed_of(worker_id), StragglerWatch())
        slow = watch.steps(worker_id, standing.generation, standing.boundary, steps.own_s)
        if not self._errands.changes_sizes:
            for straggler in slow:
                self._deal_with(straggler)
        self._carry_out(self._errands.stands(worker_id, standing, now))

    def task_done(self, worker_id: str, done: tasks_pb2.TaskDone) -> None:
        """A worker has done what it was told to, or could not."""
        self._carry_out(self._errands.task_done(worker_id, done))

    def worker_gone(self, worker_id: str) -> None:
        """A worker has ended."""
        self._speeds_told.pop(worker_id, None)
        self._carry_out(self._errands.worker_gone(worker_id))

    def tick(self, now: float) -> None:
        """Time passes."""
        self._look_who_trains(now)
        self._carry_out(self._errands.tick(now))

    def _look_who_trains(self, now: float) -> None:
        training = self._office.training()
        if (training.generation, training.workers) == (self._training.generation, self._training.workers):
            return
        self._training = training
        self._watch_anew()
        self._carry_out(self._errands.trains(training, now))

    def _watch_anew(self) -> None:
        speeds = {worker_id: self._speed_of(worker_id) for worker_id in self._training.workers}
        self._watches = {speed: StragglerWatch() for speed in speeds.values()}
        for speed, watch in self._watches.items():
            peers = [worker_id for worker_id, its in speeds.items() if its == speed]
            watch.trains(self._training.generation, peers)

    def _speed_of(self, worker_id: str) -> float:
        home = self._office.home_of(worker_id)
        return 0.0 if home is None else self._speeds.of(home.node)

    def _tell_speed(self, worker_id: str) -> None:
        """If the worker has not heard it."""
        speed = self._speed_of(worker_id)
        if speed != self._speeds_told.get(worker_id, 0.0):
            self._speeds_told[worker_id] = speed
            task = tasks_pb2.Task(set_speed=tasks_pb2.SetSpeed(speed=speed))
            self._office.tell_worker(worker_id, workers_pb2.ToWorker(task=task))

    def _deal_with(self, straggler: Straggler) -> None:
        home = self._office.home_of(straggler.worker_id)
        if home is None:
            return
        advised = advice(straggler, len(self._training.workers), home.workers, home.base)
        say(advised.why)
        slow = jobs_pb2.SlowGpu(node=home.node, gpus=home.gpus, ratio=straggler.ratio)
        self._office.tell_flexod(jobs_pb2.FromLeader(slow_gpu=slow))
        if advised.release:
            self._office.give_back_slow(home.agent, advised.why)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Limit):
                self._office.limit_workers(effect.workers)
            elif isinstance(effect, Tell):
                self._office.tell_worker(effect.worker_id, workers_pb2.ToWorker(task=effect.task))
            else:
                self._office.tell_flexod(effect.message)


class NodeSpeeds:
    """How fast the nodes of a heterogeneous job are, as flexod said last.

    Without its word, and of a node that it does not name, nothing is known.
    """

    def __init__(self) -> None:
        self._of: dict[str, float] = {}
        self._complaint = ""

    def told(self, said: Iterable[jobs_pb2.NodeSpeed]) -> bool:
        """All that flexod says now; whether that is news.

        With anything in it that cannot be, nothing is known; the user hears of it once.
        """
        speeds = {each.node: each.speed for each in said}
        wrong = {node: speed for node, speed in speeds.items() if not SLOWEST <= speed <= FASTEST}
        before, self._of = self._of, {} if wrong else speeds
        complaint = "" if not wrong else _complaint(wrong)
        if complaint and complaint != self._complaint:
            say(complaint)
        self._complaint = complaint
        return self._of != before

    def of(self, node: str) -> float:
        """Of its GPUs; 0.0: not known."""
        return self._of.get(node, 0.0)


def _complaint(wrong: dict[str, float]) -> str:
    node, speed = min(wrong.items())
    return (
        f"flexod says that the speed of {node} is {speed:g}; from {SLOWEST:g} to {FASTEST:g} is allowed: "
        f"all workers take the same part of the batch"
    )
