"""The Debian packages on a release of Debian: built there, installed, used by everybody, removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flexo

SOURCE = Path("/flexo/source")
CONFIG, SLURM_CONF = Path("/etc/flexo/flexo.toml"), Path("/etc/slurm/slurm.conf")
PACKAGES = ("flexo", "flexo-slurm-plugin", "flexo-web")
LEFT_OUT = ("/usr/share/doc/", "/usr/share/man/")
"""The folder systems have no such files (systems.py)."""
AS_GAMES = ("setpriv", "--reuid=games", "--regid=games", "--clear-groups")
pytestmark = [
    pytest.mark.skipif("FLEXO_SLURM_MATRIX" not in os.environ, reason="installs packages: a folder only"),
    pytest.mark.timeout(900),
]


def said(*command: str) -> str:
    """What a program prints, with nothing of this process's environment in its way."""
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All packages, in this system."""
    out = tmp_path_factory.mktemp("deb")
    subprocess.run(
        [sys.executable, str(SOURCE / "packages" / "build_debs.py"), "--out", str(out)], check=True
    )
    SLURM_CONF.parent.mkdir(parents=True, exist_ok=True)
    SLURM_CONF.write_text("ClusterName=c\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    said("dpkg", "--install", *(str(package) for package in out.glob("*.deb")))
    yield
    said("dpkg", "--purge", *PACKAGES)


@pytest.mark.usefixtures("installed")
def test_flexo_and_sbatch_of_the_packages_work_for_everybody() -> None:
    assert said(*AS_GAMES, "/usr/bin/flexo", "version") == f"flexo {flexo.__version__}\n"
    assert said(*AS_GAMES, "/usr/bin/flexod", "--check-config") == f"{CONFIG}: in order\n"
    assert "--elastic=MIN-MAX" in said("sbatch", "--help")
    differ = [line.split()[-1] for line in said("dpkg", "--verify", *PACKAGES).splitlines()]
    assert [path for path in differ if not path.startswith(LEFT_OUT)] == []
