"""What an Aggregator knows of one key: who has pushed what, and which parts are summed. No threads.

Rounds count how often a key has been summed. A node's own workers come first (`node_ready`), then nodes
(`claim`). For each part and round there is one result, computed once: whoever claims a sum makes it, and
until it is made nobody else can claim it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from horovod_elastic.aggregation.memory import (
    Array,
    InputMemory,
    KeyShape,
    ResultMemory,
    both,
    mask_of,
    wide,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A sum that is due: of these summands, in this order, contributed by the ranks in the mask."""

    number: int
    """The round."""
    summands: tuple[int, ...]
    """Ranks, or nodes."""
    mask: bytes


@dataclass(slots=True)
class _Part:
    arrived: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Of each node, the round of the last sum that it pushed, and who contributed."""
    have: dict[int, int] = field(default_factory=dict)
    """The round whose result a node that is connected says to have."""
    received: dict[int, Array] = field(default_factory=dict)
    """Memory for the sums of other nodes."""
    own_round: int = 0
    """The round of this node's own sum."""
    own_mask: bytes = b""
    is_busy: bool = False
    """Whether the result is being written: summed here, or received."""
    claimed: int = 0
    """The last round whose result was claimed here."""
    fetching: tuple[int, int] = (0, 0)
    """The node that was asked for a result, and the result's round. Round 0: nobody was asked."""


