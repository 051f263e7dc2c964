"""Ends a flexod that has got stuck, so that systemd starts it again or another one takes over.

A process that stands still is worse than none: as one of several it keeps the lease of who acts, and alone it
looks alive to systemd. Two threads can get stuck, each for its own reasons: the controller's, in a turn (a
journal whose disk never answers), and the event loop's. A third one, here, looks at both. It alone decides
whether one of them is stuck: if so, it ends the process; if not, it gives systemd's watchdog a sign of life.
So the watchdog ends a flexod in which not even this thread runs: native code holds Python's lock, or somebody
has stopped the process.

Own code beside the watchdog: flexod also runs without systemd, and systemd cannot say where a thread stands.
faulthandler.dump_traceback_later would count the time in which the process was stopped.
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

from flexo.metrics.happenings import Happenings
from flexo.service import notify, vital

LOOK_S: Final = 5.0
PATIENCE_S: Final = 120.0
"""Beyond the longest that one question to the cluster may take: flexod thinks about nothing for so long."""
_FAREWELL_S: Final = 5.0
"""How long saying it may take: what hangs may be where the log is written."""
_FAILED: Final = 1
_CALLS: Final = 12
"""Of each thread, that are told."""

_log = structlog.get_logger("flexo.service")

Moves = Callable[[], int | None]
"""Changes whenever somebody gets on; None while there is nothing to get on with."""


class Standstill:
    """For how many looks in a row somebody has not moved.

    Looks are counted, not seconds: a flexod that was stopped itself, or suspended, has not got stuck.
    """

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._seen: int | None = None
        self._looks = 0

    def look(self) -> int:
        """Look once more; 0: it moves, or rests."""
        seen, self._seen = self._seen, self._moves()
        self._looks = self._looks + 1 if self._seen is not None and self._seen == seen else 0
        return self._looks


class _LoopMoves:
    """Asks the event loop to count on, and sees whether it has."""

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
def none_allowed(
    happenings: Happenings, loop: asyncio.AbstractEventLoop, question_s: float
) -> Iterator[None]:
    """While this lasts, the process ends with 1 when it has stood still for too long, and says where.

    `question_s`: the longest that one question to the cluster may take.

    Where systemd watches the process, it hears a sign of life at each look. When it ends the process with
    SIGABRT, the error output says where each thread stands.
    """
    look_s, watchdog_s = LOOK_S, notify.watchdog_s()
    if watchdog_s:
        look_s = min(LOOK_S, watchdog_s / 2)  # sd_watchdog_enabled(3) recommends half of it
        faulthandler.enable()  # needs no lock of Python's; if its output hangs, systemd sends SIGKILL
    watched = {
        "the controller": Standstill(lambda: happenings.moves),
        "the event loop": Standstill(_LoopMoves(loop)),
    }
    most = math.ceil((question_s + PATIENCE_S) / look_s)
    over = threading.Event()

    def keep_looking() -> None:
        while not over.wait(look_s):
            for name, standstill in watched.items():
                if standstill.look() >= most:
                    _end(name, most * look_s)
            if watchdog_s:
                notify.alive()

    vital.start("standstill", keep_looking)
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
    # Not with faulthandler: it keeps all threads from running while it writes, for ever to who reads nothing.
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        _log.critical(f"thread {names.get(ident, ident)} is in {_where(frame)}")


def _where(frame: FrameType) -> str:
    """On one line, as the log has them: what it is in, what has called that, and so on."""
    calls = reversed(traceback.extract_stack(frame)[-_CALLS:])
    return ", from ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls)
