"""What leaders hear of a flexod that is one of several: its epoch, and nothing once it has been replaced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
from service_doubles import end_of, hello, house, slurm_job

from flexo.clusters.base import MayNotAct
from flexo.control.leaders import GrantOffer, Orders
from flexo.model.queue import JobKey

OFFER = GrantOffer("g1", "n2", 3, "flex", 300, 40)


@dataclass
class Turn:
    """A mandate that a test ends."""

    epoch: int = 7
    held: bool = True

    def holds(self) -> bool:
        return self.held

    def check(self) -> None:
        if not self.held:
            raise MayNotAct("replaced")


def test_each_message_says_of_which_epoch_it_is_and_none_comes_after_the_turn() -> None:
    async def story() -> None:
        turn = Turn()
        async with house(slurm_job(), leadership=turn) as h:
            call = h.dial()
            await call.write(hello())
            assert (await call.read()).epoch == 7
            h.registry.tell(JobKey(7), Orders((OFFER,), 0))
            granted = await call.read()
            assert (granted.epoch, len(granted.grants.grants)) == (7, 1)
            turn.held = False
            h.registry.tell(JobKey(7), Orders((), 0))
            code, text = await end_of(call)
            assert (code, "not the active one" in text) == (grpc.StatusCode.UNAVAILABLE, True)

    asyncio.run(asyncio.wait_for(story(), 60))
