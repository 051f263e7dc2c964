"""The pure parts of part `sharing` of make bench-service: sacct's lines, windows, losses and drains."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from flexo_bench.service.parts import PARTS
from flexo_bench.service.sharing import GREEDY, goals
from flexo_bench.service.sharing_judged import (
    LEAST_STEPS,
    AggregatorJob,
    JobLoss,
    Window,
    aggregator_jobs,
    core_seconds,
    drains,
    job_loss,
    most_cores,
    neighbour_of_greedy,
    saved,
    steps_in,
    worst_loss,
)

SACCT = """\
7|daemon|1|1000|1100|COMPLETED
8|daemon|2|1050|Unknown|RUNNING
9|daemon|0|Unknown|Unknown|PENDING
"""


def steps(durations: list[float], begin: float) -> list[dict[str, Any]]:
    """Steps of these durations, one after the other."""
    found = []
    for duration in durations:
        found.append({"event": "step", "began": begin, "time": begin + duration})
        begin += duration
    return found


def test_sacct_s_lines_are_read_with_jobs_that_have_not_ended_or_begun() -> None:
    assert aggregator_jobs(SACCT) == [
        AggregatorJob(7, "daemon", 1, 1000.0, 1100.0, "COMPLETED"),
        AggregatorJob(8, "daemon", 2, 1050.0, None, "RUNNING"),
        AggregatorJob(9, "daemon", 0, None, None, "PENDING"),
    ]
    with pytest.raises(ValueError, match="6 are expected"):
        aggregator_jobs("7|daemon|1\n")


def test_core_seconds_are_those_of_the_windows_only() -> None:
    jobs = aggregator_jobs(SACCT)
    assert core_seconds(jobs, [Window(900, 1200)]) == 100 + 2 * 150
    assert core_seconds(jobs, [Window(1000, 1010), Window(1090, 1110)]) == 10 + 10 + 2 * 20
    assert core_seconds(jobs, [Window(0, 900)]) == 0


def test_the_most_cores_are_those_held_at_the_same_time() -> None:
    jobs = aggregator_jobs(SACCT)
    assert most_cores(jobs, Window(1000, 1040)) == 1
    assert most_cores(jobs, Window(1000, 1200)) == 3
    assert most_cores(jobs, Window(1100, 1200)) == 2
    assert most_cores(jobs, Window(0, 900)) == 0
    after = [
        AggregatorJob(1, "d", 1, 0.0, 50.0, "COMPLETED"),
        AggregatorJob(2, "d", 1, 50.0, None, "RUNNING"),
    ]
    assert most_cores(after, Window(0, 100)) == 1


def test_savings_are_for_the_same_number_of_steps() -> None:
    assert saved(300.0, 100, 800.0, 100) == pytest.approx(1 - 3 / 8)
    assert saved(300.0, 50, 800.0, 100) == pytest.approx(1 - 6 / 8)
    assert saved(900.0, 100, 800.0, 100) < 0  # type: ignore[operator]
    assert saved(300.0, 0, 800.0, 100) is None


def test_a_step_counts_if_it_begins_and_ends_in_a_window() -> None:
    made = steps([1.0, 2.0, 3.0, 4.0], 10.0)
    assert steps_in(made, [Window(11.0, 16.0)]) == [2.0, 3.0]
    assert steps_in(made, [Window(10.0, 11.5), Window(16.0, 20.0)]) == [1.0, 4.0]


def test_a_job_s_loss_is_a_part_of_its_speed_beside_idle_neighbours() -> None:
    beside, alone = steps([0.25] * LEAST_STEPS, 0.0), steps([0.2] * LEAST_STEPS, 100.0)
    loss = job_loss("one", [*beside, *alone], [Window(0, 50)], [Window(100, 150)])
    assert loss.loss == pytest.approx(0.2)
    assert (loss.steps_together, loss.steps_alone) == (LEAST_STEPS, LEAST_STEPS)
    few = job_loss("few", beside, [Window(0, 50)], [Window(100, 150)])
    assert few.loss is None


def test_a_neighbour_of_the_greedy_job_is_compared_with_the_time_before() -> None:
    made = [*steps([0.2] * 9, 0.0), *steps([0.4] * 9, 10.0), *steps([0.2] * 2, 20.0)]
    found = neighbour_of_greedy(made, Window(0, 9), Window(10, 19), Window(20, 29))
    assert (found.before_s, found.during_s) == (pytest.approx(0.2), pytest.approx(0.4))
    assert found.loss_during == pytest.approx(0.5)
    assert (found.after_s, found.loss_after) == (None, None)


def test_the_worst_loss_needs_that_of_every_job() -> None:
    losses = [JobLoss("a", 0.25, 0.2, 9, 9), JobLoss("b", 0.2, 0.2, 9, 9)]
    assert worst_loss(losses) == pytest.approx(0.2)
    assert worst_loss([*losses, JobLoss("c", None, 0.2, 0, 9)]) is None
    assert worst_loss([]) is None


def test_an_aggregator_that_flexod_has_told_to_end_is_found_in_slurm() -> None:
    events = [
        {"at": 1000.5, "text": "pool Aggregator c1:7000 has come in Slurm job 7"},
        {"at": 1050.5, "text": "pool Aggregator c2:7000 has come in Slurm job 8"},
        {"at": 1097.0, "text": "pool Aggregator c1:7000 is told to end: no job has needed it for 30 s"},
        {"at": 1099.0, "text": "pool Aggregator c1:7000 has to end"},
    ]
    [drain] = drains(events, aggregator_jobs(SACCT))
    assert (drain.slurm_job, drain.told_at, drain.ended_at, drain.state) == (7, 1097.0, 1100.0, "COMPLETED")


def test_the_part_is_judged_by_what_is_asked() -> None:
    found = {
        "core_seconds_saved": 0.6,
        "worst_loss": 0.1,
        "cpu_use": 0.3,
        "shared": {"cores": 3, "jobs_that_share": 4},
        "greedy": {"reverted": [GREEDY, "job1"]},
    }
    verdicts = {goal.name.removeprefix("sharing."): goal.verdict for goal in goals(found)}
    assert verdicts == {
        "core_seconds_saved": "reached",
        "worst_loss": "missed",
        "cpu_use": "reached",
        "shared.jobs_that_share": "reached",
        "shared.cores": "reached",
        "greedy: only the greedy job is reverted": "missed",
    }
    assert {goal.verdict for goal in goals({"failed": "no job has come"})} == {"not measured"}
    assert "sharing" in PARTS
