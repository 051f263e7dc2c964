"""Ctrl-C and its kin: the first one ends the demo, and nothing disturbs the cleaning up that follows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the demo to end. Not an Exception: nothing on the way may take it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, the first signal raises Interrupted; all later ones are ignored."""

    def raise_once(number: int, _frame: FrameType | None) -> None:
        ignore_signals()
        raise Interrupted(number)

    before = [signal.signal(number, raise_once) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def undisturbed_afterwards() -> Iterator[None]:
    """Whatever way the inside ends, all that follows is not interrupted.

    To be left inside the `try` whose `finally` cleans up: a signal on the way out still raises, once.
    """
    try:
        yield
    finally:
        ignore_signals()


def ignore_signals() -> None:
    """Ignored, not caught: commands that clean up inherit it, and Ctrl-C in a terminal reaches them too."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
