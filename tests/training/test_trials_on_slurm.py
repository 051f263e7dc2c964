"""A job calibrates a cluster; jobs try batches, grow by the outcome, and pay; later ones need no trials."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elastic_jobs
import pytest
from elastic_jobs import Job

import flexo_bench.jsa
from flexo_lab import Lab, LabSpec, bring_up, why_unavailable
from flexo_protos.all_reduce_file import parse

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

FLEXO = Path(sys.executable).parent / "flexo"
SCRIPT = Path(flexo_bench.jsa.__file__).with_name("train.py")
STEPS_OF_TRIALS = 100
"""More than trials take."""
COMMIT_EVERY = 10
"""Steps of the script between two commits."""
PAIR = ("-N", "2", "-n", "2", "--gpus-per-task=1")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two nodes with one GPU each."""
    if reason := why_unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    lab = bring_up(LabSpec(name=f"trials-{os.getpid()}", nodes=2, gpus_per_node=1, infer_nodes=0))
    yield lab
    lab.down()


def submit(lab: Lab, name: str, run: str, **how: Any) -> Job:
    folder = lab.scratch / name
    folder.mkdir()
    return elastic_jobs.submit(lab, folder, SCRIPT.name, launch=f"{shlex.quote(str(FLEXO))} run {run}", **how)


def shown(lab: Lab, job: Job) -> dict[str, Any]:
    """What `flexo jobs` says of it."""
    jobs = json.loads(lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
    return next((dict(each) for each in jobs if each["job_id"] == job.job_id), {})


def test_jobs_try_batches_and_grow_as_the_calibration_lets_expect(lab: Lab) -> None:
    file = lab.scratch / "all_reduce.json"
    measure = shlex.join(
        [sys.executable, "-m", "horovod_elastic.calibrate", str(file), "--weights", "10000,1000000"]
    )
    calibration = submit(lab, "calibrate", measure, options=PAIR)
    assert calibration.wait() == 0, calibration.output()
    assert parse(file.read_text()).workers == (2,)
    told_to_go_by(lab, file)

    first = train(lab, "first")
    first.wait_until("trials", lambda: shown(lab, first).get("tried_worker_s"))
    first.wait_until("two workers", lambda: shown(lab, first).get("workers") == 2)
    spent_s = shown(lab, first)["tried_worker_s"]
    first.wait_until("more rounds", lambda: shown(lab, first).get("tried_worker_s", 0) > spent_s)
    assert 16 <= shown(lab, first)["batch"] <= 64
    assert "tried" in lab.run(["flexo", "cost", str(first.job_id)]).stdout
    why = lab.run(["flexo", "why", str(first.job_id)]).stdout
    (forecast,) = (line for line in why.splitlines() if "by batch" in line)
    assert "time limit" in forecast, why
    assert all(f"{batch} samples" in forecast for batch in (16, 32, 64)), why
    first.cancel()
    first.wait()

    second = train(lab, "second")
    second.wait_until("steps", lambda: shown(lab, second).get("batches_committed", 0) > 5)
    enough = shown(lab, second)["batches_committed"] + STEPS_OF_TRIALS / COMMIT_EVERY
    second.wait_until("more steps", lambda: shown(lab, second).get("batches_committed", 0) > enough)
    assert shown(lab, second)["tried_worker_s"] == 0
    second.cancel()


def told_to_go_by(lab: Lab, file: Path) -> None:
    """Have flexod use IBM's policy and these all-reduces. Its section [controller] is the last one."""
    toml = lab.layout.flexo_toml
    own = toml.with_name("all_reduce.json")
    own.write_text(file.read_text())
    own.chmod(0o644)
    toml.write_text(f'{toml.read_text().rstrip()}\npolicy = "throughput"\nall_reduce = "{own}"\n')
    lab.restart_flexod()


def train(lab: Lab, name: str) -> Job:
    """A job of one worker whose command is always the same."""
    logs = lab.scratch / "logs"
    logs.mkdir(exist_ok=True)
    options = (
        "--model",
        "cnn",
        "--seconds",
        "240",
        "--least",
        "16",
        "--largest",
        "32",
        "--log-dir",
        str(logs),
    )
    run = shlex.join([sys.executable, str(SCRIPT), *options])
    asked = ("-n", "1", "--gpus-per-task=1", "--time=30", "--elastic-batch=16-64")
    return submit(lab, name, run, options=asked, elastic="1-2")
