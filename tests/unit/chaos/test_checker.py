"""What the chaos checker finds in logs that are made up here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from chaos.checker import Verdict, check, record
from chaos.plan import SEEDS, Deed, Victim, plan
from says import says

pytestmark = pytest.mark.thorough

SAMPLES = 12
"""Of an epoch; a worker takes 2 a step."""


@dataclass
class Story:
    """Writes the logs of a job; `offset` is where the epoch stands."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    now: float = 100.0
    worlds: int = 0
    end: dict[str, int] = field(default_factory=dict)

    def world(self, workers: Iterable[int], first_step: int, steps: Iterable[list[int]]) -> Story:
        """Workers (their pids) train `steps`: each a list of samples, dealt out by rank."""
        self.worlds += 1
        members = list(workers)
        place = {"world": f"w{self.worlds}", "size": len(members)}
        for rank, pid in enumerate(members):
            self.log("enter", pid, **place, rank=rank, step=first_step)
        for step, samples in enumerate(steps, first_step + 1):
            for rank, pid in enumerate(members):
                share = samples[rank :: len(members)]
                self.log("batch", pid, **place, rank=rank, step=step, epoch=(step - 1) // 3, samples=share)
        return self

    def begun_only_by(self, pid: int, rank: int, step: int, samples: list[int]) -> Story:
        """One of two workers of the present world has begun a step, and the other has not."""
        place = {"world": f"w{self.worlds}", "size": 2}
        self.log("batch", pid, **place, rank=rank, step=step, epoch=0, samples=samples)
        return self

    def committed(self, pid: int, step: int) -> Story:
        self.log("commit", pid, world=f"w{self.worlds}", step=step)
        return self

    def done(self, workers: Iterable[int], step: int, total: int, parameters: str = "same") -> Story:
        for pid in workers:
            self.log("done", pid, step=step, epochs=1, total=total, parameters=parameters)
        return self

    def log(self, event: str, pid: int, **fields: Any) -> None:
        self.now += 0.01
        self.lines.append({"event": event, "time": self.now, "pid": pid, **fields})

    def judged(self, struck_at: float = 0.0) -> Verdict:
        return check(record(self.lines), SAMPLES, struck_at)


ALL = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
TOTAL = sum(range(SAMPLES))


def test_an_undisturbed_epoch_is_well() -> None:
    told = Story().world([1, 2], 0, ALL).done([1, 2], 3, TOTAL).judged()
    assert told.wrong == ()
    assert (told.steps, told.epochs, told.worlds, told.rolled_back) == (3, 1, 1, 0)


def test_what_was_rolled_back_does_not_count_and_what_replaced_it_does() -> None:
    story = Story().world([1, 2], 0, ALL[:2]).committed(1, 1).committed(2, 1)
    told = story.world([1], 1, [[4, 5, 6, 7], [8, 9, 10, 11]]).done([1], 3, TOTAL).judged()
    assert told.wrong == ()
    assert told.rolled_back == 1


def test_a_step_that_not_all_have_begun_cannot_have_counted() -> None:
    story = Story().world([1, 2], 0, ALL[:1]).begun_only_by(1, 0, 2, [4, 6])
    told = story.world([1], 1, ALL[1:]).done([1], 3, TOTAL).judged()
    assert told.wrong == ()
    assert told.rolled_back == 0


def test_samples_that_nobody_trained_on_are_found() -> None:
    told = Story().world([1], 0, [*ALL[:2], [8, 9, 10]]).done([1], 3, TOTAL - 11).judged()
    [wrong] = told.wrong
    assert says(wrong, "epoch 0", "1 samples", "0 more than once")


def test_samples_that_were_trained_on_twice_are_found() -> None:
    told = Story().world([1], 0, [*ALL[:2], [8, 9, 10, 11, 0]]).done([1], 3, TOTAL).judged()
    [wrong] = told.wrong
    assert says(wrong, "epoch 0", "0 samples", "1 more than once")


def test_going_back_behind_the_last_commit_of_a_survivor_is_found() -> None:
    story = Story().world([1, 2], 0, ALL[:2]).committed(1, 2)
    told = story.world([1], 1, ALL[1:]).done([1], 3, TOTAL).judged()
    [wrong] = told.wrong
    assert says(wrong, "back to step 1", "2 was committed")


def test_a_commit_of_a_worker_that_died_may_be_lost() -> None:
    story = Story().world([1, 2], 0, ALL[:2]).committed(2, 2)
    assert story.world([1], 1, ALL[1:]).done([1], 3, TOTAL).judged().wrong == ()


def test_steps_that_a_planned_change_loses_are_found() -> None:
    story = Story().world([1], 0, ALL[:2]).world([1, 2], 1, ALL[1:]).done([1, 2], 3, TOTAL)
    assert story.judged(struck_at=0.0).wrong == ()
    assert "planned change" in story.judged(struck_at=1e9).wrong[0]


def test_steps_that_a_change_leaves_out_are_found() -> None:
    told = Story().world([1], 0, ALL[:1]).world([1, 2], 2, ALL[2:]).done([1, 2], 3, TOTAL).judged()
    assert says(told.wrong[0], "step 2", 1)


def test_beginning_again_without_anybody_who_has_trained_is_a_restart_and_no_rollback() -> None:
    story = Story().world([1, 2], 0, ALL[:2]).committed(1, 2)
    told = story.world([3, 4], 0, ALL).done([3, 4], 3, TOTAL).judged()
    assert told.wrong == ()
    assert (told.restarts, told.rolled_back) == (1, 0)


def test_beginning_again_with_somebody_who_has_trained_is_no_restart() -> None:
    story = Story().world([1, 2], 0, ALL[:2]).committed(1, 2)
    told = story.world([1, 3], 0, ALL).done([1, 3], 3, TOTAL).judged()
    [wrong] = told.wrong
    assert says(wrong, "back to step 0", "2 was committed")
    assert told.restarts == 0


def test_a_worker_has_nothing_to_do_only_when_there_are_fewer_samples_than_workers() -> None:
    few = [*ALL[:2], [8, 9, 10], [11]]
    story = Story().world([1, 2], 0, few)
    story.lines = [line | {"epoch": 0} if line["event"] == "batch" else line for line in story.lines]
    assert story.done([1, 2], 4, TOTAL).judged().wrong == ()
    told = Story().world([1, 2, 3], 0, [*ALL[:2], [8, 9, 10, 11]])
    for line in told.lines[-3:]:
        line["samples"] = {0: [8, 9], 1: [10, 11], 2: []}[line["rank"]]
    assert "nothing to do" in told.done([1, 2, 3], 3, TOTAL).judged().wrong[0]


def test_a_state_that_does_not_hold_what_was_trained_on_is_found() -> None:
    told = Story().world([1], 0, ALL).done([1], 3, TOTAL + 1).judged()
    assert "summed up" in told.wrong[0]


def test_workers_that_end_differently_or_not_at_all_are_found() -> None:
    story = Story().world([1, 2], 0, ALL)
    [wrong] = story.judged().wrong
    assert says(wrong, "nobody")
    assert says(story.done([1], 3, TOTAL).judged().wrong[0], "1 workers", "of 2")
    assert "different" in story.done([2], 3, TOTAL, "other").judged().wrong[0]


def test_the_seeds_hit_everybody_in_every_way() -> None:
    hit = {(plan(seed).victim, plan(seed).deed) for seed in SEEDS}
    assert len(SEEDS) == 50
    assert hit == {(victim, deed) for victim in Victim for deed in Deed}
    assert plan(7) == plan(7)
