"""Preempted jobs: detects a preemption by Slurm, and requeues a preempted base.

Slurm's SIGTERM reaches only the steps that exist at that instant. A satellite whose agent is just about to
start never gets it, and would hold its node until the grace time ends.

The partition of borrowed servers has a grace time and PreemptMode=REQUEUE. There Slurm sends SIGTERM to a
job's steps, and requeues the job when the grace time is over. Slurm does not run a job again that has ended
by then (slurm_job_preempt in Slurm's preempt.c).
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Mapping

from horovod_elastic.platforms.base import NotInAJob
from horovod_elastic.platforms.slurm import commands
from horovod_elastic.trace import say

ENDED_WITHIN_S = 60.0
"""Time for Slurm to end the batch script once the job is requeued; KillWait is 30 s by default."""


def requeue_if_preempted(job_id: str, environment: Mapping[str, str]) -> bool:
    """Requeue this job and wait to be ended, if Slurm preempts it and would requeue it later.

    Returns whether the job was requeued.
    """
    told = threading.Event()
    try:
        if not _is_requeued_later(job_id, environment):
            return False
        before = signal.signal(signal.SIGTERM, lambda *_: told.set())
        try:
            commands.ask(["scontrol", "requeue", "Incomplete", job_id], environment)
        except NotInAJob:
            signal.signal(signal.SIGTERM, before)
            raise
    except NotInAJob as error:
        say(f"Slurm was not asked to requeue the job, and ends it: {error}")
        return False
    say("Slurm takes the base's nodes for other jobs; the job is requeued")
    told.wait(ENDED_WITHIN_S)  # the rest of the job script is for a job that has ended, not for this one
    return True


def was_told_to_go(job_id: str, environment: Mapping[str, str]) -> bool:
    """Whether Slurm preempts this job. Its SIGTERM may have come before any process could handle it.

    False if Slurm does not answer.
    """
    with contextlib.suppress(NotInAJob):
        return _in_its_grace_time(_shown(job_id, environment))
    return False


def _shown(job_id: str, environment: Mapping[str, str]) -> str:
    in_seconds = {**environment, "SLURM_TIME_FORMAT": "%s"}  # however the user likes times
    return commands.ask(["scontrol", "show", "job", job_id, "--oneliner"], in_seconds)


def _in_its_grace_time(job: str) -> bool:
    return re.search(r" JobState=RUNNING .* PreemptTime=\d", job) is not None


def _is_requeued_later(job_id: str, environment: Mapping[str, str]) -> bool:
    job = _shown(job_id, environment)
    if not _in_its_grace_time(job) or " Requeue=1 " not in job:
        return False
    partition = re.search(r" Partition=(\S+)", job)
    if partition is None:
        return False
    shown = commands.ask(["scontrol", "--all", "show", "partition", partition[1], "--oneliner"], environment)
    return re.search(r" PreemptMode=\S*REQUEUE", shown) is not None
