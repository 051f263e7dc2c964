"""SIGINT, SIGTERM and SIGHUP: the first one ends the demo, and none interrupts the clean-up that follows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the demo to end. It is a BaseException, so that no handler takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the context, the first signal raises Interrupted. All later signals are ignored."""

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
    """Ignore signals after the context ends, in whatever way it ends.

    Leave the context inside the `try` whose `finally` cleans up: a signal on the way out still raises, once.
    """
    try:
        yield
    finally:
        ignore_signals()


def ignore_signals() -> None:
    """Ignore the signals. Commands that clean up inherit this, so Ctrl-C in a terminal does not end them."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
