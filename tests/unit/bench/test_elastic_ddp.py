"""The arithmetic of make bench-torch, with steps and figures made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexo_bench.elastic_ddp import report
from flexo_bench.elastic_ddp.results import (
    FLEXO_DDP,
    JOIN,
    LEAVE,
    TORCHFT,
    TORCHFT_TUNED,
    TORCHRUN,
    Changed,
    Figures,
    Pair,
    Sample,
)
from flexo_bench.runtime.pauses import Change, NoChange, Pause, pause
from flexo_bench.runtime.worklog import Batch

pytestmark = pytest.mark.thorough

COST = Pause(2, 3, 0.02, 0.05, 0, 1.0, 1.2, 0.04, 0.04)


def world(workers: str, steps: range, began: float, seconds: float = 0.1) -> list[Batch]:
    """The same steps by several workers, a letter each, in order of rank; the first ends at `began`."""
    return [
        Batch(ord(worker), step, began + n * seconds, rank, len(workers), 64)
        for rank, worker in enumerate(workers)
        for n, step in enumerate(steps)
    ]


def changed(rival: str, kind: str, **costs: float) -> Changed:
    return Changed(rival, kind, replace(COST, **costs))


def verdicts(figures: Figures) -> dict[str, str]:
    return {goal.name.removeprefix("flexo_ddp."): goal.verdict for goal in figures.goals()}


def pairs(cpu_ratios: list[float], step_ratio: float = 1.0) -> list[Pair]:
    return [Pair(FLEXO_DDP, 0.05 * step_ratio, 0.05, 0.04 * cpu, 0.04, 0.04, 0.04) for cpu in cpu_ratios]


def test_what_a_change_costs_in_all_counts_slow_steps_before_it() -> None:
    """The last four steps at the old size take 50 ms too long each, and the gap is 30 ms too long."""
    batches = world("ab", range(1, 21), 0.1) + world("ab", range(21, 25), 2.15, 0.15)
    batches += world("abc", range(25, 45), 2.6 + 0.13)
    change = Change(2, 3, asked_at=2.01)
    cost = pause(batches, change, around=5)
    assert cost.pause_s == pytest.approx(0.03)
    assert cost.around_s == pytest.approx(4 * 0.05 + 0.03)
    assert pause(batches, change, around=2).around_s == pytest.approx(2 * 0.05 + 0.03)


def test_a_restart_with_as_many_workers_is_told_by_its_processes() -> None:
    batches = world("abc", range(1, 21), 0.1) + world("def", range(19, 40), 7.0)
    cost = pause(batches, Change(3, 3, asked_at=2.05), by_rank=True, around=5)
    assert cost.pause_s == pytest.approx(7.2 - 2.0 - 0.1)
    assert cost.redone == 2


def test_a_restart_that_is_not_over_is_no_change_yet() -> None:
    with pytest.raises(NoChange):
        pause(world("abc", range(1, 21), 0.1), Change(3, 3, asked_at=1.55), by_rank=True)


@pytest.mark.parametrize(
    ("count", "interval"), [(5, None), (6, (1.0, 6.0)), (12, (3.0, 10.0)), (20, (6.0, 15.0))]
)
def test_an_interval_of_the_median_has_values_as_ends(
    count: int, interval: tuple[float, float] | None
) -> None:
    assert Sample(tuple(float(value) for value in range(count, 0, -1))).interval == interval


def test_a_join_is_compared_with_the_better_one_of_torchfts_settings() -> None:
    theirs = [changed(TORCHFT, JOIN, around_s=0.2), changed(TORCHFT_TUNED, JOIN, around_s=0.1)]
    for around_s, verdict in ((0.1, "reached"), (0.15, "missed")):
        figures = Figures({}, "", [changed(FLEXO_DDP, JOIN, around_s=around_s), *theirs])
        assert verdicts(figures)["join.around_s_above_best_torchft"] == verdict


def test_a_leave_is_compared_with_a_mini_batch_and_with_torchft() -> None:
    tuned = changed(TORCHFT_TUNED, LEAVE, pause_s=1.0)
    for pause_s, of_batch, of_torchft in (
        (0.03, "reached", "reached"),
        (0.045, "missed", "reached"),
        (0.06, "missed", "missed"),
    ):
        told = verdicts(Figures({}, "", [changed(FLEXO_DDP, LEAVE, pause_s=pause_s), tuned]))
        assert told["leave.pause_vs_mini_batch"] == of_batch
        assert told["leave.pause_vs_torchft_tuned"] == of_torchft


def test_of_cpu_time_the_lower_end_counts_if_the_interval_is_narrow() -> None:
    def told(ratios: list[float]) -> tuple[str, str]:
        found = verdicts(Figures({}, "", pairs=pairs(ratios)))
        return found["cpu_ratio_vs_ddp_lower_end"], found["cpu_ratio_vs_ddp_width"]

    assert told([1.004, 1.005, 1.006, 1.007, 1.008, 1.009]) == ("reached", "reached")
    assert told([1.006, 1.007, 1.008, 1.009, 1.01, 1.011]) == ("missed", "reached")
    assert told([0.95, 1.0, 1.0, 1.1, 1.1, 1.1]) == ("reached", "missed")
    assert told([1.0] * 5) == ("not measured", "not measured")


def test_a_step_may_take_one_percent_longer() -> None:
    for ratio, verdict in ((1.009, "reached"), (1.011, "missed")):
        assert verdicts(Figures({}, "", pairs=pairs([1.0], ratio)))["step_ratio_vs_ddp"] == verdict


def test_the_json_has_all_figures_of_all_rivals_and_says_what_is_not_measured() -> None:
    figures = Figures(
        {"cores": 2}, "make bench-torch", [changed(FLEXO_DDP, JOIN)], pairs([1.0]), {"torchrun": "why"}
    )
    told = report.as_json(figures)
    assert (told["flexo_ddp.join.pause_s"], told["flexo_ddp.join.n"]) == (0.02, 1)
    assert (told["flexo_ddp.step_ratio_vs_ddp"], told["flexo_ddp.pairs"]) == (1.0, 1)
    assert (told[f"{TORCHRUN}.kill.around_s"], told[f"{TORCHRUN}.kill.n"]) == (None, 0)
    assert told["failures"] == {"torchrun": "why"}
    assert any("FAILED: torchrun" in line for line in report.table(figures))
