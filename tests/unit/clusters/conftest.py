"""What tests of Slurm's commands share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def commands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which commands are taken before all others."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path
