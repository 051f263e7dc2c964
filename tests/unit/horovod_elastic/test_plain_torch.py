"""A script of torch.distributed under `flexo run` is told that only Horovod scripts are started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import horovod_elastic

pytest.importorskip("torch")

INJECT = Path(horovod_elastic.__file__).parent / "inject"
WORKER = {"FLEXO_AGENT": "127.0.0.1:1", "FLEXO_WORKER_ID": "w1", "PYTHONPATH": str(INJECT)}
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def ended(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A script that says how large its process group is."""
    script = f"import torch.distributed as dist\n{program}\nprint('size', dist.get_world_size())"
    clean = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("missing", [["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"], ["RANK"]])
def test_the_error_names_what_is_missing_what_is_supported_and_what_to_do(missing: list[str]) -> None:
    given = {name: value for name, value in LAUNCHED.items() if name not in missing}
    done = ended("dist.init_process_group('gloo')", {**WORKER, **given})
    assert done.returncode == 1
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith("ValueError: ")
    for fact in (", ".join(missing) + " not set", "flexo run", "Horovod", "DDP", "torchrun", "--elastic"):
        assert fact in error


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "given"),
    [
        ("dist.init_process_group('gloo')", LAUNCHED),
        (
            "dist.init_process_group('gloo', rank=0, world_size=1)",
            {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
        ),
        ("dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)", {}),
    ],
)
def test_a_script_that_brings_its_own_rendezvous_is_left_alone(program: str, given: dict[str, str]) -> None:
    done = ended(program, {**WORKER, **given})
    assert (done.returncode, done.stdout) == (0, "size 1\n"), done.stderr


@pytest.mark.thorough
def test_outside_of_flexo_run_the_error_is_pytorchs_own() -> None:
    done = ended("dist.init_process_group('gloo')", {"PYTHONPATH": str(INJECT)})
    assert "flexo" not in done.stderr.strip().splitlines()[-1]
