"""A log that cannot be written costs its lines and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, TextIO

import pytest
import structlog

from flexo.config import LogSettings
from flexo.service import logs


@pytest.fixture
def full_disk() -> Iterator[TextIO]:
    """A file that takes nothing, not even when it is closed."""
    with suppress(OSError), Path("/dev/full").open("w", buffering=1) as file:
        yield file


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_that_the_disk_has_no_room_for_is_dropped(
    form: Literal["text", "json"], full_disk: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="No space left"):
        print("a line", file=full_disk, flush=True)
    monkeypatch.setattr("sys.stderr", full_disk)
    logs.set_up(LogSettings(format=form))
    log = structlog.get_logger("flexo.test")
    for level in (log.debug, log.info, log.warning, log.error, log.critical):
        level("something", job="7")
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        log.exception("a mistake")
