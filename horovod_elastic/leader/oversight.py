"""The leader's work besides resizing: flexod's commands, the batch and its parts, and slow workers.

Most decisions are pure and elsewhere (pending_commands.py, profiling.py, stragglers.py). This module connects
them with the leader. All of it runs in the leader's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flexo_protos.v1 import jobs_pb2, tasks_pb2, workers_pb2
from horovod_elastic.job_plan import host_of
from horovod_elastic.leader import profiling
from horovod_elastic.leader.pending_commands import Effect, Limit, PendingCommands, Tell, Training
from horovod_elastic.leader.stragglers import Straggler, StragglerWatch, advice
from horovod_elastic.leader.try_batches import TryBatches
from horovod_elastic.trace import say

SLOWEST, FASTEST = 0.001, 1000.0
"""Range of believable speeds of nodes; a speed beyond it is a mistake in the declaration."""


@dataclass(frozen=True, slots=True)
class Home:
    """The place where a worker runs."""

    agent: str
    node: str
    base: bool
    """Whether the node belongs to the base, which is never given back."""
    workers: int
    """Number of this job's workers in the same satellite, itself included: they leave together."""
    gpus: tuple[int, ...]
    """The worker's own GPUs, as the cluster numbers them on the node; empty: not known."""


class OversightContext(Protocol):
    """The leader's interface for Oversight."""

    def training(self) -> Training:
        """The workers that train now."""
        ...

    def home_of(self, worker_id: str) -> Home | None:
        """The place where a worker runs; None if the worker is gone."""
        ...

    def limit_workers(self, workers: int | None) -> None:
        """Train with at most `workers` workers, the others aside and warm; None: with all."""
        ...

    def renew(self) -> None:
        """Have the workers train on in a new generation."""
        ...

    def tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        """Send a worker a message through its agent. A worker that is gone is ignored."""
        ...

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        """Send flexod a message, if flexod is there."""
        ...

    def give_back_slow(self, agent: str, why: str) -> None:
        """Let the satellite of this agent go, because one of its workers is slow."""
        ...


