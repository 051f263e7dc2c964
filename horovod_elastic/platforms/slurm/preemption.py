"""What Slurm does not say to a job that it preempts: that it did, and that the job has to ask to run again.

SIGTERM reaches the steps that there are at that instant. A satellite whose agent is just about to start never
hears of it, and would hold its node until the grace time ends.

In a partition with a grace time and PreemptMode=REQUEUE, as the one of borrowed servers, Slurm tells a job's
steps to go (SIGTERM) and requeues the job when the time is over. A job that has ended by then has ended for
good: nobody runs it again (slurm_job_preempt in Slurm's preempt.c).
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
"""How long Slurm may take to end the batch script once the job is requeued; KillWait is 30 s by default."""


def requeue_if_preempted(job_id: str, environment: Mapping[str, str]) -> bool:
    """Have Slurm requeue this job if it is being preempted for that, and wait to be ended; whether it is."""
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
    told.wait(ENDED_WITHIN_S)  # what follows in the job script belongs to a job that has ended well or badly
    return True


def was_told_to_go(job_id: str, environment: Mapping[str, str]) -> bool:
    """Whether Slurm preempts this job, and sent its SIGTERM perhaps before anybody was there to hear it.

    Slurm's silence is no such word.
    """
    with contextlib.suppress(NotInAJob):
        return _in_its_grace_time(_shown(job_id, environment))
    return False


def _shown(job_id: str, environment: Mapping[str, str]) -> str:
    return commands.ask(["scontrol", "show", "job", job_id, "--oneliner"], environment)


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
