"""Decides the next operations of all ranks from the requests of each. Pure: no threads, network or own clock.

A rank's program is a sequence of requests and of waits. An operation is carried out once all members of its
process set have requested it under one name. If the requests do not fit together, the members are told which
ranks differ, and how (agreement.py).

All-reduces of small tensors are fused: they share a message. Sums of floats depend on fusion. So fusion must
follow from the programs alone, never from how fast the programs run. Two tensors share a message only if no
rank has waited for anything between its requests for the two. The order in a message is that of the first
member's requests, and a message has a limit of bytes. So a message is complete as soon as one rank has waited
since, or when the message is full. In either case, no request may still come that belongs before the
message's last tensor.

No rank waits for ever for an impossible operation. If every rank waits and nothing can be done, all are told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from horovod_elastic.core.c10d.agreement import disagreement, ranks_text
from horovod_elastic.core.c10d.requests import (
    GLOBAL_SET,
    Operation,
    Request,
    RequestKey,
    is_fusable,
    key_of,
    size_bytes,
)

_ENDS_WHAT_WENT_BEFORE = (Operation.JOIN, Operation.REMOVE_PROCESS_SET)
"""Operations that come after all others that can be done. A rank that requests one adds nothing to earlier
messages."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next operation of the `members`, on their requests under these names, or a refusal of it."""

    members: tuple[int, ...]
    requests: tuple[Request, ...]
    """The requests in the order in which they are fused. The shapes are those at one rank that asked."""
    joined: frozenset[int] = frozenset()
    """The members that made no request because they have joined."""
    gone: frozenset[int] = frozenset()
    """The members that are gone. Nothing can be told to them."""
    first_dimensions: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    result: int = -1
    error: str = ""
    """The reason for a refusal, else empty. The `members` of a refusal are the ranks that asked."""
    ended: bool = False
    """For a refusal: whether a member has ended. Otherwise the ranks' programs do not fit together."""


@dataclass(frozen=True, slots=True)
class _Company:
    """The properties that all-reduces must have in common to share a message."""

    kind: object
    stretches: tuple[int | None, ...]
    """For each member: the number of waits before its request; None if it had joined and made none."""


@dataclass(eq=False, slots=True)
class _Asked:
    """The requests under one name, of some members or of all."""

    key: RequestKey
    requests: dict[int, Request] = field(default_factory=dict)
    order: dict[int, int] = field(default_factory=dict)
    """Per rank: the ordinal of this request."""
    stretch: dict[int, int] = field(default_factory=dict)
    """Per rank: the number of its waits before this request."""
    since_s: float = 0.0
    company: _Company | None = None
    """The company of an all-reduce that only waits for its message to be complete; otherwise None."""
    size: int = 0
    """The size in bytes of such an all-reduce at one rank."""

    @property
    def first(self) -> Request:
        return next(iter(self.requests.values()))


