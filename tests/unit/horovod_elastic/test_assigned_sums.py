"""What a leader knows of pool Aggregators: flexod's word, who hears it, and what it measures of their use."""

from __future__ import annotations

import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic.agent.aggregator import LocalAggregator
from horovod_elastic.aggregation import control
from horovod_elastic.aggregation.control import AggregatorUsage, AssignedAggregator
from horovod_elastic.core import choice
from horovod_elastic.leader.agent_links import AgentLink, AgentLinks
from horovod_elastic.leader.assigned_sums import (
    HEARD_WITHIN_S,
    RENEWED_AFTER_S,
    AssignedSums,
    BusyTime,
    IterationTime,
)

AUTO = {choice.VARIABLE: choice.SERVICE, choice.AGGREGATORS_VARIABLE: choice.AUTO}
POOL = {choice.VARIABLE: choice.SERVICE, choice.AGGREGATORS_VARIABLE: choice.POOL}


def aggregators(version: int, *hosts: str, token: str = "t") -> jobs_pb2.Aggregators:
    assigned = [
        jobs_pb2.AssignedAggregator(host=host, port=7000, token=token, share=1 + place)
        for place, host in enumerate(hosts)
    ]
    return jobs_pb2.Aggregators(version=version, aggregators=assigned)


def usage(version: int, rounds: int, size: int = 100) -> workers_pb2.AggregatorUsage:
    return workers_pb2.AggregatorUsage(bytes=size, rounds=rounds, version=version)


