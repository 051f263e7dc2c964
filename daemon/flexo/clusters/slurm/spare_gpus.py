"""Finds the GPUs that Slurm can open for a second job, by the devices of nodes and jobs. Pure functions.

A site gives each such GPU a second GRES on its device file, of a type of its own:
`Gres=gpu:2,spare:s0:1,spare:s1:1` (docs/admin-guide.md). Slurm does not tell flexod the device file. So the
number at the end of the type is the index of the GPU. `flexo doctor` compares types and files in gres.conf.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from flexo.model.nodes import Node, SpareGpu
from flexo.model.queue import QueuedJob
from flexo_protos.resources import Resources

_INDEX = re.compile(r"[0-9]{1,4}$")


def index_of(type_name: str) -> int | None:
    """The index of the GPU, by its type of the GRES: `s1` -> 1; None without a number at the end."""
    match = _INDEX.search(type_name)
    return int(match[0]) if match else None


def with_spare_gpus(nodes: Iterable[Node], jobs: Iterable[QueuedJob], gres: str) -> tuple[Node, ...]:
    """The nodes. Those that have the GRES `gres` get its GPUs, and who uses them.

    A type without an index stands for no GPU, nor does a type with more than one device: flexod grants each
    GPU to one job.
    """
    holders = {
        (node, device_type): job.job_id
        for job in jobs
        for device_type in _types(job.resources, gres)
        for node in job.nodes
    }
    return tuple(
        replace(node, shareable=_spare_gpus(node, holders, gres)) if _types(node.capacity, gres) else node
        for node in nodes
    )


def _spare_gpus(node: Node, holders: dict[tuple[str, str], int], gres: str) -> tuple[SpareGpu, ...]:
    taken = _types(node.allocated, gres)
    found = (
        SpareGpu(index, each.type, holder, in_use=each.type in taken or holder is not None)
        for each in node.capacity.devices
        if each.name == gres and each.amount == 1 and (index := index_of(each.type)) is not None
        for holder in (holders.get((node.name, each.type)),)
    )
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def _types(resources: Resources, gres: str) -> frozenset[str]:
    return frozenset(each.type for each in resources.devices if each.name == gres and each.type)
