"""The environment of a worker's process: Horovod's variables, flexo's, and the GPUs that the worker sees."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flexo_protos.resources import rounded_up
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import reproducible
from horovod_elastic.agent.supervisor_link import SupervisorLink
from horovod_elastic.aggregation import place as place_of_aggregator
from horovod_elastic.core import choice
from horovod_elastic.job_plan import BaseJob
from horovod_elastic.platforms.base import MODULES
from horovod_elastic.worker.sigterm import SATELLITE

INJECT = Path(__file__).resolve().parents[1] / "inject"
"""The first folder on a worker's PYTHONPATH: its sitecustomize.py runs before the script."""

ADDRESS_VARIABLE = "MASTER_ADDR"
_THREADS = "OMP_NUM_THREADS"
_FIRST_PORT, _PORTS = 20_000, 10_000
"""MASTER_PORT is one of these, the same for all workers of a job."""


@dataclass(frozen=True, slots=True)
class WorkerLocation:
    """The place where an agent starts workers."""

    node: str
    interface: str
    """Name of the interface of the network on which workers meet."""
    slots: int
    base: bool
    """Whether the node belongs to the base, not to a satellite."""


def environment_of(
    order: pb.StartWorker, place: WorkerLocation, supervisor: SupervisorLink, job: BaseJob
) -> dict[str, str]:
    """This process's own environment, with the variables for the worker of `order` added."""
    environment = dict(os.environ)
    projected_rank = projected(order, place, job)
    ranks = (
        *(projected_rank.rank, projected_rank.size, projected_rank.local_rank),
        *(projected_rank.local_size, projected_rank.cross_rank, projected_rank.cross_size),
    )
    environment.update(
        PYTHONPATH=_joined(str(INJECT), environment.get(MODULES, ""), environment.get("PYTHONPATH", "")),
        FLEXO_AGENT=supervisor.endpoint,
        FLEXO_WORKER_ID=order.worker_id,
        FLEXO_WORKER_SECRET=supervisor.secret,
        FLEXO_NEWCOMER="1" if order.newcomer else "0",
        FLEXO_OUTLOOK=",".join(map(str, ranks)),
        FLEXO_JOB_ID=job.job_id,
        FLEXO_ELASTIC_BATCH=job.batch,
        HOROVOD_ELASTIC="1",
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_RANK="0",
        HOROVOD_SIZE="1",
        HOROVOD_LOCAL_RANK=str(order.slot),
        HOROVOD_LOCAL_SIZE=str(place.slots),
        HOROVOD_CROSS_RANK="0",
        HOROVOD_CROSS_SIZE="1",
        HOROVOD_HOSTNAME=place.node,
        HOROVOD_GLOO_IFACE=place.interface,
        FLEXO_ELASTIC="1" if job.elastic else "0",
        FLEXO_BASE=str(job.founders),
        FLEXO_OPPORTUNISTIC="1" if job.opportunistic else "0",
        FLEXO_UNIT_SIZE=str(job.unit),
        FLEXO_UNIT=order.unit,
        FLEXO_UNIT_PLACE=str(order.slot % job.unit),
        **_of_torchrun(projected_rank, job),
    )
    virtual = reproducible.virtual_workers(environment)
    # Without a number, each of several workers on a node takes as many threads as all have processors. It
    # must be the same on every node for virtual workers: sums over several threads have another order.
    environment[_THREADS] = environment.get(_THREADS) or str(1 if virtual else job.shape.cpus)
    if virtual:
        environment.update(_of_virtual_worker(virtual, order, place))
    if order.newcomer:
        # A newcomer is alone until it joins, and the native core believes local and cross ranks.
        environment.update(HOROVOD_LOCAL_RANK="0", HOROVOD_LOCAL_SIZE="1")
    if not place.base:
        environment[SATELLITE] = "1"
    if choice.is_on_torch(environment):
        # Horovod's library keeps its own 30 s: they bound what its Gloo does not notice
        # (docs/explanation/core.md).
        environment.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(choice.TORCH_TIMEOUT_S))
    if choice.sums_by_service(environment):
        environment[place_of_aggregator.VARIABLE] = str(supervisor.folder)
    if devices := environment.get("CUDA_VISIBLE_DEVICES", ""):
        seen = devices_seen(
            devices.split(","), rounded_up(job.shape.gpus, 1), order.slot, projected_rank.local_rank
        )
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
    return environment


def _joined(*folders: str) -> str:
    return os.pathsep.join(filter(None, folders))


def projected(order: pb.StartWorker, place: WorkerLocation, job: BaseJob) -> pb.ProjectedRank:
    """The place that a worker is going to have: a founder's by the plan, a newcomer's as the leader expects.

    When the leader starts the first founders, it may not have heard of the other nodes yet.
    """
    if reproducible.virtual_workers(os.environ):
        return order.projected_rank
    before = 0
    for node in job.nodes:
        if node.name == place.node and place.base and not order.newcomer and order.slot < node.workers:
            peers = [each for each in job.nodes if each.workers > order.slot]
            return pb.ProjectedRank(
                rank=before + order.slot,
                size=job.workers,
                local_rank=order.slot,
                local_size=node.workers,
                cross_rank=peers.index(node),
                cross_size=len(peers),
            )
        before += node.workers
    return order.projected_rank


def _of_torchrun(rank: pb.ProjectedRank, job: BaseJob) -> dict[str, str]:
    """The variables that torchrun sets. init_process_group sets some anew (worker/ddp/hooks.py)."""
    said = os.environ
    port = _FIRST_PORT + int(job.job_id) % _PORTS if job.job_id.isdecimal() else _FIRST_PORT
    return {
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.size),
        "LOCAL_RANK": str(rank.local_rank),
        "LOCAL_WORLD_SIZE": str(rank.local_size),
        "GROUP_RANK": str(rank.cross_rank),
        "GROUP_WORLD_SIZE": str(rank.cross_size),
        "ROLE_NAME": said.get("ROLE_NAME", "default"),  # as torchrun --role has it
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(rank.size),
        ADDRESS_VARIABLE: said.get(ADDRESS_VARIABLE) or job.nodes[0].host,
        "MASTER_PORT": said.get("MASTER_PORT") or str(port),
        "TORCHELASTIC_RUN_ID": job.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(job.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _of_virtual_worker(count: int, order: pb.StartWorker, place: WorkerLocation) -> dict[str, str]:
    """The variables of a virtual worker that differ from those of other workers.

    LOCAL_RANK names its GPU, which it may share.
    """
    return {
        "FLEXO_BASE": str(count),
        "LOCAL_RANK": str(order.slot),
        "LOCAL_WORLD_SIZE": str(place.slots),
    }


def devices_seen(devices: list[str], gpus: int, slot: int, local_rank: int) -> list[str]:
    """The GPUs that the worker in `slot` sees: its own GPUs, or all GPUs if it has only one.

    Horovod scripts pick their GPU by local rank, once. A restarted worker ranks behind those that live, so
    its local rank may differ from its slot. Then the slot's GPU is put where the script will look.
    """
    if gpus > 1:
        return devices[slot * gpus :][:gpus]
    if max(slot, local_rank) < len(devices):
        devices[slot], devices[local_rank] = devices[local_rank], devices[slot]
    return devices
