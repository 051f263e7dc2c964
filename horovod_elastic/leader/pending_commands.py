"""flexod's commands to the leader besides resizing: profiles and checkpoints, one at a time (Amoeba, Table
1).

Pure: events go in, effects come out. The next leader does not take over a command of a leader that has
ended: flexod tells the caller to ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from flexo_protos.v1 import jobs_pb2, tasks_pb2, workers_pb2
from horovod_elastic.leader import profiling
from horovod_elastic.leader.profiling import Profile, ProfilePoint

_Outcome = jobs_pb2.CommandDone
_LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True)
class Limit:
    """Train with at most this number of workers; the others step aside and stay warm. None: with all."""

    workers: int | None


@dataclass(frozen=True, slots=True)
class Tell:
    """Give a worker a task for its next boundary."""

    worker_id: str
    task: tasks_pb2.Task


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to flexod."""

    message: jobs_pb2.FromLeader


Effect = Limit | Tell | Say


@dataclass(frozen=True, slots=True)
class Training:
    """The workers that train at the moment."""

    generation: int
    workers: tuple[str, ...]
    """Ids of the workers by rank; empty while no worker is in hvd.elastic.run."""
    changing: bool = False
    """Whether a resize is under way."""


@dataclass(slots=True)
class _PendingCommand:
    command_id: int
    text: str
    worker_id: str = ""
    """The worker that writes the checkpoint."""
    profile: Profile | None = None