class KeyState:
    """The state of one key (see the module). The caller serialises all calls."""

    def __init__(
        self, shape: KeyShape, part_bytes: int, ranks: int, fd: int = -1, *, shared: bool = True
    ) -> None:
        """`ranks`: how many the generation has. `fd`: a predecessor's memory for results. `shared`: whether
        workers are on this node."""
        self.shape = shape
        self.result = ResultMemory(shape, part_bytes, ranks, fd, shared=shared)
        self.parts = [shape.part(number, part_bytes) for number in range(shape.parts(part_bytes))]
        self.inputs: dict[int, InputMemory] = {}
        """The inputs of this node's workers, by rank."""
        self._ranks = ranks
        self._node_round = 0
        self._pushed: dict[int, int] = {}
        self._parts = [_Part() for _ in self.parts]
        self._node_sum: Array | None = None
        self._only: int | None = None
        """The only worker of this node that has contributed to the node's sum: its input is that sum."""
        self._whole = Counter(self.done(part) for part in range(len(self.parts)))
        """How many parts hold the result of a round."""

    # --- this node's workers ------------------------------------------------------------------------------

    def pushes(self, rank: int, number: int) -> None:
        """Note that this worker's input for the round is in its memory."""
        self._pushed[rank] = number

    def node_ready(self, live: Collection[int]) -> Claim | None:
        """The sum of this node's workers, once all of `live` have pushed. Each round is claimed once."""
        waiting = {rank: number for rank, number in self._pushed.items() if number > self._node_round}
        if not live or not all(rank in waiting for rank in live):
            return None
        number = max(waiting.values())
        if any(waiting[rank] != number for rank in live):
            return None
        ranks = tuple(sorted(rank for rank, each in waiting.items() if each == number))
        self._node_round = number
        halves = wide(self.shape.dtype) != self.shape.dtype
        self._only = ranks[0] if len(ranks) == 1 and not halves else None
        return Claim(number, ranks, mask_of(ranks, self._ranks))

    def node_sum(self, part: int) -> Array:
        """This part of the node's own sum, or memory for it."""
        if self._only is not None:
            return self.inputs[self._only].numbers[self.parts[part]]
        if self._node_sum is None:
            self._node_sum = np.empty(self.shape.elements, dtype=wide(self.shape.dtype))
        return self._node_sum[self.parts[part]]

    def node_summed(self, part: int, number: int, mask: bytes) -> None:
        """Note that the node's own sum of this part is in `node_sum`."""
        state = self._parts[part]
        state.own_round, state.own_mask = number, mask

    def own_sum(self, part: int) -> tuple[int, bytes]:
        """The round of the node's own sum of this part, and who contributed.

        0: its result is there, or is being made here. If it was given to others, too, there could be two.
        """
        state = self._parts[part]
        is_needed = state.own_round > max(self.done(part), state.claimed)
        return (state.own_round, state.own_mask) if is_needed else (0, b"")

    def close(self) -> None:
        """Close the descriptor. The memory is there as long as somebody uses it."""
        self.result.close()

    # --- nodes, where this Aggregator sums a part ---------------------------------------------------------

    def received(self, part: int, node: int) -> Array:
        """Memory for another node's sum of this part."""
        memory = self._parts[part].received
        if node not in memory:
            where = self.parts[part]
            memory[node] = np.empty(where.stop - where.start, dtype=wide(self.shape.dtype))
        return memory[node]

    def make_room(self, part: int, node: int) -> None:
        """Have the kernel provide the memory for another node's sum, and for the result, before the first."""
        if node not in self._parts[part].received:
            self.received(part, node).fill(0)
        if not self.done(part) and not self._parts[part].is_busy:
            self.result.numbers[self.parts[part]].fill(0)

    def done(self, part: int) -> int:
        """The round whose result this part has; 0: none."""
        return self.result.round_of(part)

    def latest(self, part: int, node: int) -> int:
        """The latest round of which nothing is needed from this node any more."""
        return max(self.done(part), self._parts[part].arrived.get(node, (0, b""))[0])

    def arrives(self, part: int, node: int, number: int, mask: bytes) -> None:
        """Note that this node's sum of the part is there."""
        self._parts[part].arrived[node] = (number, mask)

    def has(self, part: int, node: int, number: int) -> None:
        """Note that this node has the result of that round."""
        self._parts[part].have[node] = number

    def claim(self, part: int, live: Collection[int]) -> Claim | None:
        """The sum over nodes, once all of `live` have pushed the same round and nobody has its result."""
        state = self._parts[part]
        waiting = {node: each for node, each in state.arrived.items() if each[0] > self.done(part)}
        if not waiting or not all(node in waiting for node in live):
            return None
        number = max(each for each, _ in waiting.values())
        if any(waiting[node][0] != number for node in live) or state.is_busy:
            return None
        if number in state.have.values():
            return None
        state.is_busy, state.claimed = True, number
        nodes = tuple(sorted(node for node, (each, _) in waiting.items() if each == number))
        mask = waiting[nodes[0]][1]
        for node in nodes[1:]:
            mask = both(mask, waiting[node][1])
        return Claim(number, nodes, mask)

    def to_fetch(self, part: int) -> tuple[int, int] | None:
        """The node and round of a result that somebody waits for and that node has. Told once."""
        state = self._parts[part]
        known = max(self.done(part), state.fetching[1])
        for number in sorted(each for each, _ in state.arrived.values() if each > known):
            for node, has in state.have.items():
                if has == number:
                    state.fetching = node, number
                    return state.fetching
        return None

    def lost(self, node: int) -> list[int]:
        """Forget what a node has that is not connected any more. The parts where that makes a difference."""
        parts = []
        for part, state in enumerate(self._parts):
            asked = state.fetching[1] > self.done(part) and state.fetching[0] == node
            if asked:
                state.fetching = (0, 0)
            if state.have.pop(node, 0) > self.done(part) or asked:
                parts.append(part)
        return parts

    def behind(self, part: int) -> list[int]:
        """The nodes that have pushed to this part's sum, whose result is here. They may not have it."""
        done = self.done(part)
        return [node for node, (number, _) in self._parts[part].arrived.items() if done and number == done]

    # --- results, which are written without the caller's lock ---------------------------------------------

    def is_busy(self, part: int) -> bool:
        """Whether this part's result is being written."""
        return self._parts[part].is_busy

    def writes(self, part: int) -> None:
        """Note that this part's result is being received. Nothing else is written into it."""
        self._parts[part].is_busy = True

    def gives_up(self, part: int) -> None:
        """Note that this part's result was not received after all."""
        self._parts[part].is_busy = False

    def is_whole(self, part: int, number: int, mask: bytes) -> bool:
        """Note that the result of this round is in the memory for results. Whether all parts have it now."""
        self._whole[self.done(part)] -= 1
        self.result.is_whole(part, number, mask)
        self._whole[number] += 1
        self._parts[part].is_busy = False
        return self.all_done() == number

    def rounds(self) -> int:
        """The rounds whose results all parts have had."""
        return min(self.done(part) for part in range(len(self.parts)))

    def all_done(self) -> int:
        """The round whose result all parts have; 0: none."""
        number = self.done(0)
        return number if self._whole[number] == len(self.parts) else 0
