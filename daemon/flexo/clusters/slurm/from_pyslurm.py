"""Converts pyslurm's objects to flexo's types. Written for the API of pyslurm 25.11; pure functions.

pyslurm shows less than Slurm's commands do, so it is used only where that is enough (`why_not_enough`):

- It has no GresUsed: GPUs in use are known only as tracked resources (AccountingStorageTRES, which takes
  slurmdbd).
- What is asked for per job or per socket is not parsed. The job's tracked GPUs stand in, and the type of
  those GPUs is known only where the type is tracked too. Other devices asked for in these ways are not seen:
  job_submit_elastic.lua refuses them to satellites.
- get_resource_layout_per_node() must not be called: 26.05 has changed what it reads.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from flexo.clusters.slurm.hostlist import expand
from flexo.clusters.slurm.marks import elastic_request
from flexo.clusters.slurm.node_states import conditions, first_line, why_unusable
from flexo.clusters.slurm.parse_jobs import STATES, readable, request_of, tag_in
from flexo.clusters.slurm.text import or_empty
from flexo.clusters.slurm.wait_reasons import remedy, wait_reason
from flexo.model.nodes import Node, Partition
from flexo.model.queue import JobState, Principal, QueuedJob
from flexo_protos.resources import Devices, Resources


def why_not_enough(config: Any, nodes: Iterable[Any]) -> str:
    """What pyslurm does not show of this cluster although flexo needs it; "" if it shows all."""
    tracked = set(config.accounting_storage_tres or ())
    for node in nodes:
        for name in node.configured_gres:
            kind = name.partition(":")[0]
            if kind in ("shard", "mps"):
                return f"node {node.name} hands GPUs out in pieces ({kind})"
            if kind == "gpu" and not {"gres/gpu", f"gres/{name}"} <= tracked:
                return f"AccountingStorageTRES does not track gres/gpu and gres/{name}"
    return ""


def to_node(node: Any) -> Node:
    """Convert one node. GPUs in use have the type of all GPUs of the node, as Slurm's commands print it."""
    state, *flags = node.state.split("+")
    capacity = replace(
        _generic_resources(node.configured_gres),
        cpus=node.effective_cpus,
        memory_mib=(node.real_memory or 0) - (node.memory_reserved_for_system or 0),
    )
    return Node(
        name=node.name,
        capacity=capacity,
        allocated=replace(
            _tracked(node.allocated_gres),
            cpus=node.allocated_cpus,
            memory_mib=node.allocated_memory,
            gpu_type=capacity.gpu_type,
        ),
        partitions=frozenset(node.partitions),
        features=frozenset(node.active_features),
        unusable=why_unusable(state, flags, first_line(node.reason or ""), node.owner or ""),
        conditions=conditions(state, flags, node.owner or ""),
        threads_per_core=node.threads_per_core or 1,
    )


def to_partition(partition: Any) -> Partition:
    """Convert one partition."""
    return Partition(
        name=partition.name,
        priority_tier=partition.priority_tier or 0,
        nodes=frozenset(expand(partition.nodes or "")),
        up=partition.state == "UP",
    )


def to_jobs(jobs: Iterable[Any], satellites: frozenset[str]) -> tuple[QueuedJob, ...]:
    """The jobs that wait, run or are ending. pyslurm also has jobs that have ended."""
    there = (job for job in jobs if job.state in STATES)
    return tuple(readable(job.id, partial(_to_job, job, satellites)) for job in there)


