"""Ends a flexod that has got stuck, so that systemd starts it again or another one takes over.

A process that stands still is worse than none: one of several flexods keeps the leader lease, and a single
one looks alive to systemd. Two threads can get stuck, each for its own reasons: the controller's, in a cycle
(an event store whose disk never answers), and the event loop's. A third thread, here, checks both. It alone
decides whether one of them is stuck: if so, it ends the process; if not, it gives systemd's watchdog a sign
of life. So the watchdog ends a flexod in which not even this thread runs, because native code holds Python's
lock, or somebody has stopped the process.

systemd's watchdog alone does not do: flexod also runs without systemd, and systemd cannot say where a thread
stands. faulthandler.dump_traceback_later would count the time in which the process was stopped.
"""

from __future__ import annotations

import asyncio
import faulthandler
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from flexo.metrics.counters import Counters
from flexo.service import notify, vital

LOOK_S: Final = 5.0
PATIENCE_S: Final = 120.0
"""The time beyond the longest query of the cluster after which a thread counts as stuck: no computation of
flexod takes so long."""
_FAREWELL_S: Final = 5.0
"""The time that the report on a stuck thread may take: the log's destination may hang."""
_FAILED: Final = 1
_CALLS: Final = 12
"""The most calls that are reported of each thread."""

_log = structlog.get_logger("flexo.service")

Moves = Callable[[], int | None]
"""Returns a number that changes whenever a thread gets on; None while the thread has nothing to do."""


class Watchdog:
    """Counts for how many checks in a row a thread has not moved.

    It counts checks, not seconds: a flexod that was stopped itself, or suspended, has not got stuck.
    """

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._seen: int | None = None
        self._looks = 0

    def look(self) -> int:
        """Check once more. Returns the number of checks in a row without a move; 0: the thread moves, or
        rests."""
        seen, self._seen = self._seen, self._moves()
        self._looks = self._looks + 1 if self._seen is not None and self._seen == seen else 0
        return self._looks


class _LoopMoves:
    """Asks the event loop to count, and sees whether it has."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._count = 0

    def __call__(self) -> int:
        count = self._count
        with suppress(RuntimeError):  # the loop is closed, and the process about to end
            self._loop.call_soon_threadsafe(self._move)
        return count

    def _move(self) -> None:
        self._count += 1


@contextmanager
def none_allowed(counters: Counters, loop: asyncio.AbstractEventLoop, question_s: float) -> Iterator[None]:
    """While the context lasts, end the process with 1 when it has stood still for too long, and say where.

    `question_s`: the longest that one query of the cluster may take.

    If systemd watches the process, each check gives systemd a sign of life. When systemd ends the process
    with SIGABRT, the error output says where each thread stands.
    """
    look_s, watchdog_s = LOOK_S, notify.watchdog_s()
    if watchdog_s:
        look_s = min(LOOK_S, watchdog_s / 2)  # sd_watchdog_enabled(3) recommends half of it
        faulthandler.enable()  # needs no lock of Python's; if its output hangs, systemd sends SIGKILL
    watched = {
        "the controller": Watchdog(lambda: counters.moves),
        "the event loop": Watchdog(_LoopMoves(loop)),
    }
    most = math.ceil((question_s + PATIENCE_S) / look_s)
    over = threading.Event()

    def keep_looking() -> None:
        while not over.wait(look_s):
            for name, watchdog in watched.items():
                if watchdog.look() >= most:
                    _end(name, most * look_s)
            if watchdog_s:
                notify.alive()

    vital.start("watchdog", keep_looking)
    try:
        yield
    finally:
        over.set()


def _end(name: str, seconds: float) -> None:
    telling = threading.Thread(target=_tell, args=(name, seconds), daemon=True)
    telling.start()
    telling.join(_FAREWELL_S)
    os._exit(_FAILED)


def _tell(name: str, seconds: float) -> None:
    _log.critical(
        f"{name} of flexod has not moved for {seconds:.0f} s: flexod ends, so that it is started again or "
        "another one takes over; grants stand"
    )
    # Not with faulthandler: no thread runs while it writes, and it never ends if nobody reads.
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        _log.critical(f"thread {names.get(ident, ident)} is in {_where(frame)}")


def _where(frame: FrameType) -> str:
    """The calls of a thread on one line, as the log has them: the innermost call, its caller, and so on."""
    calls = reversed(traceback.extract_stack(frame)[-_CALLS:])
    return ", from ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls)
