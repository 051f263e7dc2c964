"""Runs whose speed changes on the way: the simulator looks again when they say so, and at every decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from little_simulations import Script, by_number, greedy_fifo, on_one_node, trace_job

from flexo.model.measured import Source
from flexo.model.training import NodeShare
from flexo.policies.base import Jobs
from flexo.policies.placement import Placement
from flexo_simulation.costs import Costs


@dataclass(frozen=True)
class TwoPaces:
    """So much work at one unit a worker and second, then as much at half of it."""

    work: float

    def begin(self) -> TwoPacesRun:
        return TwoPacesRun(self.work)


class TwoPacesRun:
    def __init__(self, work: float) -> None:
        self._each = work
        self._done = 0.0
        self.steady = False
        self.source = Source.PROGRESS

    @property
    def finished(self) -> bool:
        return self._done >= 2 * self._each - 1e-9

    def _poll_interval(self, shares: Sequence[NodeShare]) -> float:
        return sum(share.workers for share in shares) * (1.0 if self._done < self._each - 1e-9 else 0.5)

    def time_left_s(self, shares: Sequence[NodeShare], samples: int) -> float:
        if not shares:
            return math.inf
        end = self._each if self._done < self._each - 1e-9 else 2 * self._each
        return (end - self._done) / self._poll_interval(shares)

    def advance(self, seconds: float, shares: Sequence[NodeShare], samples: int) -> float:
        left = seconds
        while left > 0 and not self.finished:
            step = min(left, self.time_left_s(shares, samples))
            self._done += step * self._poll_interval(shares)
            left -= step
        return seconds - left

    def speed(self) -> None:
        return None

    def speeds(self) -> tuple[()]:
        return ()

    def remaining_work(self) -> float:
        return 2 * self._each - self._done


@pytest.mark.parametrize("interval_s", [None, 60.0, 7.0])
def test_its_end_is_exact_however_often_it_is_looked_at(interval_s):
    jobs = [trace_job(1, workers=2, training=TwoPaces(50.0))]
    outcome = on_one_node(jobs, costs=Costs(start_s=5.0), interval_s=interval_s)
    record = by_number(outcome)[1]
    assert record.ended_at == pytest.approx(5.0 + 25.0 + 50.0)
    assert record.gpu_s == pytest.approx(2 * 80.0)


def test_each_change_of_its_speed_calls_for_a_decision():
    script = Script({0.0: {1: 1}})
    on_one_node([trace_job(1, training=TwoPaces(50.0))], script)
    assert [look.at for look in script.seen] == pytest.approx([0.0, 50.0, 150.0])


@pytest.mark.parametrize("interval_s", [None, 10.0])
def test_policies_see_what_it_would_report_at_each_decision(interval_s):
    script = Script({0.0: {1: 1, 2: 1}})
    jobs = [trace_job(1, training=TwoPaces(50.0)), trace_job(2, 70.0)]
    on_one_node(jobs, script, interval_s=interval_s)
    left = {look.at: look.training[0].remaining_work for look in script.seen if look.training}
    assert left[50.0] == pytest.approx(50.0)
    assert left[70.0] == pytest.approx(40.0)
    look = next(job for job in script.looks(1) if job.as_of == 70.0)
    assert (look.service_gpu_s, look.source) == (70.0, Source.PROGRESS)


def test_within_a_tick_an_end_has_its_own_time_and_its_gpus_are_free_at_the_next():
    starts: dict[int, float] = {}

    def what(jobs: Jobs, placement: Placement):
        words = greedy_fifo(jobs, placement)
        starts.update((word.job.job_id, jobs.at) for word in words)
        return words

    jobs = [trace_job(1, workers=8, training=TwoPaces(200.0)), trace_job(2, 10.0, 8)]
    records = by_number(on_one_node(jobs, what, interval_s=60.0))
    assert records[1].ended_at == pytest.approx(75.0)
    assert starts[2] == 120.0


@pytest.mark.parametrize("interval_s", [None, 60.0])
def test_it_is_ended_by_its_time_limit(interval_s):
    jobs = [trace_job(1, training=TwoPaces(50.0), time_limit_s=100)]
    record = by_number(on_one_node(jobs, limits_end_jobs=True, interval_s=interval_s))[1]
    assert (record.end.value, record.ended_at) == ("time limit", 100.0)
