"""One YARN lab for all tests here; applications that are over before the next test begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import applications
import pytest

from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn
from flexo_yarn.resource_manager import ResourceManager


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a real YARN."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.yarn)


@pytest.fixture(scope="session")
def yarn_lab() -> Iterator[YarnLab]:
    """A ResourceManager and two nodes with four GPUs each."""
    applications.require_yarn()
    lab = bring_up_yarn(YarnLabSpec(name=f"yarn-{os.getpid()}", nodes=2))
    yield lab
    lab.down()


@pytest.fixture
def lab(yarn_lab: YarnLab) -> Iterator[YarnLab]:
    """The lab, without applications before and after."""
    applications.end_all(yarn_lab)
    yield yarn_lab
    applications.end_all(yarn_lab)


@pytest.fixture
def client(lab: YarnLab) -> Iterator[ResourceManager]:
    """The lab's ResourceManager, called as root."""
    found = ResourceManager(lab.clients, user="root")
    yield found
    found.close()
