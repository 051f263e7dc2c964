"""Makes nodes and queued jobs from flat arguments: each amount of Resources has a keyword of its own."""

from dataclasses import replace

from flexo.model.nodes import Node
from flexo.model.queue import QueuedJob, Request
from flexo_protos.resources import Resources

_AMOUNTS = {"gpus", "cpus", "memory_mib", "gpu_type", "devices"}
_ALLOCATED = {"gpus_allocated": "gpus", "cpus_allocated": "cpus", "memory_allocated_mib": "memory_mib"}
_ASKED = {"gpus_per_node", "exclusive", "required_nodes"}


def make_node(
    name: str,
    gpus=0,
    gpus_allocated=0,
    cpus: int = 0,
    cpus_allocated: int = 0,
    memory_mib: int = 0,
    memory_allocated_mib: int = 0,
    partitions: frozenset[str] = frozenset(),
    gpu_type: str = "",
    features: frozenset[str] = frozenset(),
    **other,
) -> Node:
    return Node(
        name,
        Resources(gpus, cpus, memory_mib, gpu_type),
        Resources(gpus_allocated, cpus_allocated, memory_allocated_mib, gpu_type),
        partitions,
        features,
        **other,
    )


def change_node(node: Node, **changes) -> Node:
    capacity = {name: changes.pop(name) for name in _AMOUNTS & changes.keys()}
    allocated = {_ALLOCATED[name]: changes.pop(name) for name in _ALLOCATED.keys() & changes.keys()}
    return replace(
        node,
        **{
            "capacity": replace(node.capacity, **capacity),
            "allocated": replace(node.allocated, **allocated),
            **changes,
        },
    )


def make_job(**said) -> QueuedJob:
    amounts = {name: said.pop(name) for name in _AMOUNTS & said.keys()}
    asked = {name: said.pop(name) for name in _ASKED & said.keys()}
    job = QueuedJob(**said, resources=Resources(**amounts))
    return replace(job, requests=(_request(job, **asked),))


def change_job(job: QueuedJob, **changes) -> QueuedJob:
    amounts = {name: changes.pop(name) for name in _AMOUNTS & changes.keys()}
    asked = {name: changes.pop(name) for name in _ASKED & changes.keys()}
    was = job
    job = replace(job, **changes)
    if not amounts and not asked and "num_nodes" not in changes:
        return job
    job = replace(job, resources=replace(job.resources, **amounts))
    (request,) = was.requests
    if "gpus" not in amounts and request.per_node == 1 and request.units == max(1, was.num_nodes):
        asked.setdefault("gpus_per_node", request.unit.gpus)
    asked.setdefault("exclusive", job.exclusive)
    asked.setdefault("required_nodes", job.required_nodes)
    return replace(job, requests=(_request(job, **asked),))


def _request(
    job: QueuedJob,
    gpus_per_node: int = 0,
    exclusive: bool = False,
    required_nodes: frozenset[str] = frozenset(),
) -> Request:
    nodes = max(1, job.num_nodes)
    if not (gpus_per_node or exclusive):
        return Request.in_all(job.resources, nodes, required_nodes)
    unit = job.resources.share(nodes)
    if gpus_per_node:
        unit = replace(unit, gpus=gpus_per_node)
    return Request.on_each_node(nodes, unit, exclusive, required_nodes)
