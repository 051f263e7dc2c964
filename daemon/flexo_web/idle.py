"""Which GPUs are idle, and why: the reasons at present, and the GPU hours of each since flexo-web began."""

from __future__ import annotations

import enum
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flexo.words import counted, names_in, takes_no_satellites, workers
from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.explained import Explained

_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_NAMED: Final = 4
"""The most nodes that a row names."""
SAMPLED_S: Final = 10.0
"""The least time between two samples."""
_GAP_S: Final = 120.0
"""A longer time between two samples counts as not seen: flexod was away."""
KEPT_DAYS: Final = 31
"""The days of which idle hours are kept."""


class Reason(enum.StrEnum):
    """A kind of reason for which GPUs stay idle."""

    UNUSABLE = "the node is unusable"
    OUTSIDE = "satellites do not run there"
    RESERVED = "kept for a pending job"
    NOBODY = "no elastic job could use more"
    WAITING = "jobs wait, and need more than is idle, or other nodes"
    UNFIT = "no job that could use more may use them"


@dataclass(frozen=True, slots=True)
class IdleGpus:
    """Idle GPUs of some nodes, with one reason."""

    gpus: int
    nodes: tuple[str, ...]
    """Some of the nodes."""
    nodes_left_out: int
    gpu_type: str
    reason: Reason
    text: str
    """flexod's sentence; "": there is none besides the reason."""
    job_id: int
    """The job that the sentence is about; 0: none."""
    event: int = 0
    """The number of the event that says why; 0: none is known."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """The idle GPUs of one node."""

    node: str
    gpus: int
    gpu_type: str
    reason: Reason
    text: str
    job_id: int
    event: int
    """The number of flexod's event on the node; 0: none is known."""


def idle_gpus(picture: Picture, explained: Explained) -> tuple[IdleGpus, ...]:
    """All idle GPUs with their reasons; the reason with the most GPUs comes first."""
    events = {job.job_id: explained.of_job(job).event for job in picture.jobs.jobs}
    events |= {job.job_id: job.reason_event for job in picture.jobs.waiting}
    groups: defaultdict[tuple[str, Reason, str, int], list[_Idle]] = defaultdict(list)
    for idle in _idle(picture):
        groups[idle.gpu_type, idle.reason, idle.text, idle.job_id].append(idle)
    found = [
        IdleGpus(
            gpus=sum(idle.gpus for idle in group),
            nodes=tuple(idle.node for idle in group[:_NAMED]),
            nodes_left_out=max(0, len(group) - _NAMED),
            gpu_type=gpu_type,
            reason=reason,
            text=text,
            job_id=job_id,
            event=events[job_id] if job_id else max(idle.event for idle in group),
        )
        for (gpu_type, reason, text, job_id), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: (-group.gpus, group.nodes)))


def _idle(picture: Picture) -> Iterable[_Idle]:
    nodes = [node for node in picture.nodes.nodes if node.gpus > node.gpus_allocated]
    outside = _outside(picture)
    hungry = [job for job in picture.jobs.jobs if _could_use_more(job)]
    named = _sentences(hungry, {node.name for node in nodes})
    all_names = {node.name for node in picture.nodes.nodes}
    full = "; those that run have all that they may have" if picture.jobs.jobs else ""
    others = len(set(picture.nodes.order).difference(job.job_id for job in picture.jobs.waiting))
    for node in nodes:
        gpus = node.gpus - node.gpus_allocated
        if node.unusable:
            yield _Idle(node.name, gpus, node.gpu_type, Reason.UNUSABLE, node.unusable, 0, node.idle_event)
        elif node.name in outside:
            text = outside[node.name]
            yield _Idle(node.name, gpus, node.gpu_type, Reason.OUTSIDE, text, 0, node.idle_event)
        elif not hungry:
            text, job_id = _who_waits(picture.jobs.waiting, node, others)
            reason = Reason.WAITING if text else Reason.NOBODY
            text = f"{text}{full}" if text else ""
            yield _Idle(node.name, gpus, node.gpu_type, reason, text, job_id, 0)
        else:
            its = named.get(node.name)
            text, job_id = its or (_in_general(hungry[0], all_names), hungry[0].job_id)
            reason = Reason.RESERVED if its and "about to start on" in text else Reason.UNFIT
            yield _Idle(node.name, gpus, node.gpu_type, reason, text, job_id, 0)