class Oversight:
    """See the module. Times are monotonic seconds. `unit`: workers come and go by so many. `batch`: see
    TryBatches."""

    def __init__(
        self, leader: OversightContext, *, profiling_allowed: bool, unit: int = 1, batch: str = ""
    ) -> None:
        self._leader = leader
        self._profiling_allowed = profiling_allowed
        self._commands = PendingCommands(profiling_allowed, unit)
        self._watches: dict[float, StragglerWatch] = {}
        """One watch for each speed: only workers on equally fast GPUs should take equally long."""
        self._training = Training(0, ())
        self._batch = 0
        self._trials = TryBatches(batch)
        self._speeds = NodeSpeeds()
        self._speeds_told: dict[str, float] = {}
        """The speed that each worker was last told."""

    @property
    def pending_command(self) -> str:
        """Description of the command under way, for Report.pending_command; "" for none."""
        return self._commands.under_way

    @property
    def unscalable_why(self) -> str:
        """Why the job is not scalable, for Report.unscalable_why; "" if it is."""
        return "" if self._profiling_allowed else profiling.OPTED_OUT

    @property
    def tried(self) -> jobs_pb2.TriedBatches | None:
        """The result of trials, for Report.tried; None: there is none yet."""
        return self._trials.result

    def welcomed(self, welcome: jobs_pb2.Welcome) -> None:
        """Take flexod's welcome, which may ask for trials of several batches."""
        self._trials.welcomed(welcome)

    def batch_wanted(self, samples: int) -> None:
        """Take flexod's aggregate batch (Grants.batch) for the next generation; 0: the script's own."""
        self._batch = samples

    def speeds_are(self, said: Iterable[jobs_pb2.NodeSpeed]) -> None:
        """Take the speeds of the job's nodes from flexod (Grants.speeds). A worker is told its speed when it
        next reports its status.
        """
        if self._speeds.told(said):
            self._watch_anew()

    def commanded(self, command: jobs_pb2.Command, now: float) -> None:
        """Take a command that flexod passes on."""
        self._carry_out(self._commands.asked(command, self._leader.training(), now))

    def goes(self, generation: int, worker_ids: Sequence[str]) -> None:
        """Tell workers batch, trials and their speeds for `generation`, just before their Go message."""
        for worker_id in worker_ids:
            self._tell_speed(worker_id)
        if self._batch:
            batch = tasks_pb2.SetBatch(aggregate=self._batch, generation=generation)
            self._tell_all(worker_ids, tasks_pb2.Task(set_batch=batch))
        trials = self._trials.task(generation)
        if trials is not None:
            self._tell_all(worker_ids, trials)

    def stands(self, worker_id: str, status: workers_pb2.WorkerStatus, now: float) -> None:
        """A worker has reported its status, and the times of its last mini-batches."""
        self._look_who_trains(now)
        self._tell_speed(worker_id)
        self._trials.stands(status)
        steps = status.steps
        watch = self._watches.get(self._speed_of(worker_id), StragglerWatch())
        slow = watch.steps(worker_id, status.generation, status.boundary, steps.own_s)
        if not self._commands.changes_sizes:
            for straggler in slow:
                self._deal_with(straggler)
        self._carry_out(self._commands.stands(worker_id, status, now))

    def task_done(self, worker_id: str, done: tasks_pb2.TaskDone) -> None:
        """A worker has done its task, or could not."""
        self._carry_out(self._commands.task_done(worker_id, done))

    def worker_gone(self, worker_id: str) -> None:
        """A worker has ended."""
        self._speeds_told.pop(worker_id, None)
        self._carry_out(self._commands.worker_gone(worker_id))

    def tick(self, now: float) -> None:
        """Note changes of the training workers, let the command under way advance, and begin trials."""
        self._look_who_trains(now)
        self._carry_out(self._commands.tick(now))
        training = self._training
        free = training.workers and not self._leader.training().changing and not self._commands.under_way
        if free and self._trials.due(training.generation):
            self._leader.renew()

    def _look_who_trains(self, now: float) -> None:
        training = self._leader.training()
        if (training.generation, training.workers) == (self._training.generation, self._training.workers):
            return
        self._training = training
        self._watch_anew()
        self._carry_out(self._commands.trains(training, now))

    def _watch_anew(self) -> None:
        speeds = {worker_id: self._speed_of(worker_id) for worker_id in self._training.workers}
        self._watches = {speed: StragglerWatch() for speed in speeds.values()}
        for speed, watch in self._watches.items():
            peers = [worker_id for worker_id, its in speeds.items() if its == speed]
            watch.trains(self._training.generation, peers)

    def _speed_of(self, worker_id: str) -> float:
        home = self._leader.home_of(worker_id)
        return 0.0 if home is None else self._speeds.of(home.node)

    def _tell_speed(self, worker_id: str) -> None:
        """Tell a worker its speed, if the speed has changed."""
        speed = self._speed_of(worker_id)
        if speed != self._speeds_told.get(worker_id, 0.0):
            self._speeds_told[worker_id] = speed
            task = tasks_pb2.Task(set_speed=tasks_pb2.SetSpeed(speed=speed))
            self._leader.tell_worker(worker_id, workers_pb2.ToWorker(task=task))

    def _tell_all(self, worker_ids: Sequence[str], task: tasks_pb2.Task) -> None:
        for worker_id in worker_ids:
            self._leader.tell_worker(worker_id, workers_pb2.ToWorker(task=task))

    def _deal_with(self, straggler: Straggler) -> None:
        home = self._leader.home_of(straggler.worker_id)
        if home is None:
            return
        advised = advice(straggler, len(self._training.workers), home.workers, home.base)
        say(advised.why)
        slow = jobs_pb2.SlowGpu(node=host_of(home.node), gpus=home.gpus, ratio=straggler.ratio)
        self._leader.tell_flexod(jobs_pb2.FromLeader(slow_gpu=slow))
        if advised.release:
            self._leader.give_back_slow(home.agent, advised.why)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Limit):
                self._leader.limit_workers(effect.workers)
            elif isinstance(effect, Tell):
                self._leader.tell_worker(effect.worker_id, workers_pb2.ToWorker(task=effect.task))
            else:
                self._leader.tell_flexod(effect.message)


class NodeSpeeds:
    """The speeds of a heterogeneous job's nodes, as flexod said last.

    The speed of a node that flexod has not named is not known.
    """

    def __init__(self) -> None:
        self._of: dict[str, float] = {}
        self._complaint = ""

    def told(self, said: Iterable[jobs_pb2.NodeSpeed]) -> bool:
        """Take all speeds that flexod sends now; return whether anything has changed.

        If one of them is outside SLOWEST to FASTEST, no speed is known. The user is told once.
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
        """Speed of the node's GPUs; 0.0: not known."""
        return self._of.get(node, 0.0)


def _complaint(wrong: dict[str, float]) -> str:
    node, speed = min(wrong.items())
    return (
        f"flexod says that the speed of {node} is {speed:g}; from {SLOWEST:g} to {FASTEST:g} is allowed: "
        f"all workers take the same part of the batch"
    )
