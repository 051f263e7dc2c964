"""What unit tests share: this folder on the path (for helpers like `traces.py`), a plain log, no process.

They import Horovod's Python files without its native library, as training processes do. This must be said
before any test imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import structlog

from horovod_elastic.core.c10d import standin

standin.install()

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
"""Python's audit events of a process that starts."""
_started: list[str] = []
sys.addaudithook(lambda event, _: _started.append(event) if event in STARTS else None)


@pytest.fixture(autouse=True)
def plain_log() -> None:
    """Undoes what the test before did to the log. structlog would draw each traceback as a picture."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"], repr_native_str=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=structlog.PrintLoggerFactory(),
    )


@pytest.fixture(autouse=True)
def no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process costs as much as a hundred unit tests: make test-unit leaves out tests that may start one."""
    before = len(_started)
    yield
    allowed = any(request.node.get_closest_marker(mark) for mark in ("processes", "thorough"))
    if len(_started) > before and not allowed:
        pytest.fail(f"{_started[before]} in a test without the mark `processes` (see pyproject.toml)")
