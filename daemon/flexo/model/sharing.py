"""GPUs that two jobs use: how the cluster names them, and what the coordinators of their nodes measure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flexo_protos.resources import Devices

SPARE: Final = "spare"
"""The cluster's second resource on the same GPUs: whoever holds it may use a GPU that another job holds."""
_TYPE: Final = re.compile(r"s(0|[1-9][0-9]{0,2})")
"""The type of the resource on the GPU with this number on its node: `s0`, `s1`, ..."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The use of one GPU by the guarantee job that holds it. Shares are from 0 to 1.

    The job's leader reports it, so it is the word of a user.
    """

    node: str
    gpu: int
    """The GPU, as the cluster numbers it on the node."""
    utilization: float
    """The share of the time in which the guarantee job keeps the GPU busy."""
    memory_mib: int = 0
    """The memory of the GPU; 0: not known."""
    peak_mib: int = 0
    """The most memory that the guarantee job has held."""
    slowdown: float = 0.0
    """The slowdown of the guarantee job's steps by the sharing; 0: none."""
    opportunistic_share: float = 0.0
    """The share of the time in which an opportunistic job works on the GPU."""
    steady: bool = False
    """Whether the guarantee job has come to steady steps: before that nobody else works on the GPU."""


def shared_gpu(gpu: int) -> Devices:
    """The resource that lets a job use the GPU with this number while another job holds the GPU."""
    return Devices(SPARE, f"s{gpu}", 1)


def number_of(device: Devices) -> int | None:
    """The number of the GPU that this resource is for; None: it is another resource."""
    match = _TYPE.fullmatch(device.type) if device.name == SPARE else None
    return int(match[1]) if match else None


def shared_gpus_in(devices: Iterable[Devices]) -> tuple[Devices, ...]:
    """The devices that are shared GPUs."""
    return tuple(device for device in devices if number_of(device) is not None)
