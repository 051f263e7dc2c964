"""The arithmetic of bench-data, and its loops for a moment: each gives all mini-batches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flexo_bench.read_ahead import (  # noqa: E402
    BATCH,
    FLEXO,
    PLAIN,
    SAMPLE_FLOATS,
    TORCH,
    Settings,
    Turn,
    lines,
    loop_of,
    measure,
    ratios,
)

pytestmark = pytest.mark.thorough


def test_a_ratio_compares_turns_of_one_round() -> None:
    turns = [Turn(0.02, PLAIN, 0, 0.04), Turn(0.02, FLEXO, 0, 0.02)]
    turns += [Turn(0.02, PLAIN, 1, 0.08), Turn(0.02, FLEXO, 1, 0.06), Turn(0.04, PLAIN, 1, 1.0)]
    assert ratios(turns, 0.02, FLEXO).values == (0.5, 0.75)
    of_flexo = next(line for line in lines(turns, 0.02) if FLEXO in line)
    assert of_flexo.split()[-4:] == ["40.0", "0.625", "-", "0.500"]


@pytest.mark.processes
@pytest.mark.parametrize("way", [PLAIN, TORCH, FLEXO])
def test_each_loop_gives_whole_mini_batches(way: str) -> None:
    batch = next(iter(loop_of(way, 0.0, "cpu")))
    assert batch.shape == (BATCH, SAMPLE_FLOATS)


@pytest.mark.processes
def test_loops_take_turns_and_the_last_is_first_in_the_next_round() -> None:
    turns = list(measure(Settings((0.0,), 0.0, rounds=2)))
    assert [turn.way for turn in turns] == [PLAIN, TORCH, FLEXO, FLEXO, TORCH, PLAIN]
    assert all(turn.step_s > 0 for turn in turns)
