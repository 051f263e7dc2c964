"""Who gives the state to whom when a generation begins: decided by each worker alone, from the same facts.

Those who come from the generation before, through a boundary that all of them agreed on, have the same state.
So nobody has to receive what it has: each newcomer is given it by one of them, and those to whom no newcomer
fell train on. Everywhere else all take over rank 0's: after a break, where everybody is back at a commit, not
necessarily the same; where all are new; where the core carries nothing between two.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class Origin(enum.IntEnum):
    """How a worker comes into a generation."""

    NEW = 0
    """With no state, or with one that has stood still: it joins, or was called back after stepping aside."""
    STAYS = 1
    """Straight from the generation before."""
    BACK = 2
    """From one that broke, or could not be entered."""


@dataclass(frozen=True, slots=True)
class Member:
    """What one worker says of itself."""

    origin: Origin
    commits: int
    """Mini-batches committed by the state that it holds."""
    node: int
    """The same number for workers of one node, and no other."""
    can_hand_over: bool
    """Its core has a courier, and its state no way of its own to synchronise."""


@dataclass(frozen=True, slots=True)
class Route:
    """What they all do, then. Ranks are those of the generation that begins."""

    commits: int
    """Of the state that everybody has afterwards."""
    givers: Mapping[int, int] = field(default_factory=dict)
    """By newcomer, who gives it the state; empty: all take over rank 0's."""

    def receivers(self, giver: int) -> tuple[int, ...]:
        """To whom that rank gives the state, one after the other."""
        return tuple(newcomer for newcomer, its_giver in self.givers.items() if its_giver == giver)


def decide(members: Sequence[Member]) -> Route:
    """By rank, all of them."""
    by_broadcast = Route(members[0].commits)
    staying = [rank for rank, member in enumerate(members) if member.origin is Origin.STAYS]
    new = [rank for rank, member in enumerate(members) if member.origin is Origin.NEW]
    if not (new and 0 in staying and len(staying) + len(new) == len(members)):
        return by_broadcast
    if not all(member.can_hand_over for member in members):
        return by_broadcast
    if len({members[rank].commits for rank in staying}) > 1:
        return by_broadcast
    most_for_one = -(-len(new) // len(staying))
    # A broadcast's root sends as often as that; many newcomers of few have it sooner from each other.
    if most_for_one > (len(members) - 1).bit_length():
        return by_broadcast
    return Route(members[0].commits, _spread(members, staying, new))


def _spread(members: Sequence[Member], staying: list[int], new: list[int]) -> dict[int, int]:
    """Evenly; on the same node where that is as even."""
    nodes = {members[rank].node for rank in staying}
    turns = dict.fromkeys(staying, 0)
    givers = {}
    for newcomer in sorted(new, key=lambda rank: members[rank].node not in nodes):
        node = members[newcomer].node
        giver = min(staying, key=lambda rank: (turns[rank], members[rank].node != node, rank))
        turns[giver] += 1
        givers[newcomer] = giver
    return givers


def ask(origin: Origin, commits: int, *, can_hand_over: bool) -> Callable[[], Route]:
    """Of all members of the present communicator at once what each says of itself; begins, does not wait.

    What is returned waits, and raises HorovodInternalError if one of them is gone.
    """
    import torch
    from horovod.torch import mpi_ops

    node = mpi_ops.rank() - mpi_ops.local_rank()  # a node's workers stand together
    said = torch.tensor([[origin, commits, node, can_hand_over]], dtype=torch.int64)
    handle = mpi_ops.allgather_async(said, name="flexo.route")

    def route() -> Route:
        told = mpi_ops.synchronize(handle).tolist()
        return decide([Member(Origin(each[0]), each[1], each[2], bool(each[3])) for each in told])

    return route
