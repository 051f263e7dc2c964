"""hvd.start_timeline: a trace, for Chrome's tracing page, of rank 0's requests and their operations.

The trace looks like Horovod's: one row per tensor, with the time of its negotiation and then its operation.
The trace goes on when the set of workers changes. A process that becomes rank 0 later writes its own file
beside the first one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from horovod_elastic.core.c10d.requests import Request, Response, key_of
from horovod_elastic.trace import say

if TYPE_CHECKING:
    from horovod_elastic.core.c10d.work import Work

ON_DEMAND = "DYNAMIC"
"""The value of HOROVOD_TIMELINE if a script will call start_timeline."""
_PROCESS = 0
"""The row of events that belong to no tensor."""


class Timeline:
    """The timeline of a process (see the module). Any thread may call its methods.

    They are cheap while no timeline is written.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment: Mapping[str, str] | None = environment
        """The environment; None once `place` has read it. A script may set variables before hvd.init."""
        self._path = ""
        self._marks_cycles = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._trace: _Trace | None = None
        """The open file, which is kept while another process is rank 0."""
        self._generation = 0
        """The generation in which this process is rank 0; 0 if it is not rank 0 now."""
        self._on = False
        """Whether there is a trace and this process is rank 0."""
        self._may_replace = True
        """Whether a file at the path may be replaced, because it is not of this run of the job."""

    def place(self, generation: int, rank: int) -> None:
        """Note this process's rank. A newcomer that is alone (generation < 0) writes nothing."""
        with self._lock:
            self._read_environment()
            self._generation = generation if rank == 0 and generation > 0 else 0
            self._turn()
            self._may_replace = False

    def _read_environment(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None and not self._path:
            path = environment.get("HOROVOD_TIMELINE", "")
            self._path = "" if path == ON_DEMAND else path
            self._marks_cycles = environment.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0")

    def start(self, path: str, mark_cycles: bool = False) -> None:
        """Write to `path` from now on. A process that is not rank 0 writes once it becomes rank 0."""
        with self._lock:
            self._marks_cycles = mark_cycles
            if path != self._path:
                self._close()
                self._path = path
            self._may_replace = self._generation > 0
            self._turn()
            self._may_replace = False

    def stop(self) -> None:
        """Stop the timeline. The file is complete when this method returns."""
        with self._lock:
            self._close()
            self._path = ""

    def close(self) -> None:
        """Stop the timeline at the end of the process. In a forked process, do nothing."""
        if os.getpid() == self._pid:
            self.stop()

    def submitted(self, work: Work) -> None:
        """Record that this rank has requested the work."""
        if self._on:
            with self._lock:
                if self._on and self._trace is not None:
                    self._trace.negotiate(work.request)

    def carried_out(self, response: Response, began_s: float, ended_s: float) -> None:
        """Record that the response was carried out between those moments (time.perf_counter)."""
        if self._on:
            with self._lock:
                if self._on and self._trace is not None:
                    if self._marks_cycles:
                        self._trace.mark("CYCLE_START", began_s)
                    self._trace.carried_out(response, began_s, ended_s)

    def _turn(self) -> None:
        if self._trace is None and self._generation and self._path:
            self._open()
        self._on = self._trace is not None and self._generation > 0

    def _open(self) -> None:
        path = self._path
        if not self._may_replace and Path(path).exists():
            path = f"{path}.{self._generation}"
        try:
            self._trace = _Trace(path)
        except OSError as error:  # training goes on without a timeline
            say(f"there will be no timeline: {error}")
            self._path = ""

    def _close(self) -> None:
        self._on = False
        if self._trace is not None:
            self._trace.close()
            self._trace = None


class _Trace:
    """One file with a JSON array of trace events. Its times are microseconds since the file was begun."""

    def __init__(self, path: str) -> None:
        self._file: TextIO = Path(path).open("w", buffering=1)  # noqa: SIM115 - closed by close()
        self._began_s = time.perf_counter()
        self._rows: dict[str, int] = {}
        self._negotiates: set[tuple[int, str]] = set()
        self._file.write("[\n")
        epoch = time.time_ns() // 1000
        self._write("", "process_name", "M", _PROCESS, args={"start_time_since_epoch_in_micros": epoch})
        self._sort(_PROCESS)

    def negotiate(self, request: Request) -> None:
        """Begin a tensor's negotiation."""
        self._negotiates.add(key_of(request))
        self._span(request, "B", f"NEGOTIATE_{request.operation.name}", time.perf_counter())

    def carried_out(self, response: Response, began_s: float, ended_s: float) -> None:
        """End the negotiation of the response's requests, and record their operation."""
        for request in response.requests:
            asked = key_of(request)
            # No negotiation is open if the request is older than the file, or only other ranks made it since
            # this rank joined.
            if asked in self._negotiates:
                self._negotiates.remove(asked)
                self._span(request, "E", f"NEGOTIATE_{request.operation.name}", began_s)
            self._span(request, "B", request.operation.name, began_s)
            self._span(request, "E", request.operation.name, ended_s)

    def mark(self, name: str, at_s: float) -> None:
        """Record a moment across all rows."""
        self._write(",", name, "i", _PROCESS, s="g", ts=self._micros(at_s))

    def close(self) -> None:
        """Complete the JSON array and close the file."""
        with contextlib.suppress(OSError):
            self._file.write("\n]\n")
            self._file.close()

    def _span(self, request: Request, phase: str, name: str, at_s: float) -> None:
        self._write(",", name, phase, self._row(request.name), ts=self._micros(at_s))

    def _row(self, tensor: str) -> int:
        row = self._rows.get(tensor)
        if row is None:
            row = self._rows[tensor] = len(self._rows) + 1
            self._write(",", "process_name", "M", row, args={"name": tensor})
            self._sort(row)
        return row

    def _sort(self, row: int) -> None:
        self._write(",", "process_sort_index", "M", row, args={"sort_index": row})

    def _micros(self, at_s: float) -> int:
        return round(1e6 * max(0.0, at_s - self._began_s))

    def _write(self, separator: str, name: str, phase: str, row: int, **fields: object) -> None:
        event = {"name": name, "ph": phase, "pid": row, **fields}
        with contextlib.suppress(OSError):
            self._file.write(f"{separator}{json.dumps(event)}\n")
