"""GPUs as NVML shows them, with a small module in its place."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from horovod_elastic.sharing.devices import by_nvml


def test_gpus_have_the_numbers_of_their_device_files(monkeypatch: pytest.MonkeyPatch) -> None:
    minors = (3, 1)
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(minors),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMinorNumber=lambda handle: minors[handle],
        nvmlDeviceGetName=lambda handle: "H100",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 << 30, used=0),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [device.name for device in by_nvml()] == ["gpu3", "gpu1"]
