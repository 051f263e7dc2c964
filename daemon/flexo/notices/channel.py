"""Delivers events to one receiver, in a thread of its own: whoever hands events over never waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from flexo.events import Event
from flexo.notices.notice import Notice, Undelivered

MOST_WAITING: Final = 1000
"""The most events that wait for a receiver. Further ones are counted and left out."""
MOST_IN_ONE: Final = 100
"""The most events of one notice."""
TRIES: Final = 3
RETRY_S: Final = 30.0
_END_WITHIN_S: Final = 2.0

_log = structlog.get_logger("flexo.notices")


class Channel:
    """The way to one receiver. Events that come within `every_s` of a notice go together in the next one."""

    def __init__(
        self, name: str, deliver: Callable[[Notice], None], every_s: float, retry_s: float = RETRY_S
    ) -> None:
        """`deliver` sends a notice, or raises Undelivered. It is tried again after `retry_s` seconds."""
        self._name = name
        self._deliver = deliver
        self._every_s = every_s
        self._retry_s = retry_s
        self._waiting: deque[Event] = deque()
        self._left_out = 0
        self._lock = threading.Lock()
        self._came = threading.Event()
        self._ending = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name=f"notices-{name}", daemon=True)
        self._thread.start()

    def take(self, events: Iterable[Event]) -> None:
        """Take events over, for a later notice. Does not wait for the receiver, and does not raise."""
        with self._lock:
            for event in events:
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.append(event)
                else:
                    self._left_out += 1
        self._came.set()

    def close(self) -> None:
        """End the thread. Events that wait are not delivered any more."""
        self._ending.set()
        self._came.set()
        self._thread.join(_END_WITHIN_S)

    def _run(self) -> None:
        while True:
            self._came.wait()
            if self._ending.is_set():
                return
            notice = self._next()
            if notice is None:
                continue
            began = time.monotonic()
            self._deliver_patiently(notice)
            if self._ending.wait(max(0.0, self._every_s - (time.monotonic() - began))):
                return

    def _next(self) -> Notice | None:
        with self._lock:
            events = [self._waiting.popleft() for _ in range(min(MOST_IN_ONE, len(self._waiting)))]
            if not self._waiting:
                self._came.clear()
            if not events:
                return None
            left_out, self._left_out = self._left_out, 0
        return Notice(tuple(events), left_out)

    def _deliver_patiently(self, notice: Notice) -> None:
        for tried in range(1, TRIES + 1):
            try:
                self._deliver(notice)
            except Undelivered as error:
                self._report(str(error))
            except Exception as error:  # a fault of ours ends neither the thread nor the notices after it
                _log.exception("a notice was not delivered")
                self._report(f"{type(error).__name__}: {error}")
            else:
                self._report("")
                return
            if tried == TRIES or self._ending.wait(self._retry_s):
                break
        with self._lock:
            self._left_out += len(notice.events) + notice.left_out

    def _report(self, trouble: str) -> None:
        """Log the trouble when it begins, changes or ends."""
        if trouble and trouble != self._trouble:
            _log.warning("notices are not delivered", channel=self._name, why=trouble)
        elif not trouble and self._trouble:
            _log.info("notices are delivered again", channel=self._name)
        self._trouble = trouble
