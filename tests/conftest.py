"""What all tests share: patience on a busy machine, and what becomes of tests that cannot run."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from thorough import THOROUGH

import horovod_elastic  # noqa: F401 - before tests/unit, which has a folder of that name, is on the path
from flexo_bench import native_horovod

settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=100 if THOROUGH else 15,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of Horovod's native library fail without it where all have to run; elsewhere they are skipped."""
    if item.get_closest_marker("native") and (why := native_horovod.why_missing()):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
