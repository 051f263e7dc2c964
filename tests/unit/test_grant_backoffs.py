"""How long a job rests after grants that failed."""

from __future__ import annotations

import pytest

from flexo.grant_backoffs import FIRST_S, LONGEST_S, Backoffs
from flexo.model.elastic import FailureReason, Grant
from flexo.model.queue import JobKey

KEY = JobKey(7)
NOW = 1_000_000.0


def rests(reason: FailureReason, rounds: int, grants: int) -> list[float]:
    """The rest after each round of grants that failed together."""
    backoffs, now, found = Backoffs(), NOW, []
    for _ in range(rounds):
        for number in range(grants):
            grant = Grant(f"g{now}-{number}", KEY, f"n{number}", 1, "flex", now)
            backoffs.failed(grant, reason, ran=False, now=now)
        found.append(backoffs.job_until(KEY) - now)
        now = backoffs.job_until(KEY)
    return found


def test_refusals_of_one_round_count_once() -> None:
    assert rests(FailureReason.REFUSED, 6, 64) == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]


def test_a_job_whose_workers_fail_on_one_node_after_the_other_rests_longer_each_time() -> None:
    backoffs, now, rests = Backoffs(), NOW, []
    for number in range(7):
        grant = Grant(f"g{number}", KEY, f"n{number % 3}", 1, "flex", now)
        now += 20.0  # its workers start and fail
        backoffs.failed(grant, FailureReason.WORKERS_FAILED, ran=True, now=now)
        rests.append(backoffs.job_until(KEY) - now)
        now = backoffs.job_until(KEY)
    assert rests[1:] == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
    trained = Grant("g8", KEY, "n4", 1, "flex", now)
    backoffs.trains(trained)
    backoffs.relieve(KEY)
    assert backoffs.job_until(KEY) == 0.0


@pytest.mark.parametrize("reason", [FailureReason.REFUSED, FailureReason.NOT_STARTED])
def test_a_job_whose_grants_fail_for_weeks_rests_no_longer_than_the_longest_rest(
    reason: FailureReason,
) -> None:
    found = rests(reason, 3000, 1)
    assert (found[0], found[-1]) == (FIRST_S, LONGEST_S)
