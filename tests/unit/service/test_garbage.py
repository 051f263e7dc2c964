"""flexod collects what Python, with flexod's thresholds, leaves lying for most of an hour."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from flexo.service.garbage import EVERY_S, garbage_collected, pause_s


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def python_does_not_collect() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("python_does_not_collect")
def test_garbage_in_cycles_goes_without_pythons_own_collections() -> None:
    async def left() -> list[bool]:
        gone = weakref.ref(Cycle())
        there = [gone() is not None]
        async with garbage_collected(first_s=0.01):
            for _ in range(500):
                if gone() is None:
                    break
                await asyncio.sleep(0.01)
        return [*there, gone() is not None]

    assert asyncio.run(left()) == [True, False]


def test_collections_take_a_thousandth_of_the_time_at_most() -> None:
    assert pause_s(0.03) == EVERY_S
    assert pause_s(0.6) == pytest.approx(600)
