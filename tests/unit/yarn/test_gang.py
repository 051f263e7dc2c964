"""Gangs on a pretended ResourceManager that hands GPUs out one by one, to whoever asked."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records
from flexo_yarn.application_master import Ask, HeartbeatResult
from horovod_elastic.platforms.yarn.gang import LONGEST_BACKOFF_S, Gang, random_backoff_s

GPU = records.resource(64, 1, 1)


class Pool:
    """GPUs of a cluster; each is in a container of its own."""

    def __init__(self, gpus: int) -> None:
        self.free = gpus
        self.numbers = itertools.count(1)


class Job:
    """An ApplicationMaster as YARN sees it: what it asks for and gives back comes with its next heartbeat."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.wanted: dict[int, int] = {}
        self.held: set[int] = set()

    def ask(self, ask: Ask) -> None:
        self.wanted[ask.priority] = ask.containers

    def withdraw(self, priority: int) -> None:
        self.wanted.pop(priority, None)

    def release(self, containers: list[pb.ContainerId]) -> None:
        for each in containers:
            self.held.remove(each.id)
            self.pool.free += 1

    def beat(self, at_most: int = 1) -> HeartbeatResult:
        """A heartbeat that brings at most so many containers."""
        allocated = []
        for priority, count in self.wanted.items():
            given_now = min(at_most - len(allocated), count, self.pool.free)
            self.wanted[priority] -= given_now
            self.pool.free -= given_now
            allocated += [self._container(priority) for _ in range(given_now)]
        return HeartbeatResult(allocated=tuple(allocated))

    def lose(self, container: pb.Container) -> HeartbeatResult:
        """A heartbeat that says that a container was lost."""
        self.held.remove(container.id.id)
        return HeartbeatResult(completed=(pb.ContainerStatus(container_id=container.id, exit_status=-100),))

    def _container(self, priority: int) -> pb.Container:
        number = next(self.pool.numbers)
        self.held.add(number)
        return pb.Container(id=pb.ContainerId(id=number), priority=pb.Priority(priority=priority))


def asks(count: int) -> list[Ask]:
    return [Ask(priority, GPU) for priority in range(1, count + 1)]


def gang_of(job: Job, count: int, timeout_s: float = 10.0, backoff_s: float = 3.0) -> Gang:
    return Gang(job, asks(count), timeout_s=timeout_s, backoff_s=lambda attempt: backoff_s)


def test_a_gang_is_complete_when_its_last_container_is_there() -> None:
    job = Job(Pool(4))
    gang = gang_of(job, 3)
    for now in range(3):
        assert gang.containers == ()
        gang.handle(job.beat(), now)
    assert len(gang.containers) == 3
    gang.handle(HeartbeatResult(), 1000)
    assert len(gang.containers) == 3


def test_what_is_not_complete_in_time_gives_all_back_rests_and_asks_again() -> None:
    pool = Pool(2)
    job = Job(pool)
    gang = gang_of(job, 3, timeout_s=10, backoff_s=3)
    gang.handle(job.beat(), 0)
    gang.handle(job.beat(), 1)
    gang.handle(job.beat(), 9.9)
    assert (pool.free, gang.attempts) == (0, 0)
    gang.handle(job.beat(), 10)
    assert (pool.free, gang.attempts) == (2, 1)
    gang.handle(job.beat(), 12.9)
    assert pool.free == 2
    pool.free += 1
    for now in (13, 14, 15, 16):
        gang.handle(job.beat(), now)
    assert gang.is_complete


def test_a_gang_that_holds_nothing_waits_as_long_as_it_takes() -> None:
    job = Job(Pool(0))
    gang = gang_of(job, 2)
    for now in (0, 100, 1000):
        gang.handle(job.beat(), now)
    assert gang.attempts == 0


def test_what_comes_while_it_rests_is_given_back() -> None:
    pool = Pool(2)
    job = Job(pool)
    gang = gang_of(job, 3)
    late = job.beat()
    gang.handle(job.beat(), 0)
    gang.handle(HeartbeatResult(), 10)
    gang.handle(late, 11)
    assert (pool.free, job.held) == (2, set())


def test_a_container_that_is_lost_on_the_way_is_asked_for_again() -> None:
    job = Job(Pool(5))
    gang = gang_of(job, 3)
    first = job.beat()
    gang.handle(first, 0)
    gang.handle(job.beat(), 1)
    gang.handle(job.lose(first.allocated[0]), 2)
    for now in (3, 4):
        gang.handle(job.beat(), now)
    assert gang.is_complete
    assert len(job.held) == 3


def test_rests_are_random_grow_and_have_a_limit() -> None:
    assert len({random_backoff_s(0) for _ in range(20)}) > 10
    for attempt in range(20):
        assert 0 < random_backoff_s(attempt) <= min(LONGEST_BACKOFF_S, 2.0 * 2.0**attempt)


@given(st.integers(2, 8), st.integers(2, 4), st.randoms(use_true_random=False))
def test_gangs_that_each_hold_a_part_all_train_in_the_end(
    gpus: int, jobs: int, chance: random.Random
) -> None:
    """Each wants more than half: they can only run one after the other. Who is complete trains, and ends."""
    pool = Pool(gpus)
    waiting = []
    for _ in range(jobs):
        job = Job(pool)
        rest = lambda attempt: chance.uniform(0.5, 1.0) * 2.0 ** min(attempt, 5)  # noqa: E731
        waiting.append((job, Gang(job, asks(gpus // 2 + 1), timeout_s=5.0, backoff_s=rest)))
    now = 0.0
    while waiting:
        now += 0.5
        assert now < 5000, "they wait for each other"
        for job, gang in chance.sample(waiting, len(waiting)):
            gang.handle(job.beat(), now)
            if gang.is_complete:
                job.release([each.id for each in gang.containers])
                waiting.remove((job, gang))
    assert pool.free == gpus
