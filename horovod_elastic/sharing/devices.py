"""The GPUs of a node as its coordinator sees them: by NVML, or pretended."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from horovod_elastic.sharing.cpu_time import cpu_s
from horovod_elastic.sharing.environment import WrongVariable, checked_gpu, gpu_name

_PRETENDED = re.compile(r"([^:=]+(?::[^:=]+)*):([0-9]+(?:\.[0-9]+)?)")
GIB = 1 << 30


class NoDevices(RuntimeError):
    """The node's GPUs cannot be read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a device: bytes in use, and the share of the last moments in which it worked."""

    memory_used: int
    utilization: float


class Device(Protocol):
    """One GPU."""

    name: str
    model: str
    pretended: bool
    memory_total: int

    def read(self, pids: Iterable[int], counted: int) -> Reading:
        """Look. `pids`: the jobs' processes; `counted`: bytes that their layers count."""


class PretendedDevice:
    """A device that exists by declaration. It works when its jobs use CPU time, at most one core's."""

    pretended = True
    model = "pretended"

    def __init__(self, name: str, memory_total: int) -> None:
        self.name, self.memory_total = name, memory_total
        self._used_s: dict[int, float] = {}
        self._at = time.monotonic()

    def read(self, pids: Iterable[int], counted: int) -> Reading:
        """CPU seconds of the processes since the last look, over the time that has passed."""
        now = time.monotonic()
        used = {pid: cpu_s(pid) for pid in pids}
        new = sum(max(0.0, seconds - self._used_s.get(pid, seconds)) for pid, seconds in used.items())
        share = new / max(now - self._at, 1e-3)
        self._used_s, self._at = used, now
        return Reading(counted, min(1.0, share))


class NvmlDevice:
    """A GPU by NVML."""

    pretended = False

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._handle = nvml, nvml.nvmlDeviceGetHandleByIndex(index)
        # The cluster numbers GPUs by their device files, /dev/nvidiaN. NVML's own order may differ.
        self.name = gpu_name(int(nvml.nvmlDeviceGetMinorNumber(self._handle)))
        model = nvml.nvmlDeviceGetName(self._handle)
        self.model = model.decode() if isinstance(model, bytes) else str(model)
        self.memory_total = int(nvml.nvmlDeviceGetMemoryInfo(self._handle).total)

    def read(self, pids: Iterable[int], counted: int) -> Reading:
        """What the driver says. A driver that does not answer counts as a GPU that is full and busy."""
        try:
            used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
            busy = float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        except self._nvml.NVMLError:
            return Reading(self.memory_total, 1.0)
        return Reading(used, busy)


def pretended(text: str) -> PretendedDevice:
    """The device that NAME:GIB declares. Raises WrongVariable."""
    found = _PRETENDED.fullmatch(text)
    size = float(found[2]) if found else 0.0
    if found is None or not 0 < size <= 4096:
        raise WrongVariable(f"{text!r} declares no device; allowed is NAME:GIB, such as cpu0:8")
    return PretendedDevice(checked_gpu(found[1]), int(size * GIB))


def by_nvml() -> list[Device]:
    """The GPUs of this node. Raises NoDevices with the reason and what to do."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise NoDevices(
            "GPUs are read through the Python package nvidia-ml-py, which is not installed. Install it, or"
            " declare devices with --pretend NAME:GIB"
        ) from None
    try:
        nvml.nvmlInit()
        return [NvmlDevice(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise NoDevices(
            f"NVML does not answer on this node: {error}. Is the NVIDIA driver loaded?"
        ) from error
