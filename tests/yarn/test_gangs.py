"""Gangs on a real YARN: all containers or none."""

from __future__ import annotations

import time

import pytest
from applications import BOUND_S, SMALL_MIB, Application

from flexo_lab.yarn import YarnLab
from flexo_yarn import records
from flexo_yarn.application_master import Ask
from horovod_elastic.platforms.yarn.gang import Gang

QUEUE = "default"


def gang_of(application: Application, containers: int, timeout_s: float) -> Gang:
    """A gang of containers with one GPU each."""
    asks = [Ask(number, records.resource(SMALL_MIB, 1, 1)) for number in range(1, containers + 1)]
    return Gang(application.master, asks, timeout_s=timeout_s, backoff_s=lambda attempt: 1.0 + attempt)


def wait_for_gangs(*waiting: tuple[Application, Gang]) -> None:
    """Heartbeats of all, until all their gangs are complete."""
    deadline = time.monotonic() + BOUND_S
    while not all(gang.is_complete for _, gang in waiting):
        assert time.monotonic() < deadline, [(gang.attempts, len(one.held)) for one, gang in waiting]
        for application, gang in waiting:
            gang.handle(application.beat(), time.monotonic())
        time.sleep(0.1)


def test_a_gang_that_cannot_be_complete_lets_a_smaller_job_pass_and_is_placed_later(lab: YarnLab) -> None:
    holder = Application.submit(lab, QUEUE, name="holder")
    holder.grow(9, gpus=2, containers=2)
    big = Application.submit(lab, QUEUE, name="big")
    big_gang = gang_of(big, 6, timeout_s=3.0)
    small = Application.submit(lab, QUEUE, name="small")
    small_gang = gang_of(small, 2, timeout_s=30.0)
    deadline = time.monotonic() + BOUND_S
    while not small_gang.is_complete:
        assert time.monotonic() < deadline
        for application, gang in ((big, big_gang), (small, small_gang)):
            gang.handle(application.beat(), time.monotonic())
        time.sleep(0.1)
    assert big_gang.attempts >= 1
    assert not big_gang.is_complete
    small.end()
    holder.end()
    wait_for_gangs((big, big_gang))
    assert len({each.id.id for each in big_gang.containers}) == 6
    big.end()


@pytest.mark.thorough
def test_a_gang_that_holds_a_part_gives_it_back_for_one_that_holds_the_rest(lab: YarnLab) -> None:
    """The second gang wants six of eight GPUs, of which a job holds four until it ends."""
    holder = Application.submit(lab, QUEUE, name="holder")
    held = holder.grow(9, gpus=1, containers=8)
    jobs = [Application.submit(lab, QUEUE, name=name) for name in ("one", "other")]
    first = gang_of(jobs[0], 4, timeout_s=60.0)
    holder.master.release([container.id for container in held])
    holder.beat()
    wait_for_gangs((jobs[0], first))
    second = gang_of(jobs[1], 6, timeout_s=3.0)
    deadline = time.monotonic() + BOUND_S
    while not second.attempts:
        assert time.monotonic() < deadline
        jobs[0].beat()
        second.handle(jobs[1].beat(), time.monotonic())
        time.sleep(0.1)
    jobs[0].end()
    wait_for_gangs((jobs[1], second))
    assert len(second.containers) == 6
    jobs[1].end()
