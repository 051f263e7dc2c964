"""Maps Slurm's reasons why a job waits to the reasons that flexo tells apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from flexo.model.queue import JobState, WaitReason

_RESOURCES: Final = frozenset(
    {
        "None",
        "",
        "Resources",
        "ReqNodeNotAvail",
        "Nodes required for job are DOWN",
        "Unknown",
    }
)
"""The reasons of jobs that wait for resources, up to the first comma. The long reason goes on "DRAINED or
reserved for jobs in higher priority partitions". Slurm also gives it to the jobs behind a job that is to have
the same node."""
_BEGINNINGS: Final[Mapping[WaitReason, str]] = {
    WaitReason.TURN: "Priority",
    WaitReason.HELD: "JobHeld|JobHold",
    WaitReason.DEPENDENCY: "Dependency",
    WaitReason.START_TIME: "BeginTime",
    WaitReason.LIMIT: "JobArrayTaskLimit|QOS|Assoc|Max|Partition(?:Time|Node)Limit",
    WaitReason.IMPOSSIBLE: "Invalid|BadConstraints|AccountNotAllowed|DeadLine",
    WaitReason.LICENSES: "Licenses",
    WaitReason.RESERVATION: "Reservation",
}
"""The beginnings of the other reasons. A QOS's limits for each account are called MaxGRESPerAccount and the
like."""
_WAITS: Final = tuple((reason, re.compile(words)) for reason, words in _BEGINNINGS.items())


def wait_reason(state: JobState, reason: str) -> WaitReason:
    """The reason why a job in this state waits, from the reason that Slurm gives."""
    return _of_pending(reason) if state is JobState.PENDING else WaitReason.NONE


@lru_cache(maxsize=1024)
def _of_pending(reason: str) -> WaitReason:
    said = reason.strip("()")
    if said.partition(",")[0] in _RESOURCES:
        return WaitReason.RESOURCES
    return next((wait for wait, words in _WAITS if words.match(said)), WaitReason.OTHER)


def remedy(reason: str, job_id: int) -> str:
    """What the user of the pending job can do about Slurm's reason, in a sentence; "": nothing."""
    said = reason.strip("()")
    if said == "JobHeldUser":
        return f"its user has held it: scontrol release {job_id}"
    if said == "JobHeldAdmin":
        return f"an administrator has held it, and can release it: scontrol release {job_id}"
    if said == "JobHoldMaxRequeue":
        return f"it has failed too often at its start; to try again: scontrol release {job_id}"
    if said == "DependencyNeverSatisfied":
        update = f"scontrol update JobId={job_id} Dependency="
        return f"what it depends on will never be so: scancel {job_id}, or, to let it start, {update}"
    return ""
