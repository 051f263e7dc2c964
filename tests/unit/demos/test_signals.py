"""The first signal ends the demo, the second one does not disturb it."""

from __future__ import annotations

import os
import signal

import pytest

from flexo_demos.elastic.signals import Interrupted, interruptible, undisturbed_afterwards

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_raises_and_later_ones_are_ignored(number: signal.Signals) -> None:
    cleaned: list[bool] = []
    with pytest.raises(Interrupted, match=number.name):
        _signalled_while_working_and_while_cleaning_up(number, cleaned)
    assert cleaned == [True]


def _signalled_while_working_and_while_cleaning_up(number: signal.Signals, cleaned: list[bool]) -> None:
    with interruptible():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGINT)
            cleaned.append(True)


def test_what_follows_the_guarded_part_is_not_interrupted() -> None:
    with interruptible():
        with undisturbed_afterwards():
            pass
        os.kill(os.getpid(), signal.SIGINT)


def test_afterwards_signals_mean_what_they_meant_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted), interruptible():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