class Negotiation:
    """Collects the steps of all ranks, each rank's in its order. `decide` returns what follows from them."""

    def __init__(
        self, size: int, fusion_bytes: int, process_sets: Mapping[int, tuple[int, ...]] | None = None
    ) -> None:
        self.process_sets = {GLOBAL_SET: tuple(range(size)), **(process_sets or {})}
        self._fusion_bytes = fusion_bytes
        self._next_set = max(self.process_sets) + 1
        self._asked: dict[RequestKey, _Asked] = {}
        self._looked_at: dict[RequestKey, None] = {}
        """The keys of requests that may have become due since the last decision, as an ordered set."""
        self._partly: dict[int, dict[RequestKey, _Asked]] = {}
        """By process set: the all-reduces that may be fused and that not all members have requested."""
        self._wholly: dict[int, dict[_Company, list[_Asked]]] = {}
        """By process set: the all-reduces that only wait for their message to be complete."""
        self._fuses = False
        """Whether messages may have become complete since the last decision."""
        self._in_vain: list[Decision] = []
        """Refusals of requests in a process set that does not exist or that the rank is not in."""
        self._count = [0] * size
        self._stretch = [0] * size
        self._waits_for: list[RequestKey | None] = [None] * size
        self._joined: dict[int, None] = {}
        """The ranks that have joined, in the order in which they joined, as an ordered set."""
        self._left: set[int] = set()
        self._gone: set[int] = set()
        """The ranks that are gone, in a generation that goes on without them."""

    # --- heard ----------------------------------------------------------------------------------------------

    def asks(self, rank: int, request: Request, now_s: float = 0.0) -> None:
        """Take a request of that rank, which has nothing outstanding under this name."""
        process_set = request.process_set
        members = self.process_sets.get(process_set)
        self._waits_for[rank] = None
        if members is None or (process_set != GLOBAL_SET and rank not in members):
            why = f"{request.name} was asked for in process set {process_set}, in which rank {rank} is not."
            self._in_vain.append(Decision((rank,), (request,), error=why))
            return
        key = key_of(request)
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked(key, since_s=now_s)
            if is_fusable(request) and len(members) > 1:
                self._partly.setdefault(process_set, {})[key] = asked
        if request.operation in _ENDS_WHAT_WENT_BEFORE:
            self.waits(rank)
        asked.requests[rank] = request
        asked.order[rank] = self._count[rank]
        asked.stretch[rank] = self._stretch[rank]
        self._count[rank] += 1
        if request.operation is Operation.JOIN:
            self._joined[rank] = None
            self._looked_at.update(dict.fromkeys(self._asked))
        elif self._joined or self._left or self._gone or len(asked.requests) == len(members):
            self._looked_at[key] = None

    def waits(self, rank: int) -> None:
        """Note that the rank begins to wait, or to poll. Its later requests go into other messages."""
        self._stretch[rank] += 1
        self._fuses = True

    def is_blocked(self, rank: int, process_set: int, name: str) -> None:
        """Note that the rank does nothing until its request under this name is done."""
        self._waits_for[rank] = (process_set, name)

    def leaves(self, rank: int) -> None:
        """Note that the rank requests nothing any more. Operations that need it will not be done."""
        self._left.add(rank)
        self.waits(rank)
        self._looked_at.update(dict.fromkeys(self._asked))

    def goes_on_without(self, rank: int) -> None:
        """Note that the rank is gone. Operations are done without it, as far as they can be."""
        self._gone.add(rank)
        self._left.discard(rank)
        self._joined.pop(rank, None)
        for asked in self._asked.values():
            if asked.company is None:
                for of_ranks in (asked.requests, asked.order, asked.stretch):
                    of_ranks.pop(rank, None)
        for key in [key for key, asked in self._asked.items() if not asked.requests]:
            self._partly.get(key[0], {}).pop(key, None)
            del self._asked[key]
        self.waits(rank)
        self._looked_at.update(dict.fromkeys(self._asked))

    # --- decided --------------------------------------------------------------------------------------------

    def decide(self) -> list[Decision]:
        """The operations that follow from the steps so far, in the order in which to carry them out."""
        decisions, self._in_vain = self._in_vain, []
        looked_at, self._looked_at = self._looked_at, {}
        last = []
        for asked in [self._asked[key] for key in looked_at if key in self._asked]:
            if asked.first.operation in _ENDS_WHAT_WENT_BEFORE:
                last.append(asked)
            else:
                decisions.extend(self._decide_one(asked))
        if self._fuses:
            self._fuses = False
            for process_set in list(self._wholly):
                decisions.extend(self._fused(process_set))
        for asked in last:
            decisions.extend(self._decide_one(asked))
        return decisions

    def everybody_waits(self) -> bool:
        """Whether requests are outstanding and every rank has left, has joined or is blocked by one."""
        return bool(self._asked) and all(
            rank in self._left or rank in self._gone or rank in self._joined or self._has_waited_for(rank)
            for rank in range(len(self._waits_for))
        )

    def _makes_none(self, rank: int) -> bool:
        """Whether the rank makes no requests, because it has joined or is gone."""
        return rank in self._joined or rank in self._gone

    def _has_waited_for(self, rank: int) -> _Asked | None:
        """The outstanding request that blocks that rank; None if there is none.

        Other ranks may have repeated a request that once blocked the rank and is done. It counts as None.
        """
        waits_for = self._waits_for[rank]
        asked = None if waits_for is None else self._asked.get(waits_for)
        return asked if asked is not None and rank in asked.requests else None

    def give_up_all(self) -> list[Decision]:
        """Refuse all requests, for a reason that says which ranks wait for which request."""
        waiting: dict[RequestKey, list[int]] = {}
        for rank in range(len(self._waits_for)):
            if asked := self._has_waited_for(rank):
                waiting.setdefault(asked.key, []).append(rank)
        parts = []
        for key, ranks in waiting.items():
            missing = self._missing(self._asked[key])
            parts.append(
                f"{ranks_text(ranks)} wait{'s' if len(ranks) == 1 else ''} for {key[1]}"
                + (f", which {ranks_text(missing)} did not ask for" if missing else "")
            )
        if self._joined:
            parts.append(f"{ranks_text(list(self._joined))} joined")
        why = f"The ranks do not ask for the same collectives: {'; '.join(parts)}."
        return [self._refuse(asked, why) for asked in list(self._asked.values())]

    def stalled(self, before_s: float) -> dict[str, tuple[int, ...]]:
        """The names of requests older than that time and not done, with the ranks that have not made them."""
        return {
            asked.key[1]: self._missing(asked) for asked in self._asked.values() if asked.since_s < before_s
        }

    def give_up(self, name: str, why: str) -> list[Decision]:
        """Refuse the requests under this name, for the reason `why`."""
        return [self._refuse(asked, why) for key, asked in list(self._asked.items()) if key[1] == name]

    # --- one at a time --------------------------------------------------------------------------------------

    def _missing(self, asked: _Asked) -> tuple[int, ...]:
        members = self.process_sets[asked.key[0]]
        if len(asked.requests) == len(members):  # nearly always
            return ()
        return tuple(rank for rank in members if rank not in asked.requests)

    def _decide_one(self, asked: _Asked) -> list[Decision]:
        if asked.company is not None:
            return []
        missing = self._missing(asked)
        if gone := [rank for rank in missing if rank in self._left]:
            why = f"{ranks_text(gone)} ended without asking for {asked.key[1]}."
            return [self._refuse(asked, why, ended=True)]
        if any(rank not in self._joined and rank not in self._gone for rank in missing):
            return []
        if why := disagreement(asked.requests):
            return [self._refuse(asked, why)]
        joined = tuple(rank for rank in missing if rank in self._joined)
        if joined and asked.first.operation is not Operation.ALLREDUCE:
            why = f"{asked.key[1]} cannot be done: {ranks_text(joined)} joined, can only all-reduce."
            return [self._refuse(asked, why)]
        gone = [rank for rank in missing if rank in self._gone]
        if gone and not _can_do_without(asked.first, gone):
            why = f"{asked.key[1]} cannot be done: {ranks_text(gone)} ended."
            return [self._refuse(asked, why, ended=True)]
        if self._partly.get(asked.key[0], {}).pop(asked.key, None):
            self._is_whole(asked)
            return []
        done = self._done([asked])
        if asked.first.operation is Operation.REMOVE_PROCESS_SET and done.result == 0:
            return [done, *self._refuse_all_in(asked.first.removed_set)]
        return [done]

    def _done(self, batch: Sequence[_Asked]) -> Decision:
        """The decision to carry out one operation, or the fused all-reduces of one company."""
        members = self.process_sets[batch[0].key[0]]
        missing = self._missing(batch[0])
        for asked in batch:
            del self._asked[asked.key]
        first = batch[0].first
        dimensions: tuple[tuple[int, ...], ...] = ()
        splits: tuple[tuple[int, ...], ...] = ()
        if first.operation is Operation.ALLGATHER:
            each = [_rows_of(batch[0].requests.get(rank), first) for rank in members]
            dimensions = tuple(zip(*each, strict=True))
        elif first.operation is Operation.ALLTOALL:
            splits = tuple(batch[0].requests[rank].splits for rank in members)
        return Decision(
            members=members,
            requests=tuple(asked.first for asked in batch),
            joined=frozenset(missing) - self._gone,
            gone=frozenset(self._gone.intersection(members)),
            first_dimensions=dimensions,
            splits=splits,
            result=self._result(first),
        )

    def _result(self, request: Request) -> int:
        """The value of Response.result for this request."""
        if request.operation is Operation.JOIN:
            *_, last = self._joined
            self._joined.clear()
            return last
        if request.operation is Operation.ADD_PROCESS_SET:
            if request.members in self.process_sets.values():
                return -1
            number, self._next_set = self._next_set, self._next_set + 1
            self.process_sets[number] = request.members
            return number
        if request.operation is Operation.REMOVE_PROCESS_SET and request.removed_set != GLOBAL_SET:
            return 0 if request.removed_set in self.process_sets else -1
        return -1

    def _refuse_all_in(self, process_set: int) -> list[Decision]:
        """Remove the process set, and refuse the requests in it that only some members have made."""
        outstanding = [asked for key, asked in self._asked.items() if key[0] == process_set]
        refused = [
            self._refuse(asked, f"{asked.key[1]} cannot be done: its process set was removed.")
            for asked in outstanding
        ]
        del self.process_sets[process_set]
        self._partly.pop(process_set, None)
        self._wholly.pop(process_set, None)
        return refused

    def _refuse(self, asked: _Asked, why: str, *, ended: bool = False) -> Decision:
        process_set = asked.key[0]
        del self._asked[asked.key]
        self._partly.get(process_set, {}).pop(asked.key, None)
        if asked.company is not None:
            self._wholly[process_set][asked.company].remove(asked)
        self._fuses = True
        if asked.first.operation is Operation.JOIN:
            for rank in asked.requests:
                self._joined.pop(rank, None)
        return Decision(tuple(sorted(asked.requests)), (asked.first,), error=why, ended=ended)

    # --- fused ----------------------------------------------------------------------------------------------

    def _is_whole(self, asked: _Asked) -> None:
        """Note that all members have requested the all-reduce. It waits for its message to be complete."""
        process_set = asked.key[0]
        asked.size = size_bytes(asked.first)
        stretches = tuple(map(asked.stretch.get, self.process_sets[process_set]))
        asked.company = _Company(_kind(asked.first), stretches)
        self._wholly.setdefault(process_set, {}).setdefault(asked.company, []).append(asked)
        self._fuses = True

    def _fused(self, process_set: int) -> Iterator[Decision]:
        """The decisions on all complete messages of fused all-reduces in this process set."""
        companies = self._wholly[process_set]
        for company, waiting in list(companies.items()):
            for batch in list(self._messages(process_set, company, waiting)):
                yield self._done(batch)
                del waiting[: len(batch)]
            if not waiting:
                del companies[company]

    def _messages(self, process_set: int, company: _Company, waiting: list[_Asked]) -> Iterator[list[_Asked]]:
        """The complete messages. Sorts `waiting`; the messages are the first elements of the sorted list."""
        members = zip(self.process_sets[process_set], company.stretches, strict=True)
        asking = {rank: stretch for rank, stretch in members if stretch is not None}
        first = next(iter(asking))
        waited = any(self._stretch[rank] != stretch for rank, stretch in asking.items())
        if not waited and sum(asked.size for asked in waiting) < self._fusion_bytes:
            return
        waiting.sort(key=lambda asked: asked.order[first])
        gap = self._gap(process_set, company, first, math.inf if waited else self._count[first])
        batch: list[_Asked] = []
        size = 0
        for asked in waiting:
            if asked.order[first] > gap:
                return
            if batch and size + asked.size > self._fusion_bytes:
                yield batch
                batch, size = [], 0
            batch.append(asked)
            size += asked.size
            if size >= self._fusion_bytes:
                yield batch
                batch, size = [], 0
        if batch and gap == math.inf:
            yield batch

    def _gap(self, process_set: int, company: _Company, first: int, otherwise: float) -> float:
        """The first place, in the `first` member's order, of a request that not all members have made yet.

        Only requests that may still belong to this company count. Returns `otherwise` if there is none.
        """
        partly = self._partly.get(process_set, {}).values()
        for asked in sorted(partly, key=lambda asked: asked.order.get(first, self._count[first])):
            if _kind(asked.first) == company.kind and self._may_come(asked, process_set, company):
                return asked.order.get(first, self._count[first])
        return otherwise

    def _may_come(self, asked: _Asked, process_set: int, company: _Company) -> bool:
        """Whether the all-reduce would belong to that company if all missing members requested it now."""
        members = zip(self.process_sets[process_set], company.stretches, strict=True)
        return all(
            stretch == asked.stretch.get(rank, None if self._makes_none(rank) else self._stretch[rank])
            for rank, stretch in members
        )


def _first_dimension(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def _rows_of(request: Request | None, first: Request) -> tuple[int, ...]:
    """The rows of each tensor of an all-gather at one rank; none at a rank that is gone."""
    return (0,) * len(first.shapes) if request is None else tuple(map(_first_dimension, request.shapes))


def _can_do_without(request: Request, gone: Sequence[int]) -> bool:
    """Whether ranks that are gone can be left out of the operation."""
    if request.process_set != GLOBAL_SET:
        return False
    done = (Operation.ALLREDUCE, Operation.ALLGATHER, Operation.BARRIER, Operation.JOIN)
    return request.operation in done or (
        request.operation is Operation.BROADCAST and request.root not in gone
    )


def _kind(request: Request) -> object:
    return request.dtype, request.on_gpu, request.reduction, request.prescale, request.postscale
