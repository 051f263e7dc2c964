"""Leases extended many at once, with a queue in Slurm's place."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from controller_world import ADA, TIME_LIMIT_S, FakeCluster, slurm_job
from says import says

from flexo.clusters.base import ActionRefused, ClusterUnreachable
from flexo.control.inline_executor import InlineExecutor
from flexo.control.recent_errors import RecentErrors
from flexo.control.time_limits import MOST_AT_ONCE, TimeLimits, time_limit_for
from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.queue import JobKey, SatelliteTag
from flexo_protos.resources import Resources


class Crowd(FakeCluster):
    """Jobs with satellites, and what is asked for them in each command."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[int, ...]] = []
        self.refused: frozenset[str] = frozenset()
        self.silent = False
        self.slow = threading.Event()
        """Cleared: Slurm takes its time."""
        self.slow.set()
        self.recent_errors = RecentErrors("Slurm")
        self.leases = TimeLimits(self, self.recent_errors, TIME_LIMIT_S, self.now, InlineExecutor())
        self.jobs: list[ElasticJob] = []

    def job(self, number: int, satellites: dict[int, float]) -> JobKey:
        """A job with `satellites`: each one's id, and how many seconds of its lease are left."""
        base, key = self.base(number, node="t1"), JobKey(number)
        grants = []
        for job_id, left_s in satellites.items():
            grants.append(Grant(f"g{job_id}", key, "t2", 1, "flex", 0.0, SatelliteState.TRAINING, job_id))
            ran_s = TIME_LIMIT_S - left_s
            tag = SatelliteTag(key, f"g{job_id}", 1)
            self.add(
                slurm_job(
                    job_id,
                    ADA,
                    nodes=("t2",),
                    started_at=self.now - ran_s,
                    time_limit_s=TIME_LIMIT_S,
                    satellite=tag,
                )
            )
        assert base.elastic
        shape = Resources(1, 1, 0)
        self.jobs.append(
            ElasticJob(key, "ada", base.elastic.workers, shape, ("t1",), 1, grants=tuple(grants))
        )
        return key

    def extend(self, time_limits, seconds_from_now: int) -> None:
        self.commands.append(tuple(map(int, time_limits)))
        assert self.slow.wait(30)
        if self.silent:
            raise ClusterUnreachable("in 20 s")
        super().extend([each for each in time_limits if each not in self.refused], seconds_from_now)
        refused = self.refused & set(time_limits)
        if refused:
            raise ActionRefused("Job is being preempted", refused)

    def go(self) -> list[tuple[str, JobKey | None, str]]:
        """One cycle; what it says."""
        events = self.leases.extend(self.observe(), self.jobs, {job.key for job in self.jobs})
        return [(event.kind, event.job, event.text) for event in events]

    def trouble(self) -> list[tuple[JobKey | None, str]]:
        """Which trouble one cycle tells of."""
        return [(job, text) for kind, job, text in self.go() if kind == "trouble"]


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_all_leases_that_are_due_take_one_command_and_each_job_is_told_of_its_own(crowd):
    crowd.job(1, {101: 100, 102: 120, 103: 200})
    crowd.job(2, {201: 50})
    (kind, job, first), (_, other, second) = crowd.go()
    assert (kind, job, other) == ("extend", JobKey(1), JobKey(2))
    assert says(first, 101, 102, "300 s")
    assert not says(first, 103)
    assert says(second, 201, "300 s")
    assert crowd.commands == [(201, 101, 102)]
    assert crowd.go() == []


def test_more_than_one_command_may_hold_take_several_and_those_that_end_first_come_first(crowd):
    numbers = range(1000, 1000 + 2 * MOST_AT_ONCE + 5)
    crowd.job(1, {number: 149 - place / 10 for place, number in enumerate(numbers)})
    crowd.go()
    assert [len(command) for command in crowd.commands] == [MOST_AT_ONCE, MOST_AT_ONCE, 5]
    assert [job_id for command in crowd.commands for job_id in command] == list(reversed(numbers))