class PendingCommands:
    """See the module. Times are monotonic seconds. `unit`: workers come and go by so many."""

    def __init__(self, profiling_allowed: bool, unit: int = 1) -> None:
        self._profiling_allowed = profiling_allowed
        self._unit = unit
        self._pending: _PendingCommand | None = None
        self._training = Training(0, ())

    @property
    def under_way(self) -> str:
        """Description of the command under way, for Report.pending_command; "" for none."""
        return self._pending.text if self._pending else ""

    @property
    def changes_sizes(self) -> bool:
        """Whether a profile is under way, which then decides on the job's size."""
        return self._pending is not None and self._pending.profile is not None

    def asked(self, command: jobs_pb2.Command, training: Training, now: float) -> list[Effect]:
        """Begin, refuse or cancel a command that flexod passes on."""
        kind = command.WhichOneof("body")
        if kind == "cancel":
            return self._cancelled(command.id)
        if self._pending is not None:
            text = f"a {self._pending.text} is under way: try again later"
            return [_done(command.id, _Outcome.OUTCOME_BUSY, text)]
        if training.changing:
            text = "the set of workers is just changing: try again later"
            return [_done(command.id, _Outcome.OUTCOME_BUSY, text)]
        if not training.workers:
            text = "the script has not begun its training loop yet, so there is nothing to take hold of"
            return [_done(command.id, _Outcome.OUTCOME_FAILED, text)]
        self._training = training
        if kind == "profile":
            return self._begin_profile(command.id, command.profile, now)
        if kind == "checkpoint":
            return self._begin_checkpoint(command.id, command.checkpoint.path)
        return [
            _done(command.id, _Outcome.OUTCOME_FAILED, "this leader is older than flexod: unknown command")
        ]

    def trains(self, training: Training, now: float) -> list[Effect]:
        """A generation has begun: the workers of `training` train from now on."""
        self._training = training
        pending_command = self._pending
        if pending_command is not None and pending_command.profile is not None:
            pending_command.profile.trains(training.generation, training.workers, now)
            size, wanted = len(training.workers), pending_command.profile.limit
            if size == wanted:
                return [_progress(pending_command.command_id, f"trains with {size}")]
        return []

    def stands(self, worker_id: str, status: workers_pb2.WorkerStatus, now: float) -> list[Effect]:
        """A worker has reported its status, and the times of its last mini-batches."""
        pending_command = self._pending
        if pending_command is None or pending_command.profile is None:
            return []
        steps = status.steps
        point = pending_command.profile.steps(
            worker_id, status.generation, status.boundary, steps.own_s, steps.wall_s, steps.samples, now
        )
        if point is None:
            return []
        return [_progress(pending_command.command_id, "", [point]), *self._go_on(pending_command)]

    def task_done(self, worker_id: str, done: tasks_pb2.TaskDone) -> list[Effect]:
        """A worker has written the checkpoint, or could not."""
        pending_command = self._pending
        if pending_command is None or (pending_command.command_id, pending_command.worker_id) != (
            done.id,
            worker_id,
        ):
            return []
        if done.failure:
            return self._end(pending_command, _Outcome.OUTCOME_FAILED, done.failure)
        return self._end(pending_command, _Outcome.OUTCOME_DONE, done.text)

    def worker_gone(self, worker_id: str) -> list[Effect]:
        """A worker has ended."""
        pending_command = self._pending
        if pending_command is None or pending_command.worker_id != worker_id:
            return []
        text = "the worker that was to write it ended before it had done so: try again"
        return self._end(pending_command, _Outcome.OUTCOME_FAILED, text)

    def tick(self, now: float) -> list[Effect]:
        """Leave out a size of the profile that takes too long."""
        pending_command = self._pending
        if pending_command is None or pending_command.profile is None:
            return []
        left_out = pending_command.profile.tick(now)
        return (
            [_progress(pending_command.command_id, f"left out: {left_out}"), *self._go_on(pending_command)]
            if left_out
            else []
        )

    def _begin_profile(self, command_id: int, wanted: jobs_pb2.ProfileCommand, now: float) -> list[Effect]:
        if not self._profiling_allowed:
            return [_done(command_id, _Outcome.OUTCOME_FAILED, profiling.OPTED_OUT)]
        low, high, there = wanted.workers.min, wanted.workers.max, len(self._training.workers)
        try:
            profile = Profile(low, high, there, now, wanted.batches, self._unit)
        except ValueError as error:
            return [_done(command_id, _Outcome.OUTCOME_FAILED, str(error))]
        self._pending = _PendingCommand(
            command_id, f"profile of {low}-{min(high, there)} workers", profile=profile
        )
        profile.trains(self._training.generation, self._training.workers, now, already=True)
        begins = "".join(
            [f"{self._pending.text} begins", *(f"; left out: {why}" for why in profile.left_out)]
        )
        return [_progress(command_id, begins), Limit(profile.limit)]

    def _begin_checkpoint(self, command_id: int, path: str) -> list[Effect]:
        if not PurePosixPath(path).is_absolute() or len(path) > _LONGEST_PATH or "\0" in path:
            text = f"'{path[:200]}' is no absolute path of a file, as /scratch/ada/model.pt is"
            return [_done(command_id, _Outcome.OUTCOME_FAILED, text)]
        worker_id = self._training.workers[0]
        self._pending = _PendingCommand(command_id, "checkpoint", worker_id)
        task = tasks_pb2.Task(id=command_id, write_checkpoint=tasks_pb2.WriteCheckpoint(path=path))
        return [Tell(worker_id, task)]

    def _go_on(self, pending_command: _PendingCommand) -> list[Effect]:
        """Go on to the profile's next size, or end the profile."""
        assert pending_command.profile is not None
        if pending_command.profile.limit is not None:
            return [Limit(pending_command.profile.limit)]
        points, left_out = pending_command.profile.points, pending_command.profile.left_out
        if not points:
            return self._end(
                pending_command, _Outcome.OUTCOME_FAILED, f"nothing was measured: {'; '.join(left_out)}"
            )
        return self._end(pending_command, _Outcome.OUTCOME_DONE, "; ".join(left_out), points)

    def _cancelled(self, command_id: int) -> list[Effect]:
        pending_command = self._pending
        if pending_command is None or pending_command.command_id != command_id:
            return []
        return self._end(pending_command, _Outcome.OUTCOME_FAILED, "cancelled")

    def _end(
        self,
        pending_command: _PendingCommand,
        outcome: jobs_pb2.CommandDone.Outcome.ValueType,
        text: str,
        points: Sequence[ProfilePoint] = (),
    ) -> list[Effect]:
        self._pending = None
        done = _done(pending_command.command_id, outcome, text, points)
        return [Limit(None), done] if pending_command.profile is not None else [done]


def _progress(command_id: int, text: str, points: Iterable[ProfilePoint] = ()) -> Say:
    progress = jobs_pb2.CommandProgress(id=command_id, text=text, points=map(_on_the_wire, points))
    return Say(jobs_pb2.FromLeader(command_progress=progress))


def _done(
    command_id: int,
    outcome: jobs_pb2.CommandDone.Outcome.ValueType,
    text: str,
    points: Iterable[ProfilePoint] = (),
) -> Say:
    done = jobs_pb2.CommandDone(id=command_id, outcome=outcome, text=text, points=map(_on_the_wire, points))
    return Say(jobs_pb2.FromLeader(command_done=done))


def _on_the_wire(point: ProfilePoint) -> jobs_pb2.ProfilePoint:
    return jobs_pb2.ProfilePoint(
        workers=point.workers,
        samples_per_s=point.samples_per_s,
        step_s=point.step_s,
        sync_s=point.sync_s,
        efficiency=point.efficiency,
        batches=point.batches,
    )