class Job:
    """The sums of a job with two agents."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self.links = AgentLinks()
        for name in ("a", "b"):
            self.links.by_name[name] = AgentLink(queue.SimpleQueue(), True, 1, "", 0.0)
        self.sums = AssignedSums(self.links, POOL if environment is None else environment)
        self.now = 100.0

    def told(self, name: str) -> list[int]:
        """The versions that an agent was told."""
        outbox, found = self.links.by_name[name].outbox, []
        while not outbox.empty():
            message = outbox.get()
            assert message is not None
            found.append(message.aggregators.version)
        return found

    def train(self, seconds: int, version: int, step_s: float, first: int = 0) -> int:
        """Let both agents count iterations of one generation. Returns the count."""
        count = first
        for second in range(seconds):
            self.now += 1
            count = first + int((second + 1) / step_s)
            for name in ("a", "b"):
                self.sums.used(name, usage(version, count), 1, self.now)
        return count

    def report(self) -> jobs_pb2.AggregationUse:
        said = self.sums.report(2, 0, self.now)
        assert said is not None
        return said


def test_a_job_with_its_own_aggregators_reports_just_that_and_takes_no_assignment() -> None:
    job = Job({choice.VARIABLE: choice.SERVICE})
    assert not job.sums.assigned(aggregators(1, "c1"), job.now)
    assert job.told("a") == []
    assert job.sums.report(2, 0, 0.0) == jobs_pb2.AggregationUse(nodes=2)


def test_a_job_without_aggregators_reports_nothing_of_them() -> None:
    assert Job({choice.VARIABLE: choice.TORCH}).sums.report(2, 0, 0.0) is None


def test_a_job_with_aggregators_in_satellites_reports_how_many_it_wants_and_what_it_uses() -> None:
    job = Job({choice.VARIABLE: choice.SERVICE, choice.AGGREGATORS_VARIABLE: choice.SATELLITES})
    job.sums.assigned(aggregators(1, "c1"), job.now)
    for name in ("a", "b"):
        job.sums.used(name, usage(1, 1), 1, job.now)
    said = job.sums.report(2, 3, job.now)
    assert said is not None
    assert (said.wants_pool, said.satellites, [each.host for each in said.used]) == (False, 3, ["c1"])


def test_a_job_that_leaves_the_choice_to_flexod_asks_for_nothing_and_says_how_busy_its_aggregators_are() -> (
    None
):
    job = Job(AUTO)
    for second in range(10):
        job.now += 1
        for name, cores in (("a", 0.1), ("b", 0.4)):
            told = workers_pb2.AggregatorUsage(rounds=5 * second, cpu_s=3 + cores * second)
            job.sums.used(name, told, 1, job.now)
    said = job.sums.report(2, 3, job.now)
    assert said is not None
    assert (said.auto, said.most_satellites, said.satellites, said.wants_pool) == (True, 3, 0, False)
    assert said.busy == pytest.approx(0.4)
    assert said.iteration_s == pytest.approx(0.2, rel=0.05)
    assert job.sums.of_pool
    job.sums.assigned(aggregators(1, "c1"), job.now)


def test_an_aggregator_that_was_started_again_is_measured_anew() -> None:
    busy = BusyTime()
    for second in range(20):
        busy.note(float(second), 100 + 0.5 * second)
    assert busy.cores == pytest.approx(0.5)
    busy.note(20.0, 0.1)
    assert busy.cores == 0.0
    for second in range(21, 30):
        busy.note(float(second), 0.1 * (second - 19))
    assert busy.cores == pytest.approx(0.1)


def test_the_last_assignment_is_in_use_once_all_nodes_say_so() -> None:
    job = Job()
    job.sums.assigned(aggregators(1, "c1"), job.now)
    assert job.sums.in_use(job.now), "nobody sums yet"
    job.sums.used("a", usage(1, 1), 1, job.now)
    job.sums.used("b", usage(0, 1), 1, job.now)
    assert not job.sums.in_use(job.now)
    job.sums.used("b", usage(1, 1), 1, job.now)
    assert job.sums.in_use(job.now)


def test_a_new_assignment_reaches_all_agents_and_the_present_generation_migrates_to_it() -> None:
    job = Job()
    assert not job.sums.assigned(aggregators(1, "c1"), job.now)
    assert (job.told("a"), job.told("b")) == ([1], [1])


def test_an_aggregator_that_is_assigned_again_needs_a_generation() -> None:
    job = Job()
    job.sums.assigned(aggregators(1, "c1", "c2"), job.now)
    assert job.sums.assigned(aggregators(2, "c2", "c3"), job.now)
    job.train(int(RENEWED_AFTER_S) + 1, 1, 0.2)
    assert not job.sums.renewal_is_due(job.now), "it was begun"


@pytest.mark.parametrize(("used", "is_due"), [(1, True), (2, False)])
def test_a_generation_that_does_not_migrate_to_an_assignment_is_replaced_once(
    used: int, is_due: bool
) -> None:
    job = Job()
    job.sums.assigned(aggregators(1, "c1"), job.now)
    job.train(1, 1, 0.2)
    assert not job.sums.assigned(aggregators(2, "c2"), job.now)
    job.train(int(RENEWED_AFTER_S) - 1, used, 0.2)
    assert not job.sums.renewal_is_due(job.now)
    job.train(2, used, 0.2)
    assert job.sums.renewal_is_due(job.now) is is_due
    assert not job.sums.renewal_is_due(job.now)


def test_renewed_tokens_reach_the_agents_without_a_generation() -> None:
    job = Job()
    job.sums.assigned(aggregators(1, "c1"), job.now)
    assert not job.sums.assigned(aggregators(1, "c1", token="later"), job.now)
    assert job.told("a") == [1, 1]


def test_an_older_assignment_is_not_taken() -> None:
    job = Job()
    job.sums.assigned(aggregators(3, "c1"), job.now)
    assert not job.sums.assigned(aggregators(2, "c2"), job.now)
    assert job.told("a") == [3]


def test_an_agent_that_comes_later_is_told_the_last_assignment() -> None:
    job, outbox = Job(), cast(Any, queue.SimpleQueue())
    job.sums.tell_newcomer(outbox)
    assert outbox.empty()
    job.sums.assigned(aggregators(2, "c1"), job.now)
    job.sums.tell_newcomer(outbox)
    assert outbox.get().aggregators == aggregators(2, "c1")


def test_a_new_leader_has_the_assignment_from_its_agents_and_begins_no_generation_for_it() -> None:
    job = Job()
    job.sums.inherit(aggregators(2, "c1"), job.now)
    job.sums.inherit(aggregators(1, "c9"), job.now)
    job.train(30, 2, 0.2)
    assert not job.sums.renewal_is_due(job.now)
    assert not job.sums.assigned(aggregators(2, "c1"), job.now)
    assert [(each.host, each.share) for each in job.report().used] == [("c1", 1)]


def test_a_new_leader_carries_out_what_the_one_before_has_only_told_and_once() -> None:
    job = Job()
    job.sums.inherit(aggregators(2, "c1"), job.now)
    job.train(int(RENEWED_AFTER_S) - 1, 1, 0.2)
    assert not job.sums.renewal_is_due(job.now)
    job.train(2, 1, 0.2)
    assert job.sums.renewal_is_due(job.now)
    assert not job.sums.renewal_is_due(job.now)


@pytest.mark.parametrize("step_s", [0.03, 0.2, 0.9, 3.0])
def test_the_time_of_an_iteration_is_exact_though_counts_are_whole(step_s: float) -> None:
    job = Job()
    job.train(round(max(20, 40 * step_s)), 0, step_s)
    assert job.report().iteration_s == pytest.approx(step_s, rel=0.04)


def test_a_pause_does_not_count_as_slowness() -> None:
    job = Job()
    count = job.train(20, 0, 0.2)
    job.now += 4
    job.train(6, 0, 0.2, count)
    assert job.report().iteration_s == pytest.approx(0.2, rel=0.1)


def test_a_slower_job_is_noticed_within_a_hundred_iterations() -> None:
    job = Job()
    count = job.train(30, 0, 0.2)
    job.train(12, 0, 0.25, count)
    assert job.report().iteration_s == pytest.approx(0.25, rel=0.06)


def test_iterations_are_counted_from_the_assignment_on_across_generations() -> None:
    job = Job()
    job.train(20, 1, 0.5)
    assert job.report().iterations == pytest.approx(40, abs=2)
    for name in ("a", "b"):
        job.sums.used(name, usage(1, 3), 2, job.now)
    job.now += 1
    for name in ("a", "b"):
        job.sums.used(name, usage(1, 5), 2, job.now)
    assert job.report().iterations == pytest.approx(42, abs=3)
    assert job.report().iteration_s == 0.0, "the next generation may have another time"
    for name in ("a", "b"):
        job.sums.used(name, usage(2, 9), 3, job.now)
    assert job.report().iterations == 0


def test_an_assignment_is_in_use_once_all_nodes_use_it() -> None:
    job = Job()
    job.sums.assigned(aggregators(1, "c1"), job.now)
    job.sums.assigned(aggregators(2, "c1", "c2"), job.now)
    job.sums.used("a", usage(2, 1), 1, job.now)
    job.sums.used("b", usage(1, 1), 1, job.now)
    assert job.report().version == 1
    assert [each.host for each in job.report().used] == ["c1"]
    job.sums.used("b", usage(2, 1), 1, job.now)
    assert job.report().version == 2
    assert [each.share for each in job.report().used] == [1, 2]


def test_an_agent_that_is_gone_counts_no_more() -> None:
    job = Job()
    job.sums.used("b", usage(1, 1), 1, job.now)
    job.now += HEARD_WITHIN_S + 1
    job.sums.used("a", usage(2, 1), 1, job.now)
    assert job.report().version == 2


def test_too_few_counts_make_no_time() -> None:
    time = IterationTime()
    for second in range(5):
        time.note(float(second), 10 * second)
    assert time.median_s == 0.0


def test_pauses_that_come_before_a_measurement_is_complete_do_not_count_either() -> None:
    time, now, count = IterationTime(), 0.0, 0
    for _ in range(20):
        now, count = now + 1.0, count + 5
        time.note(now, count)
    for _ in range(10):
        now += 10.0
        for _ in range(4):
            now, count = now + 1.0, count + 5
            time.note(now, count)
            assert time.median_s in (0.0, pytest.approx(0.2))
    for _ in range(10):
        now, count = now + 1.0, count + 5
        time.note(now, count)
    assert time.median_s == pytest.approx(0.2)


def test_a_pause_at_the_beginning_of_a_generation_does_not_count() -> None:
    time = IterationTime()
    for second in range(20):
        time.note(float(second), 5 * second)
    time.forget()
    time.note(20.0, 100)
    for second in range(30, 50):
        time.note(float(second), 5 * (second - 9))
    assert time.median_s == pytest.approx(0.2)


def test_a_job_that_has_become_much_slower_for_good_is_measured_anew() -> None:
    time = IterationTime()
    for second in range(20):
        time.note(float(second), 20 * second)
    for second in range(20, 80):
        time.note(float(second), 380 + second)
    assert time.median_s == pytest.approx(1.0)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalAggregator:
    for name, value in POOL.items():
        monkeypatch.setenv(name, value)
    return LocalAggregator(cast(Any, SimpleNamespace(folder=tmp_path)), "n1")


def test_an_agent_hands_an_assignment_to_its_nodes_aggregator(local: LocalAggregator, tmp_path: Path) -> None:
    local.assign(aggregators(4, "c1"))
    known = control.assignment(tmp_path)
    assert (known.version, known.assigned) == (4, (AssignedAggregator("c1", 7000, "t", 1),))
    again = LocalAggregator(cast(Any, SimpleNamespace(folder=tmp_path)), "n1")
    assert again.assigned == aggregators(4, "c1"), "an agent that was started again still knows it"
    told = aggregators(5, "c1")
    told.in_satellites = True
    local.assign(told)
    again = LocalAggregator(cast(Any, SimpleNamespace(folder=tmp_path)), "n1")
    assert again.assigned == told


def test_an_agent_tells_what_its_nodes_aggregator_does(local: LocalAggregator, tmp_path: Path) -> None:
    assert local.usage() is None
    control.tell_usage(tmp_path, AggregatorUsage(10, 3, 4, cpu_s=1.5))
    told = usage(4, 3, 10)
    told.cpu_s = 1.5
    assert local.usage() == told


def test_a_folder_that_cannot_be_written_keeps_the_assignment_before(
    local: LocalAggregator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.rmdir()
    local.assign(aggregators(1, "c1"))
    assert local.assigned.version == 0
    assert "keeps its assignment" in capsys.readouterr().err
