"""How the matrix of public scripts judges a run (tests/torch_matrix/judgement.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch_matrix"))

from judgement import Samples, Step, compare, final_loss, prediction_interval


def step(*rows: str, pid: int = 1, world: int = 1, loss: float = 0.0) -> Step:
    return Step(0.0, world, 0, 2, pid, rows, (loss,))


FIXED = [[step("a", "b", pid=1), step("c", "d", pid=2)]] * 5


def test_the_same_samples_in_other_steps_are_alike() -> None:
    assert compare(FIXED, [step("a"), step("b", "c"), step("d")], killed=0) == Samples(0, 0, 0)


def test_samples_that_are_left_out_and_used_twice_are_counted() -> None:
    assert compare(FIXED, [step("a", "b", "b"), step("d")], killed=0) == Samples(1, 1, 0)


def test_a_killed_worker_may_have_taken_one_step_more_than_it_noted() -> None:
    steps = [step("a", pid=1), step("b", pid=2), step("c", pid=2)]
    assert compare(FIXED, steps, killed=1) == Samples(1, 0, 1)
    assert compare(FIXED, steps, killed=2) == Samples(1, 0, 0)


def test_the_final_loss_is_that_of_the_samples_of_the_last_quarter_of_the_steps() -> None:
    steps = [step("a", loss=9.0)] * 6 + [step("a", loss=1.0), step("b", "c", "d", loss=2.0)]
    assert final_loss(steps) == pytest.approx((1 + 3 * 2) / 4)


def test_the_interval_is_students_of_five_runs() -> None:
    lowest, highest = prediction_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (lowest, highest) == pytest.approx(
        (3 - 4.604 * 2.5**0.5 * 1.2**0.5, 3 + 4.604 * 2.5**0.5 * 1.2**0.5)
    )
