"""What a leader in a satellite makes of a base that says nothing."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable

import pytest

from horovod_elastic.leader.base_watch import ANSWER_BOUND_S, BACK_WITHIN_S, POLL_INTERVAL_S, BaseWatch
from horovod_elastic.platforms.base import BaseState, Refused

RUNS, SUSPENDED, ENDED = BaseState.RUNS, BaseState.SUSPENDED, BaseState.ENDED


class World:
    """Slurm answers in turn, when it is asked; an exception is raised."""

    def __init__(self, answers: Iterable[BaseState | Exception]) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.watch = BaseWatch(self.ask, self.posted.put)

    def ask(self) -> BaseState:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def silent(self, now: float) -> bool:
        """One look, whose answer is awaited; whether the base is waited for then."""
        asked = self.asked
        self.watch.look(True, now)
        if self.watch._asking or self.asked > asked:
            self.posted.get(timeout=10)()
        return self.watch.waited_for(now)


def test_a_base_that_is_heard_is_not_asked_about() -> None:
    world = World([])
    world.watch.look(False, 0.0)
    assert not world.watch.waited_for(0.0)
    assert world.asked == 0


def test_a_base_is_waited_for_until_slurm_has_answered_but_not_for_ever() -> None:
    world = World([RUNS])
    world.watch.look(True, 100.0)
    assert world.watch.waited_for(100.0)
    assert world.watch.waited_for(100.0 + ANSWER_BOUND_S - 1)
    assert not world.watch.waited_for(100.0 + ANSWER_BOUND_S + 1)


@pytest.mark.parametrize("answer", [RUNS, Refused("no answer"), ValueError("nobody foresaw this")])
def test_a_base_that_runs_and_says_nothing_is_not_waited_for(answer: BaseState | Exception) -> None:
    """Its nodes are lost."""
    assert not World([answer]).silent(100.0)


def test_a_suspended_base_is_waited_for_until_it_is_heard_again() -> None:
    world = World([SUSPENDED, SUSPENDED, Refused("slurmctld restarts"), SUSPENDED])
    assert all(world.silent(100.0 + look * POLL_INTERVAL_S) for look in range(4))
    assert world.silent(100.0 + 3.1 * POLL_INTERVAL_S)
    assert world.asked == 4, "seldom"
    world.watch.look(False, 200.0)
    assert not world.watch.waited_for(200.0)


def test_a_base_that_was_resumed_and_is_not_heard_is_waited_for_a_little() -> None:
    world = World([SUSPENDED, RUNS, RUNS, RUNS, RUNS])
    assert world.silent(100.0)
    assert world.silent(105.0)
    assert world.silent(105.0 + BACK_WITHIN_S - 1)
    assert not world.silent(105.0 + BACK_WITHIN_S + 1)


def test_a_base_that_slurm_has_ended_is_told_from_one_that_may_go_on() -> None:
    world = World([SUSPENDED, ENDED])
    world.silent(100.0)
    assert not world.watch.ended
    assert not world.silent(110.0)
    assert world.watch.ended


def test_an_answer_about_a_silence_that_is_over_counts_for_nothing() -> None:
    world = World([ENDED])
    world.watch.look(True, 100.0)
    answer = world.posted.get(timeout=10)
    world.watch.look(False, 101.0)
    answer()
    assert not world.watch.ended
