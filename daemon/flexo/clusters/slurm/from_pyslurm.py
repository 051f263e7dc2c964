"""pyslurm's objects as flexo's types. Written for the API of pyslurm 25.11; pure functions.

pyslurm shows less than Slurm's commands do, so it is used only where that is enough (`why_not_enough`):

- It has no GresUsed: GPUs in use are known only as tracked resources (AccountingStorageTRES, which takes
  slurmdbd).
- GPUs asked for per job or per socket are not parsed: the job's tracked resources stand in, and the type of
  those GPUs is known only where the type is tracked too.
- get_resource_layout_per_node() must not be called: 26.05 has changed what it reads.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

from flexo.clusters.slurm.hostlist import expand
from flexo.clusters.slurm.marks import elastic_request
from flexo.clusters.slurm.node_states import conditions, first_line, why_unusable
from flexo.clusters.slurm.parse_jobs import STATES, readable, tag_in
from flexo.clusters.slurm.text import Gpus
from flexo.clusters.slurm.wait_reasons import wait_reason
from flexo.model.nodes import Node, Partition
from flexo.model.queue import Principal, QueuedJob


def why_not_enough(config: Any, nodes: Iterable[Any]) -> str:
    """ "" if pyslurm shows all that flexo needs of this cluster; else what is missing."""
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
    """One node."""
    installed = _gpus(node.configured_gres)
    state, *flags = node.state.split("+")
    return Node(
        name=node.name,
        gpus=installed.count,
        gpus_allocated=_tracked_gpus(node.allocated_gres).count,
        cpus=node.effective_cpus,
        cpus_allocated=node.allocated_cpus,
        memory_mib=(node.real_memory or 0) - (node.memory_reserved_for_system or 0),
        memory_allocated_mib=node.allocated_memory,
        partitions=frozenset(node.partitions),
        gpu_type=installed.type,
        features=frozenset(node.active_features),
        unusable=why_unusable(state, flags, first_line(node.reason or ""), node.owner or ""),
        conditions=conditions(state, flags, node.owner or ""),
        threads_per_core=node.threads_per_core or 1,
    )


def to_partition(partition: Any) -> Partition:
    """One partition."""
    return Partition(
        name=partition.name,
        priority_tier=partition.priority_tier or 0,
        nodes=frozenset(expand(partition.nodes or "")),
        up=partition.state == "UP",
    )


def to_jobs(jobs: Iterable[Any], satellites: frozenset[str]) -> tuple[QueuedJob, ...]:
    """The jobs that wait, run or are ending: pyslurm has those that ended too."""
    there = (job for job in jobs if job.state in STATES)
    return tuple(readable(job.id, partial(_to_job, job, satellites)) for job in there)


def _to_job(job: Any, satellites: frozenset[str]) -> QueuedJob:
    partitions = tuple(job.partition.split(","))
    asked, held = job.requested_tres, job.allocated_tres
    per_node = _gpus(job.gres_per_node)
    total = _tracked_gpus(_gres(held) or _gres(asked))
    per_task = _gpus(_gres(job.tres_per_task))
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
        cpus=job.cpus,
        gpus=total.count,
        memory_mib=_memory_mib(held) or _memory_mib(asked),
        gpus_per_node=per_node.count,
        gpu_type=per_node.type or per_task.type or total.type,
        required_nodes=frozenset(expand(job.required_nodes or "")),
        excluded_nodes=frozenset(expand(job.excluded_nodes or "")),
        features=",".join(job.constraints),
        exclusive=job.resource_sharing not in ("OK", "YES"),
        restart_count=job.requeue_count,
        elastic=elastic_request(_written(lambda: job.admin_comment)),
        satellite=tag_in(_written(lambda: job.comment), partitions, satellites),
        account=job.account or "",
    )


def _written(read: Callable[[], str | None]) -> str:
    """What somebody wrote freely; "" where it is not even text, which pyslurm does not stand."""
    try:
        return read() or ""
    except UnicodeDecodeError:
        return ""


def _gpus(counts: Mapping[str, int]) -> Gpus:
    """GPUs that a node has or a job asks for: `{"gpu:v100": 4}`, `{"gres/gpu": 1}`."""
    by_type = _by_type(counts)
    return Gpus(sum(by_type.values()), _only(by_type))


def _tracked_gpus(counts: Mapping[str, int]) -> Gpus:
    """GPUs among tracked resources, where `gpu` counts all of them and `gpu:v100` some of them again."""
    by_type = _by_type(counts)
    total = by_type.pop("", 0)
    return Gpus(total or sum(by_type.values()), _only(by_type))


def _by_type(counts: Mapping[str, int]) -> dict[str, int]:
    split = ((name.removeprefix("gres/").partition(":"), int(count)) for name, count in counts.items())
    return {gpu_type: count for (kind, _, gpu_type), count in split if kind == "gpu"}


def _only(by_type: Mapping[str, int]) -> str:
    """The type, where all are of one."""
    return next(iter(by_type)) if len(by_type) == 1 else ""


def _gres(tres: Any) -> dict[str, int]:
    """The generic resources among tracked ones, counted; none for a job that has no such list."""
    return {} if tres is None else {name: gres.count for name, gres in tres.gres.items()}


def _memory_mib(tres: Any) -> int:
    return tres.mem.count if tres is not None and tres.mem is not None else 0


@lru_cache(maxsize=4096)
def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
