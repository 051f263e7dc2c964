"""Which agents a leader gives up, and when."""

from __future__ import annotations

import queue
from dataclasses import dataclass

import pytest
from world import World, training_world

from horovod_elastic.leader.agent_links import AgentLink, AgentLinks
from horovod_elastic.leader.attendance import BACK_WITHIN_S, SILENCE_BOUND_S, STALL_S, Attendance
from horovod_elastic.leader.base_watch import BaseWatch
from horovod_elastic.platforms.base import BaseState


@dataclass
class LeaseHandle:
    """A lease that is sure, or not."""

    sure: bool = True
    term: int = 1

    def certain(self) -> bool:
        return self.sure

    def pass_to(self, successor: str) -> None:
        raise AssertionError("nobody hands over")

    def end(self, exit_code: int) -> None:
        raise AssertionError("nothing ends")


@dataclass
class Watched:
    """A job that trains on a base and two satellites, all of them heard at 0."""

    world: World
    links: AgentLinks
    lease: LeaseHandle
    attendance: Attendance

    def given_up(self, now: float) -> list[str]:
        """The agents that are given up now, as the leader does it: one after the other."""
        found = []
        for name, _ in self.attendance.lost(now):
            del self.links.by_name[name]
            self.world.lose(name)
            found.append(name)
        return found


@pytest.fixture
def job() -> Watched:
    world, links, lease = training_world({"b1": 1}, "s1", "s2"), AgentLinks(), LeaseHandle()
    for name in ("b1", "s1", "s2"):
        links.by_name[name] = AgentLink(queue.SimpleQueue(), name == "b1", 1, name, heard_at=0.0)
    watch = BaseWatch(lambda: BaseState.RUNS, lambda event: event())
    attendance = Attendance(links, world.members, lease, watch, ["b1"], inherited=False, since=0.0)
    return Watched(world, links, lease, attendance)


def test_an_agent_whose_stream_broke_may_come_back_for_a_while(job: Watched) -> None:
    job.links.by_name["s1"].lost_at = 1.0
    assert job.given_up(BACK_WITHIN_S) == []
    assert job.given_up(1.0 + BACK_WITHIN_S + 0.1) == ["s1"]


def test_an_agent_that_was_dismissed_is_not_expected_back(job: Watched) -> None:
    link = job.links.by_name["s1"]
    link.dismissed = True
    assert job.given_up(1.0) == []
    link.lost_at = 1.0
    assert job.given_up(1.0) == ["s1"]


def test_when_one_is_given_up_nobody_waits_for_the_others_that_are_away(job: Watched) -> None:
    """The generation is broken by then: it cannot go on until they are given up."""
    job.links.by_name["s1"].lost_at, job.links.by_name["s2"].lost_at = 0.0, BACK_WITHIN_S
    assert job.given_up(BACK_WITHIN_S + 0.1) == ["s1", "s2"]


def test_a_silent_agent_is_given_up_only_under_a_lease_that_is_sure(job: Watched) -> None:
    for name in ("b1", "s1"):
        job.links.by_name[name].heard_at = SILENCE_BOUND_S
    job.lease.sure = False
    assert job.given_up(SILENCE_BOUND_S + 1) == []
    job.lease.sure = True
    assert job.given_up(SILENCE_BOUND_S + 1) == ["s2"]


def test_of_a_suspended_base_nobody_is_given_up(job: Watched) -> None:
    job.world.obey(job.world.members.stand_still(True, 0.0))
    assert job.given_up(SILENCE_BOUND_S + 1) == ["s1", "s2"]


def test_nobody_was_silent_while_the_leader_itself_did_not_run(job: Watched) -> None:
    job.attendance.tick(SILENCE_BOUND_S + STALL_S)
    assert job.given_up(SILENCE_BOUND_S + STALL_S) == []
