"""A gang: containers that a job needs all at once, which YARN, without gangs, allocates one by one.

Two jobs could each hold half of what both need, and neither would ever start. So a gang that is incomplete at
its timeout releases all its containers, backs off for a random time, and asks again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.application_master import Ask, HeartbeatResult
from flexo_yarn.records import container_text

TIMEOUT_S: Final = 60.0
"""The longest time from the first container of an incomplete gang until it releases all, in seconds."""
SHORTEST_BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 120.0
"""Limits of a backoff in seconds. The upper limit of the random backoff doubles with each attempt."""


class Master(Protocol):
    """What a gang needs of its ApplicationMaster (flexo_yarn.application_master)."""

    def ask(self, ask: Ask) -> None:
        """See ApplicationMaster.ask."""
        ...

    def withdraw(self, priority: int) -> None:
        """See ApplicationMaster.withdraw."""
        ...

    def release(self, containers: list[pb.ContainerId]) -> None:
        """See ApplicationMaster.release."""
        ...


def random_backoff_s(attempt: int) -> float:
    """The random backoff after the attempt with this number (from 0), in seconds."""
    return random.uniform(0.5, 1.0) * min(LONGEST_BACKOFF_S, SHORTEST_BACKOFF_S * 2.0**attempt)


class Gang:
    """One container for each of `asks`, all of them or none. The caller passes each heartbeat's result to
    `handle`.

    Each ask has a priority of its own, and is for one container. Times are in seconds, of any clock that only
    goes forward. `backoff_s`: the backoff after an attempt.
    """

    def __init__(
        self,
        master: Master,
        asks: Sequence[Ask],
        *,
        timeout_s: float = TIMEOUT_S,
        backoff_s: Callable[[int], float] = random_backoff_s,
    ) -> None:
        self.attempts = 0
        """The number of attempts that were given up."""
        self._master = master
        self._asks = {ask.priority: ask for ask in asks}
        self._timeout_s = timeout_s
        self._backoff_s = backoff_s
        self._held: dict[int, pb.Container] = {}
        """By priority."""
        self._deadline: float | None = None
        """When this attempt is given up; None while it holds nothing."""
        self._backs_off_until: float | None = None
        self._ask_for_all()

    @property
    def containers(self) -> tuple[pb.Container, ...]:
        """The containers of the complete gang, by priority; () before."""
        return tuple(self._held[each] for each in sorted(self._held)) if self.is_complete else ()

    @property
    def is_complete(self) -> bool:
        """Whether all containers are there."""
        return len(self._held) == len(self._asks)

    def handle(self, answer: HeartbeatResult, now: float) -> None:
        """Take what a heartbeat has brought, and give up or begin an attempt if it is time."""
        self._take(answer)
        if self.is_complete:
            self._deadline = None
        elif self._backs_off_until is not None:
            if now >= self._backs_off_until:
                self._backs_off_until = None
                self._ask_for_all()
        elif not self._held:
            self._deadline = None
        elif self._deadline is None:
            self._deadline = now + self._timeout_s
        elif now >= self._deadline:
            self._give_up(now)

    def _take(self, answer: HeartbeatResult) -> None:
        """Note allocated and lost containers. Ask again for those that an incomplete gang has lost."""
        allocated = [each for each in answer.allocated if each.priority.priority in self._asks]
        if self._backs_off_until is not None:  # on their way while the request was withdrawn
            self._master.release([each.id for each in allocated])
            return
        complete = self.is_complete
        self._held.update({each.priority.priority: each for each in allocated})
        ended = {container_text(each.container_id) for each in answer.completed}
        for priority in [each for each, held in self._held.items() if container_text(held.id) in ended]:
            del self._held[priority]
            if not complete:
                self._master.ask(self._asks[priority])

    def _ask_for_all(self) -> None:
        for ask in self._asks.values():
            self._master.ask(ask)

    def _give_up(self, now: float) -> None:
        for priority in self._asks:
            self._master.withdraw(priority)
        self._master.release([each.id for each in self._held.values()])
        self._held.clear()
        self._deadline = None
        self._backs_off_until = now + self._backoff_s(self.attempts)
        self.attempts += 1