def test_what_is_refused_is_trouble_of_its_job_and_the_others_are_extended(crowd):
    crowd.job(1, {101: 100})
    crowd.job(2, {201: 100})
    crowd.refused = frozenset({"201"})
    ((job, text),) = crowd.trouble()
    assert job == JobKey(2)
    assert says(text, "Slurm", "Job is being preempted")
    assert crowd.recent_errors.recent(crowd.now) == "Job is being preempted"
    crowd.go()
    assert crowd.commands == [(101, 201)]
    assert [job_id for job_id, _ in crowd.extended] == [101]
    crowd.now += 31
    crowd.go()
    assert crowd.commands[1:] == [(201,)]


def test_a_refusal_that_names_no_job_is_trouble_of_the_first(crowd):
    crowd.job(1, {101: 100})
    crowd.refuses = "Access/permission denied"
    ((job, text),) = crowd.trouble()
    assert job == JobKey(1)
    assert says(text, "Slurm", "Access/permission denied")


def test_slurm_that_does_not_answer_is_said_and_asked_again(crowd):
    crowd.job(1, {101: 100})
    crowd.silent = True
    ((job, text),) = crowd.trouble()
    assert job is None
    assert says(text, "Slurm", "20 s")
    assert crowd.recent_errors.recent(crowd.now) == "in 20 s"
    crowd.silent = False
    crowd.now += 31
    crowd.go()
    assert [job_id for job_id, _ in crowd.extended] == [101]
    assert crowd.recent_errors.recent(crowd.now) == ""


def test_the_loop_goes_on_while_slurm_takes_its_time_and_asks_for_nothing_twice(crowd):
    with ThreadPoolExecutor(1) as beside:
        crowd.leases = TimeLimits(crowd, crowd.recent_errors, TIME_LIMIT_S, crowd.now, beside)
        crowd.job(1, {101: 140})
        crowd.slow.clear()
        assert [kind for kind, _, _ in crowd.go()] == ["extend"]
        crowd.now += 40
        crowd.job(2, {201: 100})
        assert [job for _, job, _ in crowd.go()] == [JobKey(2)]
        assert crowd.extended == []
        crowd.slow.set()
    assert crowd.commands == [(101,), (201,)]
    assert [job_id for job_id, _ in crowd.extended] == [101, 201]
    assert crowd.go() == []


def test_what_waits_to_be_asked_is_not_asked_once_it_is_forgotten(crowd):
    with ThreadPoolExecutor(1) as beside:
        crowd.leases = TimeLimits(crowd, crowd.recent_errors, TIME_LIMIT_S, crowd.now, beside)
        crowd.job(1, dict.fromkeys(range(100, 100 + MOST_AT_ONCE + 1), 100))
        crowd.slow.clear()
        crowd.go()
        crowd.leases.forget()
        crowd.slow.set()
    assert [len(command) for command in crowd.commands] == [MOST_AT_ONCE]


@pytest.mark.parametrize(
    ("time_limit_s", "satellites", "becomes_s"),
    [
        (300, 1, 300),
        (300, 150, 300),
        (300, 151, 302),
        (300, 1150, 2300),
        (300, 9000, 3600),
        (7200, 9000, 7200),
    ],
)
def test_leases_become_longer_where_there_are_many_but_for_an_hour_at_most(
    time_limit_s: int, satellites: int, becomes_s: int
) -> None:
    assert time_limit_for(time_limit_s, satellites) == becomes_s


def test_however_many_satellites_there_are_about_one_lease_a_second_is_extended(crowd: Crowd) -> None:
    many, step_s, hours = 600, 60, 2
    for number in range(1, many + 1):
        crowd.job(number, {10_000 + number: TIME_LIMIT_S * number / many})
    for _ in range(hours * 3600 // step_s):
        crowd.go()
        crowd.now += step_s
        ends = [
            (job.started_at or 0) + (job.time_limit_s or 0) for job in crowd.queue.values() if job.satellite
        ]
        assert min(ends) > crowd.now, "no lease runs out"
    assert len(crowd.extended) / (hours * 3600) < 1.2
