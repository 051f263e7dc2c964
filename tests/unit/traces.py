"""Where traces and profiles of real jobs lie, beside the checkout; tests that need them skip without them."""

from __future__ import annotations

from pathlib import Path

import pytest

_TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def needs_traces(path: str) -> Path:
    """The file or folder `path` of them, or the test is skipped."""
    found = _TRACES / path
    if not found.exists():
        pytest.skip(f"needs {path} of the traces, which would lie at {_TRACES}")
    return found
