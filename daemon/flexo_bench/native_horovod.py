"""Checks that this process can import Horovod's native library, and lets a job's script import it, too.

Set-up installs Horovod's Python files only. `make setup-native` puts Horovod with its library into
.venv/native, and make puts that folder on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from pathlib import Path


def why_missing() -> str:
    """The remedy if this process cannot import the native library; "" if it can."""
    spec = importlib.util.find_spec("horovod")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("/nowhere")
    if any(folder.glob("torch/mpi_lib_v2*.so")):
        return ""
    return "no native library of Horovod: make setup-native, and PYTHONPATH=$PWD/.venv/native"


def exports() -> list[str]:
    """Settings to export in a job's script, because a lab's environment is not the caller's."""
    path = os.environ.get("PYTHONPATH", "")
    return [f"PYTHONPATH={shlex.quote(path)}"] if path and not why_missing() else []
