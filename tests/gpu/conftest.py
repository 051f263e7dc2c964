"""Tests on a real GPU. They are skipped, with the reason, where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "horovod_elastic" / "sharing"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here without CUDA."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        for item in items:
            if "/tests/gpu/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="no GPU: torch.cuda.is_available() is false"))
