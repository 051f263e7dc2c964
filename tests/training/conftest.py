"""One lab for all training tests, with its own flexod; jobs that are over before the next test begins."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import elastic_jobs
import pytest

from flexo_lab import Lab, LabSpec, bring_up, why_unavailable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here trains."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.training)


@pytest.fixture(scope="session")
def training_lab() -> Iterator[Lab]:
    """Three nodes with four GPUs each, and flexod."""
    if reason := why_unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    lab = bring_up(LabSpec(name=f"hvtest-{os.getpid()}", nodes=3, gpus_per_node=4, infer_nodes=0))
    yield lab
    lab.down()


@pytest.fixture(scope="session")
def submit(training_lab: Lab) -> elastic_jobs.Submit:
    """submit(script, *arguments, elastic="1-4", ...) -> Job."""
    count = 0

    def submit_one(script: str, *arguments: str, **how: object) -> elastic_jobs.Job:
        nonlocal count
        count += 1
        folder = training_lab.scratch / f"job{count}"
        folder.mkdir()
        if user := how.get("user"):
            os.chown(folder, pwd.getpwnam(str(user)).pw_uid, -1)
        return elastic_jobs.submit(training_lab, folder, script, *arguments, **how)  # type: ignore[arg-type]

    return submit_one


@pytest.fixture
def alone(training_lab: Lab) -> Iterator[Lab]:
    """The lab, empty before and after, for tests that decide what is idle."""
    clear(training_lab)
    yield training_lab
    clear(training_lab)


def clear(lab: Lab) -> None:
    """Cancel every job and wait for the end of all."""
    deadline = time.monotonic() + 150
    while jobs := lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split():
        assert time.monotonic() < deadline, f"jobs do not end: {jobs}"
        lab.run(["scancel", "--quiet", *jobs], check=False)
        time.sleep(0.3)
