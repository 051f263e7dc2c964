"""The layer inside a process, checked in a process of its own: it hooks PyTorch and moves live tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

CHECKS = Path(__file__).with_name("layer_checks.py")


@pytest.mark.processes
def test_the_layer_holds_marks_and_keeps_below_its_limit() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CHECKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
