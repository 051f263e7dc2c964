"""The Debian packages of this checkout, built once for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clean_system import why_impossible

BUILD = Path(__file__).resolve().parents[2] / "packages" / "build_debs.py"


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """All of them, by name."""
    reason = why_impossible()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("deb")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, str(BUILD), "--out", str(out)]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    yield {path.name.partition("_")[0]: path for path in out.glob("*.deb")}
    shutil.rmtree(out)  # a hundred megabytes
