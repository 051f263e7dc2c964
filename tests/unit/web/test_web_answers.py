"""Answers of flexod to single pages: the one before while it is new, and never one of minutes ago."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flexo_web.answers import Answers


class Asked:
    """flexod, which counts how often it was asked, and answers with that number."""

    def __init__(self) -> None:
        self.times = 0

    async def call(self, question: Callable[[Any], int]) -> int:
        return question(self)

    def answer(self, _: Any, __: str) -> int:
        self.times += 1
        return self.times


@pytest.mark.parametrize(("later_s", "given"), [(0.5, 1), (3.0, 1), (200.0, 2)], ids=["fresh", "new", "old"])
def test_an_answer_of_before_is_given_while_it_is_not_old(later_s: float, given: int) -> None:
    """A job that waited for 19 minutes was shown as pending for 16, and a moment later for 19."""
    asked, now = Asked(), [0.0]

    async def ask_twice() -> int | None:
        answers: Answers[str, int] = Answers(asked, asked.answer, clock=lambda: now[0])  # type: ignore[arg-type]
        await answers.of("job 7")
        await asyncio.sleep(0.2)
        now[0] = later_s
        return (await answers.of("job 7")).reply

    assert asyncio.run(ask_twice()) == given
