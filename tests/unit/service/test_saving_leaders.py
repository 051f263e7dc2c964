"""Checkpoints that the controller's thread asks leaders for, and what it hears of them."""

from __future__ import annotations

import asyncio
import time

from says import says

from flexo.control.leaders import Saved
from flexo.model.elastic import LeaderReport
from flexo.model.queue import JobKey
from flexo.model.ranges import Range
from flexo.service.leader_registry import LeaderConnection, LeaderRegistry
from flexo.service.pending_commands import CheckpointOrder, Command, CommandOutcome, ProfileOrder, Result
from flexo_protos.resources import Resources

KEY = JobKey(7)
REPORT = LeaderReport(KEY, 1000, Range(2, 8), Resources(1, 1), ("n1",), 2, 1, 10, True, ())


async def heard(registry: LeaderRegistry) -> tuple[Saved, ...]:
    until = time.monotonic() + 20
    while not (saved := registry.take_saved()):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    return saved


def on_the_desk(answer: CommandOutcome | None, *, busy: bool = False) -> tuple[Saved, ...]:
    """What is heard when a leader answers so, or goes away (None)."""

    async def ask() -> tuple[Saved, ...]:
        registry, line = LeaderRegistry(), LeaderConnection(REPORT, "peer")
        registry.attach(line)
        registry.wake.clear()
        if busy:
            line.begin(ProfileOrder(Range(1, 2), 0))
        await asyncio.to_thread(registry.save, KEY, "/scratch/ada/flexo-7.pt")
        if not busy:
            command = await line.next_to_tell()
            assert isinstance(command, Command)
            assert command.order == CheckpointOrder("/scratch/ada/flexo-7.pt")
            if answer is None:
                registry.detach(line)
            else:
                line.hear(command.command_id, answer)
        saved = await heard(registry)
        assert registry.wake.is_set()
        return saved

    return asyncio.run(ask())


def test_a_written_checkpoint_is_told_in_the_leaders_words():
    assert on_the_desk(CommandOutcome(Result.DONE, "wrote it")) == (Saved(KEY, "wrote it"),)


def test_a_checkpoint_that_came_to_nothing_is_told_too():
    (saved,) = on_the_desk(CommandOutcome(Result.FAILED, "the disk is full"))
    assert says(saved.text, "no checkpoint", "the disk is full")


def test_a_leader_that_goes_away_meanwhile_is_told():
    (saved,) = on_the_desk(None)
    assert says(saved.text, "gone")


def test_a_leader_that_has_something_else_to_do_is_told():
    (saved,) = on_the_desk(None, busy=True)
    assert "something to do already" in saved.text


def test_a_job_without_a_leader_writes_nothing():
    registry = LeaderRegistry()
    registry.save(JobKey(9), "/scratch/ada/flexo-9.pt")
    (saved,) = registry.take_saved()
    assert saved.job == JobKey(9)
    assert "no leader attached" in saved.text