def _who_waits(
    waiting: Iterable[admin_pb2.WaitingJob], node: admin_pb2.NodeView, others: int
) -> tuple[str, int]:
    """The sentence on the pending jobs that could have a turn on the node, and the first elastic one of them.

    `others`: the number of those that are not elastic, wherever they may run. "" and 0: there is none.
    """
    its = sorted((job for job in waiting if job.place and _may_run(job, node)), key=lambda job: job.place)
    if not its:
        wait = f"{counted(others, 'job')} without --elastic wait{'s' if others == 1 else ''}"
        return wait if others else "", 0
    first, count = its[0], len(its) + others
    wait = f"{counted(count, 'job')} wait{'s' if count == 1 else ''}"
    return f"{wait}: job {first.job_id} starts with {workers(first.min)}", first.job_id


def _may_run(job: admin_pb2.WaitingJob, node: admin_pb2.NodeView) -> bool:
    """Whether the node is in one of the job's partitions, as far as the cluster says it."""
    partitions = set(filter(None, job.partition.split(",")))
    return not (partitions and node.partitions) or not partitions.isdisjoint(node.partitions)


def _could_use_more(job: admin_pb2.ElasticJob) -> bool:
    """Whether the job is below its maximum or its owner's cap, and can be resized."""
    most = min(job.wanted, job.max) if job.wanted else job.max
    return job.attached and job.scalable and not job.suspended and job.granted < most


def _sentences(jobs: Iterable[admin_pb2.ElasticJob], nodes: set[str]) -> Mapping[str, tuple[str, int]]:
    """By node the part of a job's reasons that names it, and the job."""
    found: dict[str, tuple[str, int]] = {}
    for job in jobs:
        for reason in job.reasons:
            for part in reason.partition(": ")[2].split("; "):
                for name in nodes.intersection(names_in(part)):
                    found.setdefault(name, (part, job.job_id))
    return found


def _in_general(job: admin_pb2.ElasticJob, nodes: set[str]) -> str:
    """The job's reasons that name none of `nodes`: what they say of a node is not said of any other."""
    parts = (part for reason in job.reasons for part in (reason.partition(": ")[2] or reason).split("; "))
    return "; ".join(part for part in parts if not nodes.intersection(names_in(part)))


def _outside(picture: Picture) -> Mapping[str, str]:
    """The nodes that no partition of satellites has, and the sentence on that.

    None where nobody knows the partitions: an older flexod does not tell them, nor does every cluster
    which nodes they have.
    """
    partitions = set(picture.status.satellite_partitions)
    nodes = [node for node in picture.nodes.nodes if partitions.isdisjoint(node.partitions)]
    if len(nodes) == len(picture.nodes.nodes):
        return {}
    text = takes_no_satellites(picture.status.satellite_partitions)
    return {node.name: text for node in nodes}


@dataclass(frozen=True, slots=True)
class IdleHours:
    """The GPU hours for which GPUs were seen idle on one day, for one reason."""

    day: str
    reason: Reason
    gpu_hours: float


class IdleLedger:
    """Adds up idle GPU hours, from the snapshots that flexo-web takes anyway. A restart forgets them."""

    def __init__(self) -> None:
        self._hours: defaultdict[tuple[str, Reason], float] = defaultdict(float)
        self._sampled_at = 0.0
        self.since_at = 0.0
        """Time of the first sample; 0: there was none."""
        self.seen_s = 0.0
        """The time that samples cover."""

    def add(self, picture: Picture) -> None:
        """Take a sample: the idle GPUs of `picture` count for the time since the sample before."""
        elapsed = picture.at - self._sampled_at
        if 0 <= elapsed < SAMPLED_S:
            return
        self.since_at = self.since_at or picture.at
        self._sampled_at = picture.at
        if not 0 < elapsed <= _GAP_S:
            return
        self.seen_s += elapsed
        day = day_of(picture.at)
        for idle in _idle(picture):
            self._hours[day, idle.reason] += idle.gpus * elapsed / _HOUR_S
        oldest = day_of(picture.at - KEPT_DAYS * _DAY_S)
        for key in [key for key in self._hours if key[0] < oldest]:
            del self._hours[key]

    @property
    def hours(self) -> tuple[IdleHours, ...]:
        """The hours by day and reason, oldest first."""
        return tuple(IdleHours(day, reason, hours) for (day, reason), hours in sorted(self._hours.items()))


def day_of(at: float) -> str:
    """The local day of `at`: ``2026-11-27``."""
    return time.strftime("%Y-%m-%d", time.localtime(at))
