"""What unit tests share: this folder on the path (for helpers like `traces.py`), and a plain log."""

from __future__ import annotations

import pytest
import structlog


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
