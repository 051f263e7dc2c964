"""What enters users' environments: it works with both ends of its ranges, and stands beside what they have.

Needs the network: uv resolves and installs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
UV: Final = ROOT / ".venv" / "bin" / "uv"
BESIDE: Final = ("tensorboard", "ray", "wandb")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_USERS: Final = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["etcd"]]

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_a_job_works_with_this_end_of_what_it_requires(resolution: str, tmp_path: Path) -> None:
    install = [UV, "pip", "install", "--python", sys.executable, "--target", tmp_path / "end"]
    subprocess.run([*install, "--resolution", resolution, *OF_USERS], check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "end")}
    tests = ("tests/unit/protos", "tests/unit/horovod_elastic", "tests/unit/cli")
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_it_resolves_beside_what_users_have(python: str, tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.in"
    wanted.write_text("\n".join([*OF_USERS, *BESIDE]))
    resolve = [UV, "pip", "compile", "--python-version", python, "--only-binary", ":all:", wanted]
    done = subprocess.run(resolve, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    resolved = {line.partition("==")[0] for line in done.stdout.splitlines() if "==" in line}
    assert {*BESIDE, "grpcio", "protobuf", "psutil", "rich", "typer"} <= resolved
