"""The thread of one application: it beats, carries out what others ask of its master, and tells."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Final

from flexo_yarn.application_master import ApplicationGone, ApplicationMaster, HeartbeatResult
from flexo_yarn.ipc.errors import IpcError
from horovod_elastic import threads
from horovod_elastic.trace import say, say_error

IDLE_S: Final = 1.0
"""Interval of heartbeats while nothing is asked for. A notice of preemption is that late."""
WAITING_S: Final = 0.25
"""Interval of heartbeats while something is asked for."""


class Heartbeats:
    """See the module. `hear` and `gone` run in this thread, and so do requests; no other calls `master`."""

    def __init__(
        self,
        master: ApplicationMaster,
        hear: Callable[[HeartbeatResult], None],
        gone: Callable[[str], None],
        name: str,
    ) -> None:
        self._master = master
        self._hear = hear
        self._gone = gone
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threads.start(self._beat, name=f"heartbeats-{name}", failed=self._failed)

    def post(self, request: Callable[[], None]) -> None:
        """Have `request` run in this thread, followed by a heartbeat. Any thread may call it."""
        self._requests.put(request)

    def close(self) -> None:
        """Beat no more; return when the thread has ended."""
        self._requests.put(None)
        self._thread.join()

    def _failed(self, error: Exception) -> None:
        say_error(error)
        self._gone(f"flexo's own error: {error!r}")

    def _beat(self) -> None:
        silent = ""
        while True:
            try:
                result = self._master.heartbeat()
            except ApplicationGone as error:
                self._gone(str(error))
                return
            except IpcError as error:
                if not silent:
                    say(f"YARN's ResourceManager does not answer, and training goes on: {error}")
                silent = str(error)
            else:
                if silent:
                    say("YARN's ResourceManager answers again")
                silent = ""
                self._hear(result)
            if not self._wait_and_carry_out(IDLE_S if silent or not self._master.asks else WAITING_S):
                return

    def _wait_and_carry_out(self, seconds: float) -> bool:
        """Wait for a request, or for some seconds. Carry out all that are there; False after `close`."""
        try:
            request = self._requests.get(timeout=seconds)
            while request is not None:
                request()
                request = self._requests.get_nowait()
        except queue.Empty:
            return True
        return False
