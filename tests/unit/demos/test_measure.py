"""What the demo reads from workers' logs, with logs made up here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from flexo_demos.elastic.measure import (
    Balance,
    Course,
    EpochPlan,
    WorkerLog,
    balance,
    course,
    find_worlds,
    loss_curve,
    parse_worker_log,
)

pytestmark = pytest.mark.thorough

PLAN = EpochPlan(epochs=2, batch=4, train_samples=10)  # 3 steps an epoch, the last with 2 samples
STEPS_PER_EPOCH = 3
STEP_S = 0.1


@dataclass
class MadeUpRun:
    """Writes the logs that a run would have left; steps take 0.1 s."""

    now: float = 1000.0
    lines: dict[str, list[str]] = field(default_factory=dict)

    def world(self, workers: str, steps: Iterable[int], pause_s: float = 0.0) -> None:
        """`workers` (a letter each, in order of rank) train `steps`, after standing still for `pause_s`."""
        todo = list(steps)
        for rank, worker in enumerate(workers):
            self.enter(worker, rank, len(workers), todo[0] if todo else 0, self.now + rank / 1000)
        self.now += pause_s
        for step in todo:
            self.now += STEP_S
            for rank, worker in enumerate(workers):
                self.commit(worker, rank, len(workers), step)

    def enter(self, worker: str, rank: int, size: int, step: int, at: float) -> None:
        line = {"event": "enter", "time": at, "pid": 1, "rank": rank, "size": size, "step": step}
        self.lines.setdefault(worker, []).append(json.dumps(line))

    def commit(self, worker: str, rank: int, size: int, step: int) -> None:
        epoch, batch = divmod(step, STEPS_PER_EPOCH)
        samples = list(range(PLAN.train_samples))[batch * PLAN.batch : (batch + 1) * PLAN.batch][rank::size]
        line = {"event": "commit", "time": self.now, "pid": 1, "rank": rank, "size": size, "epoch": epoch,
                "batch": batch, "step": step, "loss": 0.5, "samples": samples}  # fmt: skip
        self.lines.setdefault(worker, []).append(json.dumps(line))

    def logs(self) -> list[WorkerLog]:
        return [parse_worker_log(worker, "\n".join(lines) + "\n") for worker, lines in self.lines.items()]

    def balance(self) -> Balance:
        return balance(self.logs(), PLAN)

    def course(self) -> Course:
        went = course(self.logs())
        assert went is not None
        return went


def test_a_run_that_grows_and_shrinks_cleanly_has_nothing_lost_and_nothing_repeated() -> None:
    run = MadeUpRun()
    run.world("a", [0, 1])
    run.world("abc", [2, 3], pause_s=0.4)
    run.world("ab", [4, 5], pause_s=0.2)
    done, went = run.balance(), run.course()
    assert went.sizes == (1, 3, 2)
    assert (done.batches_planned, done.batches_committed) == (6, 6)
    assert (done.batches_lost, done.batches_repeated, done.batches_half_logged) == (0, 0, 0)
    assert (done.samples_lost, done.samples_repeated) == (0, 0)
    assert all(resize.clean for resize in went.resizes)


def test_pauses_are_the_gap_between_commits_of_those_who_stayed_less_the_median_step() -> None:
    run = MadeUpRun()
    run.world("a", [0, 1, 2])
    run.world("ab", [3, 4], pause_s=0.4)
    run.world("a", [5], pause_s=0.2)
    went = run.course()
    assert went.median_step_s == pytest.approx(STEP_S)
    assert went.pauses_out_s == pytest.approx((0.4,))
    assert went.pauses_in_s == pytest.approx((0.2,))


def test_the_slowest_of_those_who_stayed_counts_and_newcomers_do_not() -> None:
    run = MadeUpRun()
    run.world("ab", [0, 1])
    run.now += 0.3
    run.enter("a", 0, 3, 2, run.now)
    run.enter("b", 1, 3, 2, run.now)
    run.enter("c", 2, 3, 2, run.now)
    run.commit("a", 0, 3, 2)
    run.now += 0.5
    run.commit("b", 1, 3, 2)
    run.now += 9
    run.commit("c", 2, 3, 2)
    assert run.course().pauses_out_s == pytest.approx((0.3 + 0.5 - STEP_S,))


def test_a_step_that_no_world_committed_is_lost_with_its_samples() -> None:
    run = MadeUpRun()
    run.world("a", [0, 1])
    run.world("ab", [3, 4, 5])
    done, went = run.balance(), run.course()
    assert done.batches_lost == 1
    assert done.batches_committed == 5
    assert done.samples_lost == 2  # step 2 is the short batch of the first epoch
    assert not went.resizes[0].clean


def test_steps_that_were_never_reached_are_lost() -> None:
    run = MadeUpRun()
    run.world("a", [0, 1])
    assert run.balance().batches_lost == 4


def test_a_step_that_two_worlds_committed_is_repeated_and_so_are_its_samples() -> None:
    run = MadeUpRun()
    run.world("a", [0, 1, 2])
    run.world("ab", [2, 3, 4, 5])
    done, went = run.balance(), run.course()
    assert done.batches_repeated == 1
    assert done.batches_lost == 0
    assert done.samples_repeated == 2
    assert not went.resizes[0].clean


def test_a_step_done_twice_in_one_world_is_repeated() -> None:
    run = MadeUpRun()
    run.world("ab", [0, 1, 1, 2, 3, 4, 5])
    assert run.balance().batches_repeated == 1


def test_a_step_that_one_rank_lacks_and_nobody_went_on_from_is_lost() -> None:
    run = MadeUpRun()
    run.world("ab", [0, 1, 2, 3, 4])
    run.commit("a", 0, 2, 5)
    done = run.balance()
    assert done.batches_half_logged == 1
    assert done.batches_lost == 1


def test_a_step_half_logged_in_a_crash_counts_when_the_next_world_went_on_after_it() -> None:
    run = MadeUpRun()
    run.world("ab", [0, 1])
    run.commit("a", 0, 2, 2)  # b was killed before it could write
    run.world("a", [3, 4, 5])
    done, went = run.balance(), run.course()
    assert done.batches_half_logged == 1
    assert (done.batches_lost, done.batches_repeated) == (0, 0)
    assert not went.resizes[0].clean


def test_a_step_half_logged_in_a_crash_and_done_again_is_committed_once() -> None:
    run = MadeUpRun()
    run.world("ab", [0, 1])
    run.commit("a", 0, 2, 2)
    run.world("a", [2, 3, 4, 5])
    done = run.balance()
    assert (done.batches_lost, done.batches_repeated) == (0, 0)
    assert done.batches_half_logged == 1


def test_a_rank_whose_log_is_missing_altogether_leaves_its_steps_uncommitted() -> None:
    run = MadeUpRun()
    run.world("ab", range(6))
    del run.lines["b"]
    done = run.balance()
    assert done.batches_committed == 0
    assert done.batches_half_logged == 6


def test_a_sample_that_a_worker_swapped_for_another_is_both_lost_and_repeated() -> None:
    run = MadeUpRun()
    run.world("a", range(6))
    run.lines["a"][1] = run.lines["a"][1].replace("[0, 1, 2, 3]", "[0, 1, 2, 9]")
    done = run.balance()
    assert done.batches_lost == 0
    assert (done.samples_lost, done.samples_repeated) == (1, 1)


def test_torn_and_foreign_lines_are_counted_and_the_rest_is_read() -> None:
    run = MadeUpRun()
    run.world("a", [0, 1])
    text = "\n".join([*run.lines["a"], "[]", "null", '{"event": "commit", "time": 10'])
    log = parse_worker_log("a", text)
    assert log.unreadable == 3
    assert [commit.step for commit in log.stints[0].commits] == [0, 1]


def test_a_commit_before_any_enter_line_is_unreadable() -> None:
    run = MadeUpRun()
    run.commit("a", 0, 1, 0)
    assert parse_worker_log("a", run.lines["a"][0]) == WorkerLog((), 1)


def test_a_change_of_workers_in_which_nothing_was_committed_is_no_world() -> None:
    run = MadeUpRun()
    run.world("a", [0, 1])
    run.enter("a", 0, 2, 2, run.now)
    run.enter("b", 1, 2, 2, run.now)
    run.now += 0.01
    run.world("abc", [2, 3, 4, 5], pause_s=0.3)
    went = run.course()
    assert went.sizes == (1, 3)
    assert went.pauses_out_s == pytest.approx((0.31,))


def test_two_worlds_of_equal_size_at_the_same_step_are_told_apart_by_their_workers() -> None:
    run = MadeUpRun()
    run.world("ab", [0])
    run.now += 1
    run.world("ac", [1, 2, 3, 4, 5])
    worlds = find_worlds(stint for log in run.logs() for stint in log.stints)
    assert [[stint.worker for stint in world.stints] for world in worlds] == [["a", "b"], ["a", "c"]]


def test_a_change_of_workers_at_equal_size_is_neither_growth_nor_shrink() -> None:
    run = MadeUpRun()
    run.world("ab", [0, 1, 2])
    run.world("ac", [3, 4, 5], pause_s=0.3)
    went = run.course()
    assert went.sizes == (2, 2)
    assert went.pauses_out_s == went.pauses_in_s == ()


def test_a_run_before_its_first_batch_has_no_course_and_everything_to_do() -> None:
    logs = [WorkerLog((), 0)]
    assert course(logs) is None
    assert (balance(logs, PLAN).batches_lost, balance(logs, PLAN).samples_lost) == (6, 20)


def test_the_loss_of_a_step_is_the_sum_of_its_ranks_parts() -> None:
    run = MadeUpRun()
    run.world("a", [0])
    run.world("ab", [1])
    assert [loss for _, loss in loss_curve(run.logs())] == [0.5, 1.0]


@pytest.mark.parametrize(("batch", "steps"), [(1437, 1), (48, 30), (1, 1437), (1500, 1)])
def test_the_plan_counts_the_short_last_batch_of_an_epoch(batch: int, steps: int) -> None:
    assert EpochPlan(epochs=3, batch=batch, train_samples=1437).steps == 3 * steps
