"""Parses the output of `squeue -O ...` into QueuedJobs. Pure functions.

Users write some of the fields (Comment, Name) with whatever bytes they like. So every field ends with a
separator made up for this one call, which nobody who writes a comment can know, and line ends mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Annotated, NamedTuple, get_type_hints

from flexo.clusters.slurm.hostlist import expand
from flexo.clusters.slurm.marks import elastic_request, satellite_tag
from flexo.clusters.slurm.text import (
    BadValue,
    epoch,
    generic_resources,
    is_nothing,
    number,
    or_empty,
    time_limit_s,
    tres,
)
from flexo.clusters.slurm.wait_reasons import remedy, wait_reason
from flexo.model.queue import JobState, Principal, QueuedJob, Request, SatelliteTag, WaitReason
from flexo_protos.resources import Resources


class QueueRecord(NamedTuple):
    """The fields of one job as squeue prints them, in the order in which they are asked for."""

    job_id: Annotated[str, "JobID"]
    user_id: Annotated[str, "UserID"]
    user: Annotated[str, "UserName"]
    partitions: Annotated[str, "Partition"]
    state: Annotated[str, "State"]
    reason: Annotated[str, "Reason"]
    priority: Annotated[str, "PriorityLong"]
    submitted_at: Annotated[str, "SubmitTime"]
    started_at: Annotated[str, "StartTime"]
    time_limit: Annotated[str, "TimeLimit"]
    nodes: Annotated[str, "NodeList"]
    num_nodes: Annotated[str, "NumNodes"]
    cpus: Annotated[str, "NumCPUs"]
    tasks: Annotated[str, "NumTasks"]
    sockets: Annotated[str, "Sockets"]
    tres: Annotated[str, "tres-alloc"]
    tres_per_job: Annotated[str, "tres-per-job"]
    tres_per_node: Annotated[str, "tres-per-node"]
    tres_per_socket: Annotated[str, "tres-per-socket"]
    tres_per_task: Annotated[str, "tres-per-task"]
    required_nodes: Annotated[str, "ReqNodes"]
    features: Annotated[str, "Feature"]
    oversubscribe: Annotated[str, "OverSubscribe"]
    restarts: Annotated[str, "RestartCnt"]
    comment: Annotated[str, "Comment"]
    admin_comment: Annotated[str, "admin_comment"]
    account: Annotated[str, "Account"]
    name: Annotated[str, "Name"]
    array_tasks: Annotated[str, "ArrayTaskID"]
    component: Annotated[str, "HetJobOffset"]
    # Fields that not every release has, in the order in which releases brought them.
    excluded_nodes: Annotated[str, "ExcNodes"] = ""
    exclusive: Annotated[str, "Exclusive"] = ""


_HINTS = get_type_hints(QueueRecord, include_extras=True)
_NAMES: dict[str, str] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
"""squeue's names of the fields."""
_OPTIONAL = tuple(_NAMES[name] for name in QueueRecord._field_defaults)
_REQUIRED = tuple(name for name in _NAMES.values() if name not in _OPTIONAL)
EXCLUDED_NODES = "ExcNodes"

# A running job's state word may be one of these; squeue names the most special flag that is set.
STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
}
_NOT_EXCLUSIVE = frozenset({"OK", "YES"})
_NUL = "\0"
"""The separator between the fields of one job in memory. The separator of one call would make every poll's
text new. No field of Slurm's can hold it."""


def fields_to_ask(help_format: str) -> tuple[str, ...]:
    """The fields to ask this squeue for, according to what `squeue --helpFormat` prints ("" up to 22.05)."""
    offered = {name.lower() for name in help_format.split()}
    return (*_REQUIRED, *takewhile(lambda name: name.lower() in offered, _OPTIONAL))


def format_for(names: tuple[str, ...], separator: str) -> str:
    """The value of SQUEUE_FORMAT2: width 0 prints a field whole, and the separator follows it.

    The separator must not begin with a digit or a dot, nor hold a comma: squeue would misread it.
    """
    return ",".join(f"{name}:0{separator}" for name in names)


def parse_queue(text: str, names: tuple[str, ...], separator: str) -> list[str]:
    """Split the output into jobs as printed, for `to_record`. Raises BadValue if the output is not whole
    jobs."""
    width = len(names)
    if _NUL in text:
        raise BadValue("squeue printed a NUL character")
    words = text.split(separator)
    count, rest = divmod(len(words), width)
    if rest != 1 or words[-1] not in ("", "\n"):
        raise BadValue(f"squeue printed {len(words) - 1} fields, which is no multiple of {width}")
    for start in range(0, count * width, width):
        # Before a job's first field stands the end of the line before, after the last one nothing.
        words[start] = words[start].lstrip("\n")
    return [_NUL.join(words[start : start + width]) for start in range(0, count * width, width)]


def to_record(printed: str) -> QueueRecord:
    """Split one printed job into its fields."""
    return QueueRecord(*printed.split(_NUL))


def parse_excluded_nodes(text: str) -> dict[int, frozenset[str]]:
    """Parse `squeue -o '%A %x'`, which no user writes freely: job id -> nodes that the job must not have."""
    pairs = (line.split(" ", 1) for line in text.splitlines() if line.strip())
    return {number(job_id): frozenset(expand(nodes[0].strip() if nodes else "")) for job_id, *nodes in pairs}


