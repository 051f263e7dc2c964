"""What all ranks do next, from what each has asked for. Pure: no threads, no network, no clock of its own.

A rank's program is a sequence of requests and of waits. What is asked for under one name by all members is
done; who asks for something that does not fit is told which ranks and what (agreement.py).

All-reduces of small tensors are fused. Sums of floats depend on how, so what is fused with what must follow
from the programs alone, never from how fast they run: two tensors share a message only if no rank has waited
for anything between asking for the one and for the other, in the order in which the first member asks, and up
to so many bytes. So a message is complete as soon as one rank has waited since, or when it is full, and if
nothing can come any more that belongs before its last tensor.

Nobody waits for ever for what cannot come: if every rank waits and nothing can be done, they are told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from horovod_elastic.core.c10d.agreement import disagreement, ranks_text
from horovod_elastic.core.c10d.requests import (
    GLOBAL_SET,
    Key,
    Operation,
    Request,
    is_fusable,
    key_of,
    size_bytes,
)

_ENDS_WHAT_WENT_BEFORE = (Operation.JOIN, Operation.REMOVE_PROCESS_SET)
"""Done after everything that can be done; who asks for it adds nothing to earlier messages."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the `members` do next with what they have asked for under these names."""

    members: tuple[int, ...]
    requests: tuple[Request, ...]
    """In the order in which they are fused; shapes are those of one rank that has asked."""
    joined: frozenset[int] = frozenset()
    """Members that have not asked, because they have joined."""
    first_dimensions: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    result: int = -1
    error: str = ""
    """Then only those that have asked need to hear of it."""
    ended: bool = False
    """Of an error: a member has ended. Otherwise the ranks' programs do not fit together."""


@dataclass(frozen=True, slots=True)
class _Company:
    """All-reduces of which this is the same may share messages."""

    kind: object
    stretches: tuple[int | None, ...]
    """For each member, how often it had waited before it asked; None if it had joined and did not."""


@dataclass(eq=False, slots=True)
class _Asked:
    """What was asked for under one name, by some members or all."""

    key: Key
    requests: dict[int, Request] = field(default_factory=dict)
    order: dict[int, int] = field(default_factory=dict)
    """By rank, the how manieth of its requests this is."""
    stretch: dict[int, int] = field(default_factory=dict)
    """By rank, how often it had waited before."""
    since_s: float = 0.0
    company: _Company | None = None
    """Of an all-reduce that only waits for its message to be complete."""
    size: int = 0
    """Then: bytes."""

    @property
    def first(self) -> Request:
        return next(iter(self.requests.values()))


