"""The givers and receivers of the state when a generation begins. All workers decide alone, from equal facts.

Workers that come from the previous generation, through a boundary that all of them agreed on, have the same
state. So no worker has to receive a state that it has. One of them gives the state to each newcomer, and
those without a newcomer train on. In all other cases, all workers take over rank 0's state. One case is a
break, after which all workers are back at a commit, not necessarily the same one. In another case, all
workers are new. In the third, the core carries no tensors between two workers.

After a break, the worker with the most commits comes first, but not on Horovod's native library. There, a
worker whose all-reduce has failed goes on to send control messages, and its neighbour in the ring takes them
for its own all-reduce's data: a sum of 7, for example, without an error. Whoever failed is a commit behind.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class Origin(enum.IntEnum):
    """The way in which a worker comes into a generation."""

    NEW = 0
    """The worker has no state, or an old one: it joins, or was called back after stepping aside."""
    STAYS = 1
    """The worker comes straight from the previous generation."""
    BACK = 2
    """The worker comes from a generation that broke, or that it could not enter."""


@dataclass(frozen=True, slots=True)
class Member:
    """One worker's report on itself."""

    origin: Origin
    commits: int
    """The number of mini-batches committed by the state that the worker holds."""
    node: int
    """A number that is the same for all workers of one node, and for no others."""
    can_hand_over: bool
    """Whether the worker's core has a TensorTransport, and its state does not synchronise in its own way."""


@dataclass(frozen=True, slots=True)
class Route:
    """The common decision of all workers. Ranks are those of the generation that begins."""

    commits: int
    """The commits of the state that all workers have afterwards."""
    givers: Mapping[int, int] = field(default_factory=dict)
    """For each newcomer: the rank that gives it the state. If it is empty, all take over the root's state."""
    root: int = 0

    def receivers(self, giver: int) -> tuple[int, ...]:
        """The ranks to which `giver` gives the state, one after the other."""
        return tuple(newcomer for newcomer, its_giver in self.givers.items() if its_giver == giver)


def decide(
    members: Sequence[Member], *, any_root: bool = False, spread: bool = False, may_be_wrong: bool = False
) -> Route:
    """The route for all workers. `members`: their reports, in order of rank.

    Horovod's states come from rank 0. With `any_root`, they come from the worker with the most commits. With
    `may_be_wrong`, the last commit before a break may be wrong: if not all have made it, nobody keeps it.
    With `spread`, no worker that has the state receives it, even if a broadcast would be faster.
    """
    root = 0
    if any_root:
        root = _most_advanced(members)
    elif may_be_wrong:
        root = _behind(members)
    by_broadcast = Route(members[root].commits, root=root)
    staying = [rank for rank, member in enumerate(members) if member.origin is Origin.STAYS]
    new = [rank for rank, member in enumerate(members) if member.origin is Origin.NEW]
    if not (new and root in staying and len(staying) + len(new) == len(members)):
        return by_broadcast
    if not all(member.can_hand_over for member in members):
        return by_broadcast
    if len({members[rank].commits for rank in staying}) > 1:
        return by_broadcast
    most_for_one = -(-len(new) // len(staying))
    # The root of a broadcast sends that often. Many newcomers get the state of few givers sooner by a
    # broadcast.
    if not spread and most_for_one > (len(members) - 1).bit_length():
        return by_broadcast
    return Route(members[root].commits, _spread(members, staying, new))


def _most_advanced(members: Sequence[Member]) -> int:
    old = [rank for rank, member in enumerate(members) if member.origin is not Origin.NEW]
    return max(old, key=lambda rank: (members[rank].commits, -rank), default=0)


def _behind(members: Sequence[Member]) -> int:
    """Rank 0, or after a break the first worker that lacks the last commit of rank 0."""
    before = [rank for rank, member in enumerate(members) if member.origin is Origin.BACK]
    return next((rank for rank in before if members[rank].commits == members[0].commits - 1), 0)


def _spread(members: Sequence[Member], staying: list[int], new: list[int]) -> dict[int, int]:
    """Spread the newcomers evenly over the staying workers, on the same node if that is as even."""
    nodes = {members[rank].node for rank in staying}
    turns = dict.fromkeys(staying, 0)
    givers = {}
    for newcomer in sorted(new, key=lambda rank: members[rank].node not in nodes):
        node = members[newcomer].node
        giver = min(staying, key=lambda rank: (turns[rank], members[rank].node != node, rank))
        turns[giver] += 1
        givers[newcomer] = giver
    return givers


def ask(
    origin: Origin, commits: int, *, can_hand_over: bool, may_be_wrong: bool = False
) -> Callable[[], Route]:
    """Begin to exchange the workers' reports, on all members of the present communicator at the same time.

    `may_be_wrong`: see `decide`. The returned function waits and returns the route. It raises
    HorovodInternalError if a member is gone.
    """
    import torch
    from horovod.torch import mpi_ops

    node = mpi_ops.rank() - mpi_ops.local_rank()  # the ranks of a node's workers are consecutive
    said = torch.tensor([[origin, commits, node, can_hand_over]], dtype=torch.int64)
    handle = mpi_ops.allgather_async(said, name="flexo.route")

    def route() -> Route:
        told = mpi_ops.synchronize(handle).tolist()
        members = [Member(Origin(each[0]), each[1], each[2], bool(each[3])) for each in told]
        return decide(members, may_be_wrong=may_be_wrong)

    return route
