"""The lines of progress that a log or a pipe gets while simulations run."""

from __future__ import annotations

import pytest
from says import says

from flexo_cli.site.simulation.progress import ProgressLines, progress


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_every_15_seconds_with_the_time_that_is_left() -> None:
    said: list[str] = []
    clock = _Clock()
    lines = ProgressLines(4, said.append, clock)
    lines.told(0, 100, 100)
    assert said == []
    clock.now = 20.0
    lines.told(1, 0, 100)
    lines.told(1, 1, 100)
    assert len(said) == 1
    assert says(said[0], "1 of 4 simulations", "60 s left")
    clock.now = 40.0
    lines.told(1, 100, 100)
    assert says(said[1], "2 of 4", "40 s left")


def test_the_time_that_is_left_is_never_more_than_the_time_limit_leaves() -> None:
    said: list[str] = []
    clock = _Clock()
    lines = ProgressLines(10, said.append, clock, until=100.0)
    clock.now = 40.0
    lines.told(0, 100, 100)
    assert says(said[0], "1 of 10", "60 s left", "not suffice")


def test_before_any_job_has_ended_nothing_is_said_about_the_time_left() -> None:
    said: list[str] = []
    clock = _Clock()
    lines = ProgressLines(1, said.append, clock)
    clock.now = 16.0
    lines.told(0, 0, 100)
    assert said == ["0 of 1 simulation done"]


def test_a_quiet_command_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(["lyra"], quiet=True) as told:
        told(0, 1, 2)
    assert capsys.readouterr().err == ""