def _to_job(job: Any, satellites: frozenset[str]) -> QueuedJob:
    partitions = tuple(job.partition.split(","))
    asked, held = job.requested_tres, job.allocated_tres
    on_each = _generic_resources(job.gres_per_node)
    per_task = _generic_resources(_gres(job.tres_per_task))
    total = _tracked(_gres(held) or _gres(asked))
    resources = replace(
        total,
        cpus=job.cpus,
        memory_mib=_memory_mib(held) or _memory_mib(asked),
        gpu_type=on_each.gpu_type or per_task.gpu_type or total.gpu_type,
        devices=(on_each * max(1, job.num_nodes) + per_task * job.ntasks).devices,
    )
    exclusive = job.resource_sharing not in ("OK", "YES")
    required_nodes = frozenset(expand(job.required_nodes or ""))
    return QueuedJob(
        job_id=job.id,
        owner=Principal(str(job.user_id)),
        user=_user_name(job.user_id),
        partitions=partitions,
        state=STATES[job.state],
        wait=wait_reason(STATES[job.state], job.state_reason),
        reason=job.state_reason,
        priority=job.priority,
        submitted_at=float(job.submit_time or 0),
        started_at=float(job.start_time) if job.start_time else None,
        time_limit_s=job.time_limit * 60 if job.time_limit else None,
        nodes=expand(job.allocated_nodes or ""),
        num_nodes=job.num_nodes,
        resources=resources,
        requests=(request_of(resources, job.num_nodes, on_each, exclusive, required_nodes),),
        excluded_nodes=frozenset(expand(job.excluded_nodes or "")),
        features=",".join(job.constraints),
        restart_count=job.requeue_count,
        elastic=elastic_request(_written(lambda: job.admin_comment)),
        satellite=tag_in(_written(lambda: job.comment), partitions, satellites),
        account=job.account or "",
        name=or_empty(_written(lambda: job.name)),
        remedy=remedy(job.state_reason, job.id) if STATES[job.state] is JobState.PENDING else "",
        is_whole=not (job.array_id or job.heterogeneous_id),
    )


def _written(read: Callable[[], str | None]) -> str:
    """Free text of a user. For bytes that are no valid text, pyslurm raises an error: they become U+FFFD, as
    they do in what Slurm's commands print."""
    try:
        return read() or ""
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


def _generic_resources(counts: Mapping[str, int]) -> Resources:
    """The resources of a node or of a job's request: `{"gpu:v100": 4}`, `{"gres/gpu": 1}`."""
    by_kind = _by_kind(counts)
    gpus = by_kind.pop("gpu", {})
    return Resources(gpus=sum(gpus.values()), gpu_type=_only(gpus), devices=_devices(by_kind))


def _tracked(counts: Mapping[str, int]) -> Resources:
    """Tracked resources: `gpu` counts all GPUs, and `gpu:v100` counts some of them again."""
    by_kind = _by_kind(counts)
    gpus = by_kind.pop("gpu", {})
    total = gpus.pop("", 0)
    return Resources(
        gpus=total or sum(gpus.values()), gpu_type=_only(gpus), devices=_devices(by_kind, tracked=True)
    )


def _by_kind(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Counts by name, then by type."""
    by_kind: dict[str, dict[str, int]] = {}
    for name, count in counts.items():
        kind, _, device_type = name.removeprefix("gres/").partition(":")
        by_kind.setdefault(kind, {})[device_type] = int(count)
    return by_kind


def _devices(by_kind: Mapping[str, dict[str, int]], *, tracked: bool = False) -> tuple[Devices, ...]:
    """The devices by kind and type. Among `tracked` devices, the entry without a type counts all of its kind
    again if there are typed ones."""
    return tuple(
        Devices(name, device_type, count)
        for name, by_type in sorted(by_kind.items())
        for device_type, count in sorted(by_type.items())
        if count and (device_type or len(by_type) == 1 or not tracked)
    )


def _only(by_type: Mapping[str, int]) -> str:
    """The type, if all are of one type; else ""."""
    return next(iter(by_type)) if len(by_type) == 1 else ""


def _gres(tres: Any) -> dict[str, int]:
    """The counts of the generic resources among tracked ones; none for a job that has no such list."""
    return {} if tres is None else {name: gres.count for name, gres in tres.gres.items()}


def _memory_mib(tres: Any) -> int:
    return tres.mem.count if tres is not None and tres.mem is not None else 0


@lru_cache(maxsize=4096)
def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