class Negotiation:
    """See the module. Fed with what is heard from ranks, each in its order; `decide` says what follows."""

    def __init__(
        self, size: int, fusion_bytes: int, process_sets: Mapping[int, tuple[int, ...]] | None = None
    ) -> None:
        self.process_sets = {GLOBAL_SET: tuple(range(size)), **(process_sets or {})}
        self._fusion_bytes = fusion_bytes
        self._next_set = max(self.process_sets) + 1
        self._asked: dict[Key, _Asked] = {}
        self._looked_at: dict[Key, None] = {}
        """Those that may have become due since the last decision."""
        self._partly: dict[int, dict[Key, _Asked]] = {}
        """By process set: all-reduces that could be fused, but have not been asked for by all."""
        self._wholly: dict[int, dict[_Company, list[_Asked]]] = {}
        """By process set: those that only wait for their message to be complete."""
        self._fuses = False
        """Whether messages may have become complete since the last decision."""
        self._in_vain: list[Decision] = []
        """For those who asked for what there is not."""
        self._count = [0] * size
        self._stretch = [0] * size
        self._waits_for: list[Key | None] = [None] * size
        self._joined: dict[int, None] = {}
        """In the order in which they did."""
        self._left: set[int] = set()

    # --- heard ----------------------------------------------------------------------------------------------

    def asks(self, rank: int, request: Request, now_s: float = 0.0) -> None:
        """That rank wants this; it has nothing outstanding under this name."""
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
        elif self._joined or self._left or len(asked.requests) == len(members):
            self._looked_at[key] = None

    def waits(self, rank: int) -> None:
        """That rank begins to wait, or to poll: what it asks for from now on goes into other messages."""
        self._stretch[rank] += 1
        self._fuses = True

    def is_blocked(self, rank: int, process_set: int, name: str) -> None:
        """That rank does nothing until it has what it asked for under this name."""
        self._waits_for[rank] = (process_set, name)

    def leaves(self, rank: int) -> None:
        """That rank asks for nothing any more; whatever needs it will not be done."""
        self._left.add(rank)
        self.waits(rank)
        self._looked_at.update(dict.fromkeys(self._asked))

    # --- decided --------------------------------------------------------------------------------------------

    def decide(self) -> list[Decision]:
        """What is to be done, in this order, on account of what was heard."""
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
        """Whether no rank will ask for anything before it gets what it cannot get."""
        return bool(self._asked) and all(
            rank in self._left or rank in self._joined or self._has_waited_for(rank)
            for rank in range(len(self._waits_for))
        )

    def _has_waited_for(self, rank: int) -> _Asked | None:
        """What that rank is blocked by. Others may have asked again for what it once waited for, and got."""
        waits_for = self._waits_for[rank]
        asked = None if waits_for is None else self._asked.get(waits_for)
        return asked if asked is not None and rank in asked.requests else None

    def give_up_all(self) -> list[Decision]:
        """Tell everybody that nothing of what was asked for can be done, and who waits for what."""
        waiting: dict[Key, list[int]] = {}
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
        """Names first asked for before that time and not done, with the ranks that have not asked."""
        return {
            asked.key[1]: self._missing(asked) for asked in self._asked.values() if asked.since_s < before_s
        }

    def give_up(self, name: str, why: str) -> list[Decision]:
        """Tell those who asked for it that this is not done."""
        return [self._refuse(asked, why) for key, asked in list(self._asked.items()) if key[1] == name]

    # --- one at a time --------------------------------------------------------------------------------------

    def _missing(self, asked: _Asked) -> tuple[int, ...]:
        members = self.process_sets[asked.key[0]]
        if len(asked.requests) == len(members):
            return ()
        return tuple(rank for rank in members if rank not in asked.requests)

    def _decide_one(self, asked: _Asked) -> list[Decision]:
        if asked.company is not None:
            return []
        missing = self._missing(asked)
        if gone := [rank for rank in missing if rank in self._left]:
            why = f"{ranks_text(gone)} ended without asking for {asked.key[1]}."
            return [self._refuse(asked, why, ended=True)]
        if any(rank not in self._joined for rank in missing):
            return []
        if why := disagreement(asked.requests):
            return [self._refuse(asked, why)]
        if missing and asked.first.operation is not Operation.ALLREDUCE:
            why = f"{asked.key[1]} cannot be done: {ranks_text(missing)} joined, can only all-reduce."
            return [self._refuse(asked, why)]
        if self._partly.get(asked.key[0], {}).pop(asked.key, None):
            self._is_whole(asked)
            return []
        done = self._done([asked])
        if asked.first.operation is Operation.REMOVE_PROCESS_SET and done.result == 0:
            return [done, *self._refuse_all_in(asked.first.root)]
        return [done]

    def _done(self, batch: Sequence[_Asked]) -> Decision:
        """Of one request, or of all-reduces in one company."""
        members = self.process_sets[batch[0].key[0]]
        missing = self._missing(batch[0])
        for asked in batch:
            del self._asked[asked.key]
        first = batch[0].first
        dimensions: tuple[tuple[int, ...], ...] = ()
        splits: tuple[tuple[int, ...], ...] = ()
        if first.operation is Operation.ALLGATHER:
            each = [batch[0].requests[rank].shapes for rank in members]
            dimensions = tuple(tuple(map(_first_dimension, shapes)) for shapes in zip(*each, strict=True))
        elif first.operation is Operation.ALLTOALL:
            splits = tuple(batch[0].requests[rank].splits for rank in members)
        return Decision(
            members=members,
            requests=tuple(asked.first for asked in batch),
            joined=frozenset(missing),
            first_dimensions=dimensions,
            splits=splits,
            result=self._result(first),
        )

    def _result(self, request: Request) -> int:
        """As Response.result."""
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
        if request.operation is Operation.REMOVE_PROCESS_SET and request.root != GLOBAL_SET:
            return 0 if request.root in self.process_sets else -1
        return -1

    def _refuse_all_in(self, process_set: int) -> list[Decision]:
        """It is removed, with what only some have asked for in it."""
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
        """All have asked for it: it waits for its message to be complete."""
        process_set = asked.key[0]
        asked.size = size_bytes(asked.first)
        stretches = tuple(map(asked.stretch.get, self.process_sets[process_set]))
        asked.company = _Company(_kind(asked.first), stretches)
        self._wholly.setdefault(process_set, {}).setdefault(asked.company, []).append(asked)
        self._fuses = True

    def _fused(self, process_set: int) -> Iterator[Decision]:
        """Messages that are complete, of the small all-reduces that were asked for in this process set."""
        companies = self._wholly[process_set]
        for company, waiting in list(companies.items()):
            for batch in list(self._messages(process_set, company, waiting)):
                yield self._done(batch)
                del waiting[: len(batch)]
            if not waiting:
                del companies[company]

    def _messages(self, process_set: int, company: _Company, waiting: list[_Asked]) -> Iterator[list[_Asked]]:
        """Those that are complete, which are the first of `waiting` once that is in order."""
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
        """Where in the order of the `first` member something comes that not all have asked for yet."""
        partly = self._partly.get(process_set, {}).values()
        for asked in sorted(partly, key=lambda asked: asked.order.get(first, self._count[first])):
            if _kind(asked.first) == company.kind and self._may_come(asked, process_set, company):
                return asked.order.get(first, self._count[first])
        return otherwise

    def _may_come(self, asked: _Asked, process_set: int, company: _Company) -> bool:
        """Whether it may still be in that company: if all who have not asked for it do so now."""
        members = zip(self.process_sets[process_set], company.stretches, strict=True)
        return all(
            stretch == asked.stretch.get(rank, None if rank in self._joined else self._stretch[rank])
            for rank, stretch in members
        )


def _first_dimension(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def _kind(request: Request) -> object:
    return request.dtype, request.on_gpu, request.reduction, request.prescale, request.postscale
