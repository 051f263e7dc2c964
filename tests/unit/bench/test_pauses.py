"""The arithmetic of pauses, with mini-batches made up here."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexo_bench.runtime.pauses import Change, NoChange, pause, warming_slows
from flexo_bench.runtime.results import Figures, Goal, Interval, Resize, Steady, Transient
from flexo_bench.runtime.worklog import Batch, Moment, WorkLog, samples_per_second

pytestmark = pytest.mark.thorough

BATCH_S = 0.1


def train(
    worker: int, rank: int, size: int, steps: range, began: float, seconds: float = BATCH_S
) -> list[Batch]:
    """Mini-batches of one worker, the first of which ends at `began`."""
    return [Batch(worker, step, began + n * seconds, rank, size, 64) for n, step in enumerate(steps)]


def world(workers: str, steps: range, began: float, seconds: float = BATCH_S) -> list[Batch]:
    """The same steps by several workers, a letter each, in order of rank."""
    return [
        batch
        for rank, worker in enumerate(workers)
        for batch in train(ord(worker), rank, len(workers), steps, began, seconds)
    ]


def test_a_pause_is_the_gap_less_one_mini_batch_at_the_new_size() -> None:
    batches = world("ab", range(1, 21), 0.1) + world("abc", range(21, 41), 2.0 + 6.2, 0.2)
    cost = pause(batches, Change(2, 3, asked_at=1.05))
    assert cost.pause_s == pytest.approx(6.2 - 0.2)
    assert cost.out
    assert cost.redone == 0
    assert cost.waited_s == pytest.approx(2.0 - 1.05)
    assert cost.first_useful_s == pytest.approx(8.2 - 1.05)
    assert cost.batch_before_s == pytest.approx(0.1)
    assert cost.batch_after_s == pytest.approx(0.2)


def test_a_pause_is_that_of_the_worker_that_stood_still_longest() -> None:
    batches = world("ab", range(1, 21), 0.1)
    batches += train(ord("a"), 0, 1, range(21, 41), 2.5) + train(ord("b"), 0, 1, range(21, 41), 3.0)
    assert pause(batches, Change(2, 1, 1.0)).pause_s == pytest.approx(0.9)


def test_the_warm_up_of_a_newcomer_slows_those_who_train_from_its_start_until_its_model_is_built() -> None:
    log = WorkLog(Path())
    log.batches = world("ab", range(1, 21), 0.1) + world("ab", range(21, 31), 2.12, 0.12)
    assert warming_slows(log, Change(2, 3, asked_at=1.5)) is None
    log.moments = [Moment(ord("a"), "built", 0.0), Moment(ord("c"), "started", 2.01)]
    log.moments += [Moment(ord("c"), "built", 3.0)]
    assert warming_slows(log, Change(2, 3, asked_at=1.5)) == pytest.approx(0.2)


def test_mini_batches_that_are_done_again_count_as_pause() -> None:
    batches = world("ab", range(1, 21), 0.1) + world("abc", range(18, 41), 5.0)
    cost = pause(batches, Change(2, 3, 1.0))
    assert cost.redone == 3
    assert cost.pause_s == pytest.approx(5.0 + 3 * BATCH_S - 2.0 - BATCH_S)


def test_where_a_resize_starts_new_processes_workers_are_known_by_rank() -> None:
    batches = world("ab", range(1, 21), 0.1) + world("xyz", range(21, 41), 9.0)
    assert pause(batches, Change(2, 3, 1.0), by_rank=True).pause_s == pytest.approx(7.0 - BATCH_S)
    with pytest.raises(NoChange, match=r"2.*3"):
        pause(batches, Change(2, 3, 1.0))


def test_slow_mini_batches_beside_the_change_show_in_what_is_around_it() -> None:
    """A rival that drags its feet for a mini-batch before and after does not get away with a short gap."""
    before = world("ab", range(1, 20), 0.1) + world("ab", range(20, 21), 2.4)
    after = world("abc", range(21, 22), 2.5) + world("abc", range(22, 41), 3.0)
    cost = pause(before + after, Change(2, 3, 1.0))
    assert cost.pause_s == pytest.approx(0.0)
    assert cost.around_s == pytest.approx(0.4 + 0.4)


def test_an_earlier_change_of_the_same_kind_is_not_mistaken_for_this_one() -> None:
    batches = world("ab", range(1, 21), 0.1) + world("abc", range(21, 41), 9.0)
    batches += world("ab", range(41, 61), 12.0) + world("abd", range(61, 81), 14.5)
    assert pause(batches, Change(2, 3, 13.0)).pause_s == pytest.approx(14.5 - 13.9 - BATCH_S)


def test_throughput_adds_up_all_workers_and_only_counts_the_time_that_they_span() -> None:
    assert samples_per_second(world("ab", range(1, 12), 50.0)) == pytest.approx(2 * 64 / BATCH_S)
    with pytest.raises(ValueError, match="two mini-batches"):
        samples_per_second(world("ab", range(1, 2), 50.0))


def test_logs_are_read_while_they_grow_and_torn_lines_wait(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "1.jsonl"
    line = '{"event": "batch", "time": 1.0, "pid": 1, "step": 1, "rank": 0, "size": 1, "samples": 8}\n'
    path.write_text(line + line[:20])
    log = WorkLog(tmp_path).read()
    assert len(log.batches) == 1
    path.write_text(line + line)
    assert len(log.read().batches) == 2
    assert log.settled(1, 2, after=0.0)
    assert not log.settled(1, 3, after=0.0)
    assert not log.settled(1, 1, after=2.0)


def test_the_ideal_trains_with_all_gpus_while_they_are_there() -> None:
    intervals = (Interval(0, 30, 4), Interval(30, 90, 5), Interval(90, 120, 4))
    run = Transient("flexo", 1, 60, 0.25, intervals, 9000, {4: 80.0, 5: 100.0})
    assert run.ideal_samples == 60 * 80 + 60 * 100
    assert run.ratio == pytest.approx(9000 / 10800)
    assert run.without_borrowing == 120 * 80
    assert run.over_baseline == pytest.approx(9000 / 9600)
    assert run.ideal_over_baseline == pytest.approx(10800 / 9600)
    assert run.gained == pytest.approx(-600 / 1200)


@pytest.mark.parametrize("away", [4, 60, 600])
def test_throughput_does_not_depend_on_how_long_the_cycle_was_watched(away: float) -> None:
    """A resize has cost 100 samples: so much less than the ideal was trained."""
    intervals = (
        Interval(0, away / 2, 4),
        Interval(away / 2, away / 2 + 60, 8),
        Interval(away / 2 + 60, away + 60, 4),
    )
    run = Transient("flexo", 4, 60, 0.25, intervals, int(away * 80 + 60 * 160 - 100), {4: 80.0, 8: 160.0})
    assert run.gained == pytest.approx(4700 / 4800)
    assert run.over_baseline == pytest.approx((9600 + 4700) / 9600)
    assert run.ratio == pytest.approx(14300 / 14400)


def figures(ours_out: float, ours_rate: float) -> Figures:
    def resize(rival: str, seconds: float) -> Resize:
        batches = world("ab", range(1, 21), 0.1)
        batches += world("abc", range(21, 41), 2.0 + BATCH_S + seconds)
        return Resize(rival, "toy", pause(batches, Change(2, 3, 1.0)))

    resizes = [resize("stock", 6.0), resize("restart", 8.0), resize("flexo", ours_out)]
    return Figures({}, "", resizes, [Steady("stock", 0, 2, 1000.0), Steady("flexo", 0, 2, ours_rate)])


def verdicts(goals: list[Goal]) -> dict[str, str]:
    return {goal.name: goal.verdict for goal in goals}


def test_goals_say_what_was_reached_missed_and_not_measured() -> None:
    told = verdicts(figures(0.35, 995.0).goals())
    assert told["out_pause_ratio_vs_stock"] == "missed"
    assert told["out_pause_ratio_vs_restart"] == "reached"
    assert told["in_pause_ratio_vs_stock"] == "not measured"
    assert told["steady_throughput_ratio_vs_stock"] == "reached"
    assert verdicts(figures(0.2, 980.0).goals())["steady_throughput_ratio_vs_stock"] == "missed"
