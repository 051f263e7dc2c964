"""The folder of traces and profiles of real jobs, beside the checkout. Tests skip if they lack one."""

from __future__ import annotations

from pathlib import Path

import pytest

_TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def needs_traces(path: str) -> Path:
    """The trace file or folder `path`. Skips the test if it is missing."""
    found = _TRACES / path
    if not found.exists():
        pytest.skip(f"needs {path} of the traces, which would lie at {_TRACES}")
    return found
