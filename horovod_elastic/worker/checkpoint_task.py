"""The leader's task to write a checkpoint, which the training thread carries out at a boundary."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flexo_protos.v1 import tasks_pb2
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic.checkpoints import CheckpointError, CheckpointInfo
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import JOB_VARIABLE
from horovod_elastic.worker.session import Session

FOLDER_VARIABLE = "FLEXO_CHECKPOINT_DIR"
"""The only folder in which the job allows checkpoints, if it is set."""

Write = Callable[[Path, CheckpointInfo, Path | None], CheckpointInfo]
"""Writes to a path. See checkpoints.write."""


def run_all(session: Session, write: Write) -> None:
    """Carry out the leader's tasks."""
    for task in session.take_tasks():
        if task.HasField("write_checkpoint"):
            session.send(pb.FromWorker(task_done=_run(task, session, write)))


def _run(task: tasks_pb2.Task, session: Session, write: Write) -> tasks_pb2.TaskDone:
    path = Path(task.write_checkpoint.path)
    try:
        about = _about(session)
        within = os.environ.get(FOLDER_VARIABLE)
        write(path, about, Path(within) if within else None)
    except CheckpointError as error:
        return tasks_pb2.TaskDone(id=task.id, failure=str(error))
    except Exception as error:  # whatever a state holds: training goes on
        return tasks_pb2.TaskDone(id=task.id, failure=f"{type(error).__name__}: {error}")
    text = f"{path} on {about.node}, after {about.commits} batches with {about.workers} workers"
    return tasks_pb2.TaskDone(id=task.id, text=text)


def _about(session: Session) -> CheckpointInfo:
    job_id, allocation = os.environ.get(JOB_VARIABLE, ""), registry.find(os.environ).allocation()
    return CheckpointInfo(
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
