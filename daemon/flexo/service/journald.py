"""Sends log entries with fields to systemd's journal, and limits how long flexod waits for it.

logging-journald speaks the journal's protocol. The clients on libsystemd (systemd-python, cysystemd) wait
without end for a journal that takes nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from logging_journald import JournaldTransport

from flexo.events import KINDS

JOURNAL: Final = Path("/run/systemd/journal/socket")
STREAM_VARIABLE: Final = "JOURNAL_STREAM"
"""The variable that systemd sets: device and inode of the stream that it reads."""
WAIT_S: Final = 0.5
"""The longest that a journal that takes nothing may hold flexod up."""
_PRIORITIES: Final = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
_IN_MESSAGE: Final = ("event", "level", "text", "exception", "nodes", "job", "timestamp")

Entry = Mapping[str, object]
"""structlog's result for one call: event, level, and the caller's fields."""


class JournalLogger:
    """structlog's last processor: sends entries to `path`. Usable from any thread."""

    def __init__(self, path: Path = JOURNAL) -> None:
        # not connected: a journal that is started again has another socket at the same path
        self._transport = JournaldTransport(path, connected=False)
        self._transport.socket.settimeout(WAIT_S)
        self._lock = threading.Lock()
        self._lost = 0

    def msg(self, entry: Entry) -> None:
        """Send the entry. While nobody listens at the socket, the entry is a line on the error output. Once
        an entry was not taken in time, further entries are lost without waiting, until one is taken."""
        with self._lock:
            try:
                if self._lost:
                    self._send(_lost(self._lost))
                    self._heard()
                self._send(entry)
            except (TimeoutError, BlockingIOError):
                self._lost += 1
                self._transport.socket.settimeout(0)
            except OSError:
                self._heard()
                with suppress(OSError):
                    sys.stderr.write(message(entry) + "\n")

    debug = info = warning = error = critical = exception = log = msg

    def _heard(self) -> None:
        self._lost = 0
        self._transport.socket.settimeout(WAIT_S)

    def _send(self, entry: Entry) -> None:
        # as bytes: names that users gave may be no valid text
        self._transport.send((name, value.encode(errors="replace")) for name, value in fields(entry))


def _lost(number: int) -> Entry:
    return {
        "event": f"{number} entries before this one are lost: the journal took nothing",
        "level": "warning",
    }


def reads_stderr() -> bool:
    """Whether systemd's journal reads this process' error output."""
    try:
        said, stream = os.environ.get(STREAM_VARIABLE), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or no file
        return False
    return said == f"{stream.st_dev}:{stream.st_ino}"


def message(entry: Entry) -> str:
    """The entry as a text for people, without a time, which the journal has itself."""
    subject = f" job {entry['job']}" if entry.get("job") else ""
    told = f"{entry.get('event', '')}{subject}"
    if entry.get("text"):
        told += f": {entry['text']}"
    rest = ", ".join(f"{key}={value}" for key, value in entry.items() if key not in _IN_MESSAGE)
    if rest:
        told += f" ({rest})"
    return f"{told}\n{entry['exception']}" if entry.get("exception") else told


def fields(entry: Entry) -> Iterator[tuple[str, str]]:
    """The fields of the entry in the journal: docs/howto/monitoring.md lists the names."""
    yield "MESSAGE", message(entry)
    yield "PRIORITY", str(_PRIORITIES.get(str(entry.get("level")), _PRIORITIES["info"]))
    yield "SYSLOG_IDENTIFIER", "flexod"
    if entry.get("event") in KINDS:
        yield "FLEXO_KIND", str(entry["event"])
    if entry.get("job"):
        yield "FLEXO_JOB", str(entry["job"])
        yield "FLEXO_JOB_ID", str(entry["job"]).partition(".")[0]
    nodes = entry.get("nodes")
    for node in nodes if isinstance(nodes, list) else ():
        yield "FLEXO_NODE", str(node)
    for key, value in entry.items():
        if key not in _IN_MESSAGE:
            yield f"FLEXO_{key.upper()}", str(value)
