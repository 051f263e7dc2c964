"""Real clusters for the tests in this folder: labs of their own names, taken down whatever happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flexo_lab import Lab, LabSpec, Profile, bring_up, why_unavailable

# Run by make test-slurm-matrix, in systems with other releases of Slurm.
collect_ignore = [] if "FLEXO_SLURM_MATRIX" in os.environ else ["matrix"]

LabFactory = Callable[..., Lab]
"""make_lab(**fields of LabSpec without the name) -> Lab, up; taken down with the session at the latest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the real lab."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def make_lab() -> Iterator[LabFactory]:
    """Brings up labs of unique names; down() one early to spare the machine."""
    _skip_unless_possible(Profile.QUICK)
    labs: list[Lab] = []

    def make(**fields: object) -> Lab:
        spec = LabSpec(name=f"test-{os.getpid()}-{len(labs) + 1}", **fields)  # type: ignore[arg-type]
        _skip_unless_possible(spec.profile)
        lab = bring_up(spec)
        labs.append(lab)
        return lab

    yield make
    for lab in labs:
        lab.down()


@pytest.fixture(scope="session")
def lab(make_lab: LabFactory) -> Lab:
    """The lab that most tests share: quick, 3 training nodes and 1 inference node with 4 GPUs each."""
    return make_lab(nodes=3, gpus_per_node=4, infer_nodes=1)


@pytest.fixture
def spared_lab(make_lab: LabFactory) -> Iterator[LabFactory]:
    """As make_lab, for labs whose jobs train: down with the test, so that the next ones have the machine."""
    labs: list[Lab] = []

    def make(**fields: object) -> Lab:
        labs.append(make_lab(**fields))
        return labs[-1]

    yield make
    for lab in labs:
        lab.down()


@pytest.fixture(autouse=True)
def _no_jobs_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """The shared lab is handed to the next test without jobs."""
    yield
    if "lab" in request.fixturenames:
        cancel_all_jobs(request.getfixturevalue("lab"))


def cancel_all_jobs(lab: Lab) -> None:
    """Cancel every job and wait until Slurm has forgotten them: nodes are idle again."""
    deadline = time.monotonic() + 120
    while jobs := lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split():
        assert time.monotonic() < deadline, f"jobs do not end: {jobs}"
        lab.run(["scancel", "--quiet", *jobs], check=False)
        time.sleep(0.2)


def _skip_unless_possible(profile: Profile) -> None:
    reason = why_unavailable(profile)
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
