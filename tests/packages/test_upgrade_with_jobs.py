"""The Debian packages of an older release and of this one over each other, while jobs train on a real Slurm.

`FLEXO_OLDER_PACKAGES` names a folder with the packages of the older release (`make deb` in a checkout of it).
Without it they are this release's under a lower version: that tries the packages, not the programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from overlay import running, why_impossible

import flexo

INSIDE = Path(__file__).with_name("upgrade_inside.py")
BOUND_S = 900
OLDER = "0.0.9"

pytestmark = [pytest.mark.slow, pytest.mark.training, pytest.mark.timeout(1500)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Half a gigabyte, for as long as it is needed; with the empty folder `layer` in it."""
    layer = tmp_path / "layer"
    layer.mkdir()
    if reason := why_impossible(layer):
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    yield tmp_path
    for each in tmp_path.iterdir():
        shutil.rmtree(each, ignore_errors=True)


@pytest.fixture
def older(folder: Path, packages: dict[str, Path]) -> Path:
    """A folder with the packages of an older release."""
    if given := os.environ.get("FLEXO_OLDER_PACKAGES"):
        return Path(given).resolve()
    made, trees = folder / "older", folder / "trees"
    made.mkdir()
    trees.mkdir()
    for package in packages.values():
        tree = trees / package.name
        subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tree)], check=True)
        told = [
            tree / "DEBIAN" / "control",
            *tree.glob("usr/lib/flexo/lib/*/site-packages/flexo/__init__.py"),
        ]
        for path in told:
            path.write_text(path.read_text().replace(flexo.__version__, OLDER))
        subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--build", str(tree), str(made)], check=True)
    return made


@pytest.mark.thorough
def test_jobs_train_on_while_packages_are_upgraded_taken_back_and_upgraded_again(
    folder: Path, older: Path, packages: dict[str, Path]
) -> None:
    layer, log, newer = folder / "layer", folder / "log", packages["flexo"].parent
    try:
        with running(layer, [sys.executable, str(INSIDE), str(older), str(newer)], log) as process:
            status = process.wait(BOUND_S)
    finally:
        print(log.read_text())
    assert status == 0, log.read_text()[-2000:]
