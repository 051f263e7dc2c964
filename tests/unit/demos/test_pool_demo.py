"""What the demo of a pool counts: lost mini-batches and repeated samples, pauses, and core seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from says import says

from flexo_demos.service.cores import CoreSeconds, Use, core_seconds, parse
from flexo_demos.service.report import Found, claims, found_of, table, write
from flexo_demos.service.steps import (
    BATCH,
    TRAIN_SAMPLES,
    Counted,
    Line,
    count,
    joined,
    longest_pause_s,
    read_lines,
)
from flexo_demos.service.story import JOBS, Plot, Seen

pytestmark = pytest.mark.thorough

STEPS = -(-TRAIN_SAMPLES // (2 * BATCH))
"""Steps of an epoch of two workers."""


def training(epochs: int) -> list[Line]:
    """Two workers, 11 and 12, that take a step a second. The sampler gives both equally many samples."""
    lines = []
    dealt = [*range(TRAIN_SAMPLES), 0]
    for epoch in range(epochs):
        for number in range(STEPS):
            step = epoch * STEPS + number + 1
            for rank in (0, 1):
                mine = dealt[rank::2][number * BATCH : (number + 1) * BATCH]
                lines.append(Line(11 + rank, rank, 2, epoch, step, step + 0.8, step + 0.9, tuple(mine)))
    return lines


def without(lines: Iterable[Line], *these: Line) -> list[Line]:
    return [line for line in lines if line not in these]


def test_a_training_without_deaths_has_lost_and_repeated_nothing() -> None:
    assert count(training(3)) == Counted(3 * STEPS, 0, 0, 0, 2)
    assert count([]) == Counted(0, 0, 0, 0, 0)


def test_a_training_that_goes_back_has_lost_the_mini_batch_that_it_begins_again() -> None:
    lines = training(2)
    again = [replace(line, began=line.began + 100, ended=line.ended + 100) for line in lines[-4:]]
    found = count([*lines, *again])
    assert found.batches_lost == 1
    assert found.samples_repeated == sum(len(line.samples) for line in again)


def test_a_step_that_rank_0_left_out_is_a_lost_mini_batch() -> None:
    assert count(line for line in training(2) if line.step != 7).batches_lost == 1
    assert count(line for line in training(2) if line.step != 1).batches_lost == 1


def test_practice_of_a_worker_that_comes_later_counts_for_nothing() -> None:
    lines = training(2)
    practice = [replace(line, pid=13, began=40.0, ended=40.1) for line in lines if line.rank == 1][:3]
    assert joined([*practice, *lines]) == tuple(lines)
    assert count([*practice, *lines]) == count(lines)


def test_samples_that_nobody_has_logged_are_missing_only_in_epochs_that_are_over() -> None:
    lines = training(2)
    early, late = lines[3], lines[-1]
    assert count(without(lines, early)).samples_missing == len(early.samples)
    assert count(without(lines, late)).samples_missing == 0


def test_a_sample_that_two_workers_use_in_one_epoch_is_repeated() -> None:
    lines = training(2)
    lines[5] = replace(lines[5], samples=(*lines[5].samples, lines[0].samples[0]))
    assert count(lines).samples_repeated == 1


def test_a_pause_is_the_longest_time_of_a_step_beyond_the_usual() -> None:
    at = 20.95
    lines = [
        line if line.ended < at else replace(line, began=line.began + 0.5, ended=line.ended + 0.5)
        for line in training(2)
    ]
    assert longest_pause_s(lines, at, 5.0) == pytest.approx(0.5)
    assert longest_pause_s(lines, at + 2, 5.0) == pytest.approx(0.0)
    assert longest_pause_s(lines, 0.0, 5.0) is None


def test_logs_are_read_up_to_a_line_that_is_being_written(tmp_path: Path) -> None:
    told = {
        "epoch": 0,
        "rank": 1,
        "size": 2,
        "step": 3,
        "began": 1.0,
        "ended": 1.5,
        "loss": 2.0,
        "samples": [4],
    }
    (tmp_path / "node-17.jsonl").write_text(json.dumps(told) + "\n" + json.dumps(told)[:-5])
    assert read_lines(tmp_path) == (Line(17, 1, 2, 0, 3, 1.0, 1.5, (4,)),)
    assert read_lines(tmp_path / "none") == ()


def test_core_seconds_are_those_that_slurm_has_accounted() -> None:
    uses = parse("1|100|2|CANCELLED by 0\n2|90|2|FAILED\n3|60|1|COMPLETED\n4|80|1|RUNNING\n")
    assert uses[1] == Use(100, 2, "CANCELLED")
    found = core_seconds(uses, (3, 4), (1, 2), 2)
    assert found == CoreSeconds(140, 380)
    assert found.saved == pytest.approx(1 - 140 / 380)
    assert core_seconds(uses, (3, 5), (1, 2), 2) is None


def good() -> Found:
    every = {1: Use(60, 2, "CANCELLED"), 2: Use(60, 2, "CANCELLED")}
    every |= {number: Use(30, 1, "COMPLETED") for number in (3, 4, 5)}
    seen = Seen(
        slurm_version="22.05.8",
        jobs=dict(zip(JOBS, (1, 2), strict=True)),
        aggregators=[3, 4, 5],
        pool_at=1.0,
        shared_at=31.0,
        losses={"first": 0.02},
        drained=1,
        aggregator_killed_at=20.95,
        shared_again_at=33.0,
        worker_killed_at=25.0,
        worker_back_at=30.0,
        uses=every,
    )
    return found_of(seen, Plot(), {name: training(2) for name in JOBS}, "", 100.0)


def held(found: Found) -> Sequence[bool]:
    return [claim.holds for claim in claims(found)]


def test_a_story_that_went_as_it_should_holds_and_has_its_figures() -> None:
    found = good()
    assert all(held(found))
    assert found.core_seconds == CoreSeconds(90, 120)
    text = "\n".join(claim.text for claim in claims(found))
    assert says(text, f"Of {4 * STEPS} mini-batches", "0 were lost", "90 instead of 120")
    assert says(str(table(found)), "first 2.0%", "25%", "30.0 s")


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"drained": 0}, 0),
        ({"shared_after_s": None}, 0),
        ({"fell_back": 1}, 1),
        ({"worker_back_s": None}, 1),
        ({"counted": {"first": Counted(10, 1, 0, 0, 1)}}, 2),
        ({"counted": {"first": Counted(10, 0, 1, 0, 1)}}, 3),
        ({"counted": {"first": Counted(10, 0, 0, BATCH + 1, 1)}}, 4),
        ({"core_seconds": CoreSeconds(100, 100)}, 5),
        ({"core_seconds": None}, 5),
    ],
)
def test_each_sentence_fails_by_its_own_figure(changes: dict[str, object], number: int) -> None:
    found = held(replace(good(), **changes))  # type: ignore[arg-type]
    assert [index for index, holds in enumerate(found) if not holds] == [number]


def test_a_story_that_ended_early_says_why_and_is_written_down(tmp_path: Path) -> None:
    found = found_of(Seen(), Plot(), dict.fromkeys(JOBS, ()), "It did not come to this.", 9.0)
    assert claims(found)[0].text.endswith("It did not come to this.")
    assert not any(held(found)[:3])
    assert "not known" in str(table(found))
    write(found, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["core_seconds"] is None
