"""Starts workers on GPUs that two jobs use: of the guarantee job that lets others in, or of the other job."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod_elastic.leader.gpu_uses import folder_on
from horovod_elastic.sharing import environment as sharing
from horovod_elastic.sharing.environment import Role, Sharing
from horovod_elastic.sharing.supervisor import ENDED

_DEVICES = Path("/dev")


def of_guarantee(present: Mapping[str, str], node: str, gpus: Sequence[int], job_id: str) -> dict[str, str]:
    """The variables to add for a worker that has all of these GPUs, and lets others use them.

    A worker without exactly one GPU is not shared: what leaks on one GPU holds up the others.
    """
    if len(gpus) != 1:
        return {}
    return _variables(Role.GUARANTEE, node, gpus[0], job_id, present)


def of_opportunistic(
    present: Mapping[str, str], node: str, gpu: int, granted: Sequence[int], job_id: str
) -> dict[str, str]:
    """The variables to add for a worker on a GPU that another job holds. `granted`: all of the satellite."""
    added = _variables(Role.OPPORTUNISTIC, node, gpu, job_id, present)
    return {**added, "CUDA_VISIBLE_DEVICES": str(visible_number(gpu, granted))}


def supervised(command: Sequence[str], gpu: int, job_id: str) -> list[str]:
    """`command` under a supervisor, which stops it where it does not stop at a closed gate."""
    options = (Role.OPPORTUNISTIC.value, "--gpu", sharing.gpu_name(gpu), "--job", job_id, "--with", "*")
    return [sys.executable, "-m", "horovod_elastic", "share", *options, "--", *command]


def gpu_was_taken(exit_code: int) -> bool:
    """Whether the supervisor of a second job has ended a worker: the job may not use this GPU any more."""
    return exit_code == ENDED


def _variables(role: Role, node: str, gpu: int, job_id: str, present: Mapping[str, str]) -> dict[str, str]:
    folder = folder_on(node, present)
    everybody = frozenset({sharing.EVERYBODY})  # flexod decides, and the cluster opens no other GPU
    where = Sharing(role, sharing.gpu_name(gpu), folder, job_id, consent=everybody)
    return sharing.for_process(where, present)


def visible_number(gpu: int, granted: Sequence[int], devices: Path = _DEVICES) -> int:
    """CUDA's number of the GPU: the node's own, or its place among `granted` where no other can be opened.

    A cluster that constrains devices lets a job open the granted ones only. CUDA then counts those alone.
    """
    mine = {f"nvidia{number}" for number in granted}
    others = [path for path in devices.glob("nvidia[0-9]*") if path.name not in mine]
    if others and all(_is_closed(path) for path in others):
        return sorted(granted).index(gpu)
    return gpu


def _is_closed(path: Path) -> bool:
    """Whether the device's cgroup forbids to open it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EPERM
    return False
