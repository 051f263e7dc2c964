"""A real Prometheus for the tests in this folder: own processes, with data and ports gone afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_process import Exporter, Prometheus, exporting, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs Prometheus."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.prometheus)


@pytest.fixture(scope="session", autouse=True)
def _prometheus_is_installed() -> None:
    if shutil.which("prometheus") is None:
        reason = "Prometheus is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with exporting() as started:
        yield started


@pytest.fixture
def prometheus(exporter: Exporter, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `exporter` every second."""
    with running(tmp_path, exporter) as started:
        yield started
