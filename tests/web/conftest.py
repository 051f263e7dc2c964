"""A real Chromium for the tests in this folder, and what it looks at: a lab, or flexod's double over gRPC."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "unit" / "web"))  # flexod's double

from chromium import CHROMIUM, Browsers, browsers  # noqa: E402
from pretended import furnish  # noqa: E402
from served import Served, served  # noqa: E402

from flexo_lab import Lab, LabSpec, Profile, bring_up, why_unavailable  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs Chromium."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.web)


def unable(reason: str) -> None:
    """Fail where all tests have to run; elsewhere skip."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browsers]:
    """Makes browsers. Of this module: while it runs, its thread has an event loop, which other tests make."""
    if shutil.which(CHROMIUM) is None:
        unable("Chromium is not installed (Debian: apt-get install chromium)")
    with browsers() as made:
        yield made


@pytest.fixture
def site() -> Iterator[Served]:
    """flexo-web on flexod's double, with something to show on every page."""
    with served(furnish) as made:
        yield made


@pytest.fixture(scope="module")
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Brings up labs of unique names with flexo-web; down with the module."""
    reason = why_unavailable(Profile.QUICK)
    if reason is not None:
        unable(reason)
    labs: list[Lab] = []

    def make(**fields: object) -> Lab:
        spec = LabSpec(name=f"web-{os.getpid()}-{len(labs) + 1}", web=True, **fields)  # type: ignore[arg-type]
        labs.append(bring_up(spec))
        return labs[-1]

    yield make
    for lab in labs:
        lab.down()
