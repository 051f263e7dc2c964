"""How make bench-service judges deaths, with logs made up here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from flexo_bench.service.kills import CASES, Killed, deaths_of_jobs, same_bits, summary
from flexo_bench.service.kills_judged import Kill, digests, irregular, judge
from horovod_elastic.core.choice import TORCH

pytestmark = pytest.mark.thorough

Line = dict[str, Any]
STEP_S = 0.1
SAMPLES = 6


def steps(
    pid: int,
    rank: int,
    numbers: Iterable[int],
    *,
    since: float = 0.0,
    size: int = 3,
    used: dict[int, list[int]] | None = None,
    digest: str = "",
) -> list[Line]:
    """Steps of one worker, an epoch in two: it begins the first at `since`, and each takes STEP_S."""
    found: list[Line] = []
    for place, number in enumerate(numbers):
        epoch, half = divmod(number - 1, 2)
        counts = (used or {}).get(number, [0, 1, 2] if half == 0 else [3, 4, 5])
        head = {"pid": pid, "rank": rank, "size": size, "step": number, "epoch": epoch}
        began = since + place * STEP_S
        found.append({"event": "begin", "time": began, **head})
        end = {"event": "step", "used": counts, "digest": digest or f"d{number}"}
        found.append({**end, "time": began + 0.99 * STEP_S, **head})
    return found


def test_a_death_that_others_go_on_without_costs_nothing() -> None:
    kill = Kill(2.02, 30, "rank 2")
    lines = steps(10, 0, range(1, 21)) + steps(20, 1, range(1, 21)) + steps(30, 2, range(1, 21))
    lines += [{"event": "begin", "time": 2.0, "pid": 30, "rank": 2, "size": 3, "step": 21, "epoch": 10}]
    for pid, rank in ((10, 0), (20, 1)):
        lines += steps(pid, rank, range(21, 41), since=2.05, size=2)
    found = judge(lines, [kill], SAMPLES)
    (cost,) = found.costs
    assert cost.batches_lost == 0
    assert cost.pause_s == pytest.approx(0.05)
    assert cost.step_s == pytest.approx(STEP_S)
    assert (found.steps, found.samples_repeated, found.samples_missing, found.disagreements) == (40, 0, 0, 0)


def test_mini_batches_that_are_begun_again_are_lost_and_their_samples_are_not_repeated() -> None:
    kill = Kill(2.02, 30, "rank 2")
    lines = [line for pid, rank in ((10, 0), (20, 1), (30, 2)) for line in steps(pid, rank, range(1, 21))]
    for pid, rank in ((10, 0), (20, 1)):
        lines += [
            {"event": "begin", "time": 2.0, "pid": pid, "rank": rank, "size": 3, "step": 21, "epoch": 10}
        ]
        lines += steps(pid, rank, range(19, 41), since=4.0, size=2, digest="other")
    found = judge(lines, [kill], SAMPLES)
    (cost,) = found.costs
    assert cost.batches_lost == 3, "19 and 20 were done, 21 was begun"
    assert cost.pause_s == pytest.approx(4.099 - 1.999 - STEP_S)
    assert (found.samples_repeated, found.samples_missing, found.disagreements) == (0, 0, 0)


def test_samples_that_count_twice_are_repeated_and_those_that_never_count_are_missing() -> None:
    lines = steps(10, 0, range(1, 8), used={1: [0, 1, 2, 2], 3: [0, 1], 4: [3, 4, 5, 3]})
    found = judge(lines, [], SAMPLES)
    assert (found.samples_repeated, found.samples_missing) == (2, 1)


def test_what_fills_an_epochs_last_mini_batch_up_is_no_repetition_of_a_death() -> None:
    """Of five samples, two workers have three each."""
    used = {1: [0, 1, 2], 2: [3, 4, 5, 0]}
    lines = steps(10, 0, range(1, 4), used=used, size=2)
    found = judge(lines, [], SAMPLES, fills_up=True)
    assert (found.samples_repeated, found.samples_filled_up, found.samples_missing) == (0, 1, 0)
    assert judge(lines, [], SAMPLES).samples_repeated == 1, "Horovod's scripts fill nothing up"


@pytest.mark.parametrize(
    "used",
    [{1: [0, 1, 2, 0], 2: [3, 4, 5]}, {1: [0, 1, 2], 2: [3, 4, 5, 0, 1]}, {1: [0, 1], 2: [2, 3, 4, 5, 0, 1]}],
    ids=["not in the last step", "more than fill it up", "in a step that is even without"],
)
def test_other_repetitions_count_in_a_script_that_fills_up(used: dict[int, list[int]]) -> None:
    assert judge(steps(10, 0, [1, 2], used=used, size=2), [], SAMPLES, fills_up=True).samples_repeated > 0


def test_an_epoch_that_is_not_over_misses_nothing() -> None:
    assert judge(steps(10, 0, range(1, 4)), [], SAMPLES).samples_missing == 0


def test_workers_that_differ_are_noticed() -> None:
    lines = steps(10, 0, range(1, 5)) + steps(20, 1, range(1, 4))
    assert judge(lines, [], SAMPLES).disagreements == 0
    lines += steps(20, 1, [4], digest="another")
    assert judge(lines, [], SAMPLES).disagreements == 1


def test_each_death_has_its_own_costs_until_the_next_one() -> None:
    lines = steps(10, 0, range(1, 11)) + steps(10, 0, range(11, 21), since=1.4)
    lines += steps(10, 0, range(19, 41), since=2.5)
    found = judge(lines, [Kill(1.05, 31, "rank 1"), Kill(2.41, 32, "rank 2")], SAMPLES)
    assert [cost.batches_lost for cost in found.costs] == [0, 2]
    assert [cost.pause_s for cost in found.costs] == pytest.approx([0.4, 0.1])


def test_a_gap_long_after_a_death_is_not_its_pause() -> None:
    lines = steps(10, 0, range(1, 41)) + steps(10, 0, range(41, 51), since=4.7)
    (cost,) = judge(lines, [Kill(1.05, 31, "rank 1")], SAMPLES).costs
    assert cost.pause_s == pytest.approx(0, abs=1e-9)
    assert cost.later_s == pytest.approx(0.7)


def test_logs_without_some_steps_are_no_base_for_a_judgement() -> None:
    assert irregular([]) == ""
    assert irregular(steps(10, 0, [1, 2]) + steps(20, 1, [2])) == ""
    assert irregular(steps(10, 0, [1, 2, 5]) + steps(20, 1, [3, 4])).endswith("[3, 4]")


def test_rank_0_may_be_another_process_after_a_resize() -> None:
    lines = steps(10, 0, [1, 2]) + steps(20, 1, [1, 2]) + steps(20, 0, [3, 4], since=0.2)
    assert irregular(lines) == ""
    assert judge(lines, [], SAMPLES).steps == 4


def test_only_jobs_that_lose_aggregators_are_compared_bit_for_bit_and_only_the_rival_has_the_torch_core() -> (
    None
):
    assert [case.name for case in CASES if case.kills_aggregators] == ["aggregator", "ddp aggregator"]
    assert [case.name for case in CASES if case.core == TORCH] == ["torch_core"]


def test_a_job_has_no_more_deaths_than_restarts() -> None:
    assert deaths_of_jobs(20) == [3, 3, 3, 3, 3, 3, 2]
    assert deaths_of_jobs(1) == [1]


def test_bits_are_the_same_if_all_workers_have_the_undisturbed_ones_after_each_step() -> None:
    undisturbed = digests(steps(10, 0, range(1, 9)))
    assert same_bits([digests(steps(20, 0, range(1, 5)))], undisturbed)
    assert not same_bits([digests(steps(20, 0, range(1, 5), digest="x"))], undisturbed)
    assert not same_bits([digests(steps(20, 0, range(1, 10)))], undisturbed), "step 9 cannot be compared"
    mixed = digests(steps(20, 0, [1]) + steps(30, 1, [1], digest="x"))
    assert not same_bits([mixed], undisturbed)


def test_the_summary_counts_all_deaths_of_all_jobs() -> None:
    kill = Kill(1.05, 31, "rank 1")
    lines = steps(10, 0, range(1, 11)) + steps(10, 0, range(10, 21), since=1.4)
    job = Killed((kill,), judge(lines, [kill], SAMPLES), tuple(lines), "it ended")
    found = summary([job, job])
    assert (found["runs"], found["batches_lost"], found["failed"]) == (2, 2, ["it ended", "it ended"])
    assert found["pause_s"] == found["pause_worst_s"] == pytest.approx(0.4)
    assert found["mini_batch_s"] == pytest.approx(STEP_S)