def to_job(record: QueueRecord, satellites: frozenset[str]) -> QueuedJob:
    """Convert one job. `satellites`: the partitions in which a satellite's tag counts. Raises BadValue."""
    state = STATES.get(record.state, JobState.OTHER)
    partitions = tuple(record.partitions.split(","))
    num_nodes = number(record.num_nodes)
    resources, required_nodes = _resources(record, num_nodes), _node_set(record.required_nodes)
    exclusive = _is_exclusive(record)
    return QueuedJob(
        job_id=number(record.job_id),
        owner=Principal(str(number(record.user_id))),
        user=record.user,
        partitions=partitions,
        state=state,
        wait=wait_reason(state, record.reason),
        reason=record.reason,
        priority=number(record.priority),
        submitted_at=epoch(record.submitted_at) or 0.0,
        started_at=epoch(record.started_at),
        time_limit_s=time_limit_s(record.time_limit),
        nodes=expand(record.nodes),
        num_nodes=num_nodes,
        resources=resources,
        requests=(
            request_of(
                resources, num_nodes, generic_resources(record.tres_per_node), exclusive, required_nodes
            ),
        ),
        excluded_nodes=_node_set(record.excluded_nodes),
        features=or_empty(record.features),
        restart_count=number(record.restarts),
        elastic=elastic_request(record.admin_comment),
        satellite=tag_in(record.comment, partitions, satellites),
        account=or_empty(record.account),
        name=or_empty(record.name),
        remedy=remedy(record.reason, number(record.job_id)) if state is JobState.PENDING else "",
        is_whole=is_nothing(record.array_tasks) and is_nothing(record.component),
    )


def readable(job_id: int, read: Callable[[], QueuedJob]) -> QueuedJob:
    """The job that `read` returns for one record. A record that cannot be read costs that job alone."""
    try:
        return read()
    except Exception as error:
        return unreadable_job(job_id, str(error) or type(error).__name__)


def unreadable_job(job_id: int, why: str) -> QueuedJob:
    """A job of which only the number is known."""
    return QueuedJob(
        job_id=job_id,
        owner=Principal(""),
        user="",
        partitions=(),
        state=JobState.OTHER,
        wait=WaitReason.OTHER,
        reason="",
        priority=0,
        submitted_at=0.0,
        started_at=None,
        time_limit_s=None,
        nodes=(),
        num_nodes=0,
        resources=Resources(),
        unreadable=why,
    )


def tag_in(comment: str, partitions: tuple[str, ...], satellites: frozenset[str]) -> SatelliteTag | None:
    """The tag in a job's comment, if every partition of the job is one of satellites."""
    return satellite_tag(comment) if satellites.issuperset(partitions) else None


def _is_exclusive(record: QueueRecord) -> bool:
    """Whether the job's nodes are its own, its user's, or its security class's alone.

    Releases without the field Exclusive (NO, NODE, USER, MCS, TOPO) print OverSubscribe=NO for such jobs.
    """
    if record.exclusive:
        return record.exclusive != "NO"
    return record.oversubscribe not in _NOT_EXCLUSIVE


@lru_cache(maxsize=4096)
def _node_set(text: str) -> frozenset[str]:
    return frozenset(expand(text))


@lru_cache(maxsize=4096)
def request_of(
    total: Resources,
    num_nodes: int,
    on_each: Resources,
    exclusive: bool,
    required_nodes: frozenset[str],
) -> Request:
    """The request of a job: Slurm starts all of it at once. `on_each`: the devices requested by node."""
    nodes = max(1, num_nodes)
    if not (on_each.gpus or on_each.devices or exclusive):
        return Request.in_all(total, nodes, required_nodes)
    unit = replace(total.share(nodes), devices=on_each.devices)
    if on_each.gpus:
        unit = replace(unit, gpus=on_each.gpus)
    return Request.on_each_node(nodes, unit, exclusive, required_nodes)


def _resources(record: QueueRecord, num_nodes: int) -> Resources:
    """The resources that a job holds, or requests in all."""
    asked, held = _asked(record, num_nodes), tres(record.tres)
    return Resources(
        gpus=held.gpus or asked.gpus,
        cpus=number(record.cpus),
        memory_mib=held.memory_mib,
        gpu_type=asked.gpu_type or held.gpu_type,
        devices=asked.devices,
    )


def _asked(record: QueueRecord, num_nodes: int) -> Resources:
    """All GPUs and other devices that the job requests.

    The GPUs are for sites that do not track them (else tres-alloc has the sum). One way to request GPUs may
    repeat another. Devices of all ways count, so that a job holds none that nobody sees.
    """
    sockets = int(record.sockets) if record.sockets.isdecimal() else 1
    requests = (
        (record.tres_per_job, 1),
        (record.tres_per_node, max(1, num_nodes)),
        (record.tres_per_task, number(record.tasks)),
        (record.tres_per_socket, sockets * num_nodes),
    )
    asked = [generic_resources(text) * times for text, times in requests]
    gpus = next((each for each in asked if each.gpus), Resources())
    return replace(gpus, devices=sum(asked, Resources()).devices)
