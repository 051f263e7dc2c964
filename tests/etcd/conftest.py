"""A real etcd for the tests in this folder: own processes, with data and ports that are gone afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexo_bench.etcd_process import Etcd, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs etcd."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.etcd)


@pytest.fixture(scope="session", autouse=True)
def _etcd_is_installed() -> None:
    if shutil.which("etcd") is None:
        reason = "etcd is not installed (Debian: apt-get install etcd-server)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """The etcd that most tests share; each uses a run of its own."""
    with running(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd for one test, which may do to it what it likes."""
    with running(tmp_path) as started:
        yield started
