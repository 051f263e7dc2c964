"""The machine on which the figures are measured."""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil


def facts() -> dict[str, Any]:
    """Cores, memory, load and versions of this machine."""
    import horovod
    import torch

    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1_5_15_minutes_at_start": [round(load, 2) for load in os.getloadavg()],
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "horovod": horovod.__version__,
        "accelerator": "not used: everything runs on the processor (Gloo)",
    }
