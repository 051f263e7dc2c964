"""What a training thread does at mini-batch boundaries and between generations besides training.

The leader's tasks, the aggregate batch, a newcomer's warm-up, and what the script hears of it all through
horovod_elastic.training.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

from flexo_protos.v1 import tasks_pb2
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import checkpoints, training
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import JOB_VARIABLE
from horovod_elastic.trace import say
from horovod_elastic.worker import gradients, left_out, replicas, state_route
from horovod_elastic.worker.session import Session
from horovod_elastic.worker.state_route import Origin


def attach(session: Session, state: Any) -> None:
    """The training function is entered: notify_end_of_minibatch() means the boundary of `state`."""

    so_far = 0

    def boundary(samples: int) -> None:
        nonlocal so_far
        so_far += samples
        if so_far and not gradients.waiting(state):
            session.samples_per_step, so_far = so_far, 0
        state.check_host_updates()

    training.attach(boundary)
    left_out.attach(state)
    replicas.attach(state)


def is_deferred(state: Any) -> bool:
    """Whether this boundary does not count: an optimizer is accumulating gradients.

    All workers say the same: they take the optimizer's steps together.
    """
    name = gradients.waiting(state)
    if not name:
        _deferred.counts()
        return False
    if what := _deferred.another(state, name):
        say(what)
    return True


_deferred = gradients.Deferred()


def warm_up(state: Any) -> None:
    """A newcomer's forward and backward pass on throw-away data, where the script has said how; memory."""
    # Imports Horovod, as below.
    from horovod_elastic.worker import spare_memory

    training.warm_up(state)
    spare_memory.make(state)


def begin(session: Session, state: Any, *, origin: Origin, sync: bool) -> None:
    """A generation begins: who lacks the state is given it, and everybody takes the batch that it is to have.

    `origin`: how this worker comes into it. Without `sync` nobody is new, and everybody has that state.
    """
    # Imports Horovod, which is just being imported when this module is.
    from horovod_elastic.worker import spare_memory, state_sync

    if sync:
        commits, taken = _take_over(session, state, origin)
    else:
        state_sync.carry_on(state)
        commits, taken = session.commits, _Taken.NOT
    training.generation_begins(session.aggregate_of_this_generation())
    # Everybody waits for who was given the state: it saves that with its first commit. Until then those who
    # gave it have it; before the first commit of all the leader could not tell them from who was given it.
    unsaved = taken is _Taken.FROM_ONE and commits > 0
    if unsaved or taken is _Taken.NOT:
        state_sync.save_after_carry_on(state)
    else:
        state.save()
    spare_memory.drop(state, but_to_save=unsaved)
    session.samples_per_step = training.samples_in_a_step() or session.samples_per_step
    replicas.begins()
    session.begins(commits, saved=not unsaved)


class _Taken(enum.Enum):
    """How a worker came by the state that it has in this generation."""

    NOT = enum.auto()
    """It had it before."""
    FROM_ONE = enum.auto()
    """Who stays gave it to this worker, which is new."""
    FROM_ALL = enum.auto()
    """Rank 0's went to everybody: nobody may have had it."""


def _take_over(session: Session, state: Any, origin: Origin) -> tuple[int, _Taken]:
    """By all at once; the commits of what everybody has now, and how this worker came by it."""
    from horovod_elastic.worker import state_sync

    assert session.core is not None
    courier = session.core.courier()
    able = courier is not None and state_sync.can_hand_over(state)
    asked = state_route.ask(origin, session.commits, can_hand_over=able)
    shared = state_sync.share(state) if able else None  # while they answer
    route = asked()
    if courier is None or shared is None or not route.givers:
        state_sync.broadcast(state)
        return route.commits, _Taken.FROM_ALL
    own = session.rank
    source = route.givers.get(own)
    state_sync.hand_over(state, shared, courier, source=source, receivers=route.receivers(own))
    return route.commits, _Taken.NOT if source is None else _Taken.FROM_ONE


def restore(state: Any) -> None:
    """Back to the last commit."""
    from horovod_elastic.worker import state_sync

    state.restore()
    state_sync.keep_saved_apart(state)
    gradients.drop(state)


def run_tasks(session: Session, state: Any) -> None:
    """Carry out what the leader has asked for."""
    for task in session.take_tasks():
        if task.HasField("write_checkpoint"):
            session.send(pb.FromWorker(task_done=_write_checkpoint(task, session, state)))


def _write_checkpoint(task: tasks_pb2.Task, session: Session, state: Any) -> tasks_pb2.TaskDone:
    path = Path(task.write_checkpoint.path)
    try:
        about = _about(session)
        within = os.environ.get("FLEXO_CHECKPOINT_DIR")
        checkpoints.write(state, path, about, Path(within) if within else None)
    except checkpoints.CheckpointError as error:
        return tasks_pb2.TaskDone(id=task.id, failure=str(error))
    except Exception as error:  # whatever a state holds: training goes on
        return tasks_pb2.TaskDone(id=task.id, failure=f"{type(error).__name__}: {error}")
    text = f"{path} on {about.node}, after {about.commits} batches with {about.workers} workers"
    return tasks_pb2.TaskDone(id=task.id, text=text)


def _about(session: Session) -> checkpoints.CheckpointInfo:
    job_id, allocation = os.environ.get(JOB_VARIABLE, ""), registry.find(os.environ).allocation()
    return checkpoints.CheckpointInfo(
        job_id=int(job_id) if job_id.isdecimal() else 0,
        restart_count=allocation.restart_count,
        generation=session.generation,
        commits=session.commits,
        workers=session.size,
        node=allocation.node or os.uname().nodename,
        flexo_version=_version(),
    )


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("flexo")
    except metadata.PackageNotFoundError:
        return ""
