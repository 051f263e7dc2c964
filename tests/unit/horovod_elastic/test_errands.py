"""What flexod has a leader do: one thing at a time, and an answer whatever happens."""

from __future__ import annotations

import pytest
from says import says

from flexo_protos.v1 import jobs_pb2 as pb
from flexo_protos.v1 import tasks_pb2, workers_pb2
from horovod_elastic.leader.pending_commands import Effect, Limit, PendingCommands, Say, Tell, Training
from horovod_elastic.leader.profiling import OPTED_OUT, WARM_UP_BATCHES

Outcome = pb.CommandDone
TWO = Training(3, ("a", "b"))


def profile(low: int = 1, high: int = 2, number: int = 5) -> pb.Command:
    return pb.Command(
        id=number, profile=pb.ProfileCommand(workers=pb.WorkerRange(min=low, max=high), batches=4)
    )


def checkpoint(path: str = "/a/b", number: int = 6) -> pb.Command:
    return pb.Command(id=number, checkpoint=pb.CheckpointCommand(path=path))


def ends(effects: list[Effect]) -> list[tuple[int, int, str]]:
    said = [effect.message for effect in effects if isinstance(effect, Say)]
    dones = [message.command_done for message in said if message.HasField("command_done")]
    return [(done.id, done.outcome, done.text) for done in dones]


def limits(effects: list[Effect]) -> list[int | None]:
    return [effect.workers for effect in effects if isinstance(effect, Limit)]


def status(generation: int, boundary: int, batches: int) -> workers_pb2.WorkerStatus:
    steps = workers_pb2.StepTimes(own_s=[0.1] * batches, wall_s=[0.12] * batches, samples=8)
    return workers_pb2.WorkerStatus(generation=generation, boundary=boundary, steps=steps)


def measured(commands: PendingCommands, training: Training, first: int = 0) -> list[Effect]:
    effects: list[Effect] = []
    for worker in training.workers:
        for boundary in range(first + 1, first + WARM_UP_BATCHES + 6):
            effects += commands.stands(worker, status(training.generation, boundary, 1), 1.0)
    return effects


def test_a_profile_goes_through_its_sizes_and_ends_with_all_workers_again() -> None:
    commands = PendingCommands(profiling_allowed=True)
    begun = commands.asked(profile(), TWO, 0.0)
    assert limits(begun) == [2]
    assert commands.under_way == "profile of 1-2 workers"
    assert limits(measured(commands, TWO, first=700)) == [1]
    one = Training(4, ("a",))
    assert [message.message.command_progress.text for message in commands.trains(one, 2.0)] == [
        "trains with 1"
    ]
    effects = measured(commands, one)
    assert limits(effects) == [None]
    (end,) = ends(effects)
    assert end == (5, Outcome.OUTCOME_DONE, "")
    done = effects[-1].message.command_done
    assert [(point.workers, point.efficiency) for point in done.points] == [(1, 1.0), (2, 1.0)]
    assert commands.under_way == ""


def test_a_checkpoint_is_rank_0_s_task_and_its_word_the_answer() -> None:
    commands = PendingCommands(profiling_allowed=True)
    (tell,) = commands.asked(checkpoint(), TWO, 0.0)
    assert isinstance(tell, Tell)
    assert (tell.worker_id, tell.task.id, tell.task.write_checkpoint.path) == ("a", 6, "/a/b")
    assert commands.task_done("b", tasks_pb2.TaskDone(id=6)) == []
    done = tasks_pb2.TaskDone(id=6, text="written")
    assert ends(commands.task_done("a", done)) == [(6, Outcome.OUTCOME_DONE, "written")]
    assert commands.task_done("a", done) == []


def test_a_checkpoint_that_cannot_be_written_fails_with_the_worker_s_sentence() -> None:
    commands = PendingCommands(profiling_allowed=True)
    commands.asked(checkpoint(), TWO, 0.0)
    failed = commands.task_done("a", tasks_pb2.TaskDone(id=6, failure="the disk is full"))
    assert ends(failed) == [(6, Outcome.OUTCOME_FAILED, "the disk is full")]


def test_a_checkpoint_whose_writer_dies_fails() -> None:
    commands = PendingCommands(profiling_allowed=True)
    commands.asked(checkpoint(), TWO, 0.0)
    assert commands.worker_gone("b") == []
    ((_, outcome, text),) = ends(commands.worker_gone("a"))
    assert outcome == Outcome.OUTCOME_FAILED
    assert "try again" in text


@pytest.mark.parametrize("second", [profile(number=9), checkpoint(number=9)])
def test_what_comes_while_something_is_under_way_is_told_to_come_again(second: pb.Command) -> None:
    commands = PendingCommands(profiling_allowed=True)
    commands.asked(profile(), TWO, 0.0)
    ((number, outcome, text),) = ends(commands.asked(second, TWO, 1.0))
    assert (number, outcome) == (9, Outcome.OUTCOME_BUSY)
    assert says(text, "profile of 1-2 workers", "try again")
    assert commands.under_way == "profile of 1-2 workers"


@pytest.mark.parametrize("command", [profile(), checkpoint()])
def test_while_the_workers_change_everything_is_told_to_come_again(command: pb.Command) -> None:
    commands = PendingCommands(profiling_allowed=True)
    training = Training(3, ("a", "b"), changing=True)
    ((_, outcome, _),) = ends(commands.asked(command, training, 0.0))
    assert outcome == Outcome.OUTCOME_BUSY
    assert commands.under_way == ""


@pytest.mark.parametrize("command", [profile(), checkpoint()])
def test_before_its_training_loop_nothing_can_be_done(command: pb.Command) -> None:
    ((_, outcome, text),) = ends(PendingCommands(profiling_allowed=True).asked(command, Training(0, ()), 0.0))
    assert outcome == Outcome.OUTCOME_FAILED
    assert "training loop" in text


def test_a_user_who_has_turned_profiling_off_is_not_profiled_but_checkpointed() -> None:
    commands = PendingCommands(profiling_allowed=False)
    assert ends(commands.asked(profile(), TWO, 0.0)) == [(5, Outcome.OUTCOME_FAILED, OPTED_OUT)]
    assert isinstance(commands.asked(checkpoint(), TWO, 0.0)[0], Tell)


@pytest.mark.parametrize("path", ["model.pt", "", "/a\\0b".replace("\\0", "\0"), "/" + "a" * 5000])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    ((_, outcome, _),) = ends(PendingCommands(profiling_allowed=True).asked(checkpoint(path), TWO, 0.0))
    assert outcome == Outcome.OUTCOME_FAILED


def test_a_profile_that_nobody_waits_for_ends_at_once() -> None:
    commands = PendingCommands(profiling_allowed=True)
    commands.asked(profile(), TWO, 0.0)
    assert commands.asked(pb.Command(id=4, cancel=pb.CancelCommand()), TWO, 1.0) == []
    effects = commands.asked(pb.Command(id=5, cancel=pb.CancelCommand()), TWO, 1.0)
    assert limits(effects) == [None]
    assert commands.under_way == ""


def test_a_profile_of_a_job_that_stands_still_ends_and_says_so() -> None:
    commands = PendingCommands(profiling_allowed=True)
    commands.asked(profile(2, 2), TWO, 0.0)
    assert commands.tick(100.0) == []
    effects = commands.tick(10_000.0)
    assert limits(effects) == [None]
    ((_, outcome, text),) = ends(effects)
    assert outcome == Outcome.OUTCOME_FAILED
    assert says(text, "2 workers", "no mini-batch")
