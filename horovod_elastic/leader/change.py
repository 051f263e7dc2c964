"""One attempt to bring a job from one generation to the next, in two phases. Pure.

First everybody who is to be in the next generation builds its communicator, in the background if it trains
(*prepare*). When all have, those who train agree on a mini-batch boundary: the leader asks rank 0 where it is
(t_cur), proposes t_cur + k, and everybody who trains promises not to pass that boundary without a word.
Somebody who had passed it already says so: then the proposal is withdrawn and k doubled. When all have
promised, the word is given. So all switch at the same boundary, without a collective for it in every
mini-batch.

Amoeba, section 5.2: "a future time-stamp after which all processes should switch", t_cur + k, k = 2.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

K = 2
"""Mini-batches between rank 0's present one and the one at which everybody switches (Amoeba, section 5.2)."""
LARGEST_K = 1024
PREPARE_BOUND_S = 30.0
"""How long the communicator of the next generation may take."""
PROMISE_BOUND_S = 10.0
"""How long the answers to a question or a proposal may take."""


class Stage(enum.Enum):
    """How far the attempt is."""

    PREPARING = "preparing"
    ASKING = "asking"
    PROPOSED = "proposed"
    AGREED = "agreed"


@dataclass
class Change:
    """One attempt. `members` are those of the next generation, `holders` those who train meanwhile."""

    generation: int
    members: tuple[str, ...]
    holders: tuple[str, ...]
    deadline: float
    stage: Stage = Stage.PREPARING
    at: int = 0
    k: int = K
    prepared: set[str] = field(default_factory=set)
    promised: set[str] = field(default_factory=set)

    @property
    def planned(self) -> bool:
        """Whether training goes on meanwhile."""
        return bool(self.holders)

    def has_prepared(self, worker_id: str, now: float) -> bool:
        """A member's communicator stands; whether that was the last one."""
        self.prepared.add(worker_id)
        if self.stage is not Stage.PREPARING or not self.prepared.issuperset(self.members):
            return False
        self.stage = Stage.ASKING if self.planned else Stage.AGREED
        self.deadline = now + PROMISE_BOUND_S
        return True

    def propose(self, boundary: int, now: float) -> int:
        """Rank 0 stands at `boundary`: the boundary to be proposed."""
        self.stage, self.at = Stage.PROPOSED, boundary + self.k
        self.promised.clear()
        self.deadline = now + PROMISE_BOUND_S
        return self.at

    def has_promised(self, worker_id: str) -> bool:
        """A holder will not pass `at`; whether that was the last one."""
        self.promised.add(worker_id)
        if not self.promised.issuperset(self.holders):
            return False
        self.stage = Stage.AGREED
        return True

    def was_passed(self, now: float) -> None:
        """Somebody is beyond `at`: ask again, and look further ahead."""
        self.k = min(LARGEST_K, self.k * 2)
        self.stage = Stage.ASKING
        self.deadline = now + PROMISE_BOUND_S
