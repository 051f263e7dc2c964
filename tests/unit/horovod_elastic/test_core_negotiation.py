"""What ranks do next follows from their programs, however what they say is delivered."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from says import says
from thorough import examples

from horovod_elastic.core.c10d.negotiation import Decision, Negotiation
from horovod_elastic.core.c10d.requests import GLOBAL_SET, Operation, Reduction, Request, size_bytes

JOIN = Request(Operation.JOIN, "join")


@dataclass(frozen=True)
class Wait:
    """Until this is done."""

    request: Request


@dataclass(frozen=True)
class Poll:
    """Look whether something is done, and go on."""


Step = Request | Wait | Poll
Program = Sequence[Step]
Sets = Mapping[int, tuple[int, ...]]


def reduce(name: str, floats: int = 1, **other: object) -> Request:
    return Request(Operation.ALLREDUCE, name, "torch.float32", ((floats,),), **other)  # type: ignore[arg-type]


# --- a world of ranks -----------------------------------------------------------------------------------


class World:
    """Ranks that go through their programs, and rank 0, which hears of it sooner or later."""

    def __init__(self, programs: Sequence[Program], fusion_bytes: int, sets: Sets) -> None:
        self.negotiation = Negotiation(len(programs), fusion_bytes, sets)
        self.decisions: list[Decision] = []
        self._ahead = [deque(program) for program in programs]
        self._on_their_way: list[deque[Step]] = [deque() for _ in programs]
        self._outstanding: list[set[Request]] = [set() for _ in programs]
        self._blocked: list[Request | None] = [None] * len(programs)

    def run(self, order: random.Random) -> None:
        """Until nobody can go on."""
        while movable := [rank for rank in range(len(self._ahead)) if self._can_move(rank)]:
            rank = order.choice(movable)
            if self._can_run(rank) and (not self._on_their_way[rank] or order.random() < 0.5):
                self._run(rank)
            else:
                for _ in range(order.randint(1, 4)):
                    self._deliver(rank)
                self._decide()
            assert self.negotiation.everybody_waits() == self.all_are_blocked()

    def ended(self) -> bool:
        return not any(self._ahead) and not any(self._outstanding)

    def all_are_blocked(self) -> bool:
        """As far as rank 0 can know: who has joined has nothing else to say."""
        return all(map(self._is_blocked, range(len(self._ahead))))

    def _is_blocked(self, rank: int) -> bool:
        said = self._on_their_way[rank]
        if JOIN in self._outstanding[rank]:
            return JOIN not in said
        return self._blocked[rank] is not None and not said

    def _can_run(self, rank: int) -> bool:
        return self._blocked[rank] is None and bool(self._ahead[rank])

    def _can_move(self, rank: int) -> bool:
        return self._can_run(rank) or bool(self._on_their_way[rank])

    def _run(self, rank: int) -> None:
        step = self._ahead[rank].popleft()
        if isinstance(step, Request):
            self._outstanding[rank].add(step)
            self._on_their_way[rank].append(step)
        elif isinstance(step, Poll):
            self._on_their_way[rank].append(step)
        else:
            self._on_their_way[rank].append(Poll())
            if step.request in self._outstanding[rank]:
                self._blocked[rank] = step.request
                self._on_their_way[rank].append(step)

    def _deliver(self, rank: int) -> None:
        if not self._on_their_way[rank]:
            return
        step = self._on_their_way[rank].popleft()
        if isinstance(step, Request):
            self.negotiation.asks(rank, step)
        elif isinstance(step, Poll):
            self.negotiation.waits(rank)
        else:
            self.negotiation.is_blocked(rank, step.request.process_set, step.request.name)

    def _decide(self) -> None:
        for decision in self.negotiation.decide():
            self.decisions.append(decision)
            for rank in set(decision.members) - decision.joined:
                for request in decision.requests:
                    self._outstanding[rank].remove(request)
                    if self._blocked[rank] == request:
                        self._blocked[rank] = None


def can_end(programs: Sequence[Program], sets: Sets) -> bool:
    """Whether the ranks come to the end if everything is done as soon as all have asked for it."""
    ahead = [deque(program) for program in programs]
    asked: dict[Request, set[int]] = {}
    joined: set[int] = set()
    moved = True

    def done(request: Request) -> bool:
        needed = set(sets[request.process_set])
        return needed <= asked[request] | (set() if request == JOIN else joined)

    while moved:
        moved = False
        for rank, steps in enumerate(ahead):
            while steps and not (isinstance(steps[0], Wait) and not done(steps[0].request)):
                step = steps.popleft()
                moved = True
                if isinstance(step, Request):
                    asked.setdefault(step, set()).add(rank)
                if step == JOIN:
                    joined.add(rank)
    return not any(ahead)


# --- random programs ------------------------------------------------------------------------------------


def kinds_of_requests(joins: bool) -> st.SearchStrategy[Request]:
    reductions = st.builds(
        lambda floats, dtype, grouped, process_set: Request(
            Operation.ALLREDUCE,
            "",
            dtype,
            ((floats,),),
            grouped=grouped,
            process_set=process_set,
        ),
        st.integers(0, 9),
        st.sampled_from(["torch.float32", "torch.float32", "torch.float32", "torch.float64"]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([GLOBAL_SET, GLOBAL_SET, 1]),
    )
    others = st.sampled_from(
        [
            Request(Operation.BARRIER, ""),
            Request(Operation.BROADCAST, "", "torch.float32", ((3,),), root=0),
            Request(Operation.ALLGATHER, "", "torch.int64", ((3, 2),), process_set=1),
        ]
    )
    return reductions if joins else st.one_of(reductions, reductions, others)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Program], Sets]:
    """Of ranks that ask for the same, each in an order of its own, and wait here and there."""
    size = draw(st.integers(1, 4))
    first = draw(st.integers(0, size - 1))
    sets = {GLOBAL_SET: tuple(range(size)), 1: tuple(range(first, size))}
    joins = draw(st.booleans())
    requests = [
        _named(request, f"t{number}")
        for number, request in enumerate(draw(st.lists(kinds_of_requests(joins), max_size=8)))
    ]
    mixed_up = draw(st.booleans())
    programs: list[Program] = []
    for rank in range(size):
        own = [request for request in requests if rank in sets[request.process_set]]
        if mixed_up:
            own = draw(st.permutations(own))
        if joins:
            own = own[: draw(st.integers(0, len(own)))]
        programs.append(draw(programs_of(own, joins)))
    return programs, sets


@st.composite
def programs_of(draw: st.DrawFn, requests: Sequence[Request], joins: bool) -> Program:
    steps: list[Step] = []
    for number, request in enumerate(requests):
        steps.append(request)
        what = draw(st.sampled_from(["go on", "go on", "poll", "wait"]))
        if what == "poll":
            steps.append(Poll())
        elif what == "wait":
            steps.append(Wait(requests[draw(st.integers(0, number))]))
    if joins:
        steps += [JOIN, Wait(JOIN)]
    return steps + [Wait(request) for request in requests]


def _named(request: Request, name: str) -> Request:
    return Request(
        request.operation,
        name,
        request.dtype,
        request.shapes,
        root=request.root,
        grouped=request.grouped,
        process_set=request.process_set,
    )


A, B, C = reduce("a"), reduce("b"), reduce("c")
SEEDS = st.integers(0, 2**32 - 1)
TWO: Sets = {GLOBAL_SET: (0, 1)}


@settings(max_examples=examples(400))
@given(worlds(), st.integers(0, 60), SEEDS, SEEDS)
@example(([[A, B, Wait(A), Wait(B)], [B, A, Wait(B), Wait(A)]], TWO), 60, 1, 2)
@example(([[A, Wait(A), B, JOIN, Wait(JOIN), Wait(B)], [A, B, JOIN, Wait(JOIN)]], TWO), 60, 1, 2)
def test_ranks_that_ask_for_the_same_get_the_same_however_it_is_delivered(
    world: tuple[list[Program], Sets], fusion_bytes: int, one: int, other: int
) -> None:
    programs, sets = world
    plays = [World(programs, fusion_bytes, sets) for _ in range(2)]
    for play, seed in zip(plays, (one, other), strict=True):
        play.run(random.Random(seed))
        assert play.ended() == can_end(programs, sets)
        event(f"can end: {play.ended()}")
        _check(play.decisions, programs, sets, fusion_bytes)
    assert _messages(plays[0].decisions) == _messages(plays[1].decisions)


def _messages(decisions: list[Decision]) -> Counter[tuple[Request, ...]]:
    """Their order, and who joins last, may depend on who is faster."""
    return Counter(decision.requests for decision in decisions)


def _check(decisions: list[Decision], programs: list[Program], sets: Sets, fusion_bytes: int) -> None:
    done = [request for decision in decisions for request in decision.requests]
    assert len(done) == len(set(done))
    for decision in decisions:
        assert decision.error == ""
        assert decision.members == sets[decision.requests[0].process_set]
        for request in decision.requests:
            assert decision.joined == {rank for rank in decision.members if request not in programs[rank]}
        if len(decision.requests) > 1:
            assert sum(map(size_bytes, decision.requests)) <= fusion_bytes
            assert len({(request.dtype, request.process_set) for request in decision.requests}) == 1
            assert not any(request.grouped for request in decision.requests)


# --- fusing ---------------------------------------------------------------------------------------------


def names(decisions: Sequence[Decision]) -> list[list[str]]:
    return [[request.name for request in decision.requests] for decision in decisions]


def play(size: int, fusion_bytes: int, *said: tuple[int, Step]) -> list[Decision]:
    """What is decided in the end, and on the way, if that is said in this order."""
    return after(Negotiation(size, fusion_bytes), *said)


def after(negotiation: Negotiation, *said: tuple[int, Step]) -> list[Decision]:
    decisions: list[Decision] = []
    for rank, step in said:
        if isinstance(step, Request):
            negotiation.asks(rank, step)
        else:
            negotiation.waits(rank)
            if isinstance(step, Wait):
                negotiation.is_blocked(rank, step.request.process_set, step.request.name)
        decisions.extend(negotiation.decide())
    return decisions


def test_what_all_ask_for_before_anybody_waits_is_one_message() -> None:
    decisions = play(2, 100, (0, A), (0, B), (1, B), (1, A), (0, Poll()))

    assert names(decisions) == [["a", "b"]]


def test_a_message_is_not_complete_before_somebody_waits_or_it_is_full() -> None:
    assert names(play(2, 100, (0, A), (0, B), (1, A), (1, B))) == []
    assert names(play(2, 8, (0, A), (0, B), (1, A), (1, B))) == [["a", "b"]]


def test_a_message_waits_for_a_tensor_that_belongs_before_others_and_comes_later() -> None:
    early = play(2, 100, (0, A), (0, B), (0, Poll()), (1, B))

    assert names(early) == []
    assert names(play(2, 100, (0, A), (0, B), (0, Poll()), (1, B), (1, A))) == [["a", "b"]]


def test_a_message_does_not_wait_for_what_is_asked_for_after_waiting() -> None:
    assert names(play(2, 100, (0, A), (0, B), (0, Poll()), (1, B), (1, Poll()))) == [["b"]]


def test_a_tensor_that_is_larger_than_a_message_goes_alone() -> None:
    large = reduce("large", 100)
    decisions = play(2, 40, (0, A), (0, large), (0, B), (1, A), (1, large), (1, B), (1, Poll()))

    assert names(decisions) == [["a"], ["large"], ["b"]]


@pytest.mark.parametrize(
    "other",
    [
        reduce("b", reduction=Reduction.MAX),
        reduce("b", prescale=0.5),
        reduce("b", postscale=0.5),
        reduce("b", on_gpu=True),
        reduce("b", grouped=True),
        reduce("b", process_set=1),
        Request(Operation.ALLREDUCE, "b", "torch.float64", ((1,),)),
    ],
)
def test_only_tensors_of_one_kind_share_a_message(other: Request) -> None:
    negotiation = Negotiation(2, 100, {1: (0, 1)})
    decisions = after(negotiation, (0, A), (0, other), (1, A), (1, other), (1, Poll()))

    assert sorted(names(decisions)) == [["a"], ["b"]]


# --- what does not fit ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (reduce("a", 2), "shapes"),
        (reduce("a", reduction=Reduction.MIN), "reductions"),
        (reduce("a", prescale=2.0), "prescale"),
        (reduce("a", on_gpu=True), "devices"),
        (reduce("a", grouped=True), "numbers of tensors"),
        (Request(Operation.ALLREDUCE, "a", "torch.int32", ((1,),)), "data types"),
        (Request(Operation.ALLGATHER, "a", "torch.float32", ((1,),)), "operations"),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_who_asks_for_something_else_is_named(other: Request, what: str, order: tuple[int, ...]) -> None:
    decisions = play(3, 100, *((rank, other if rank == 1 else A) for rank in order))

    (decision,) = decisions
    assert decision.members == (0, 1, 2)
    assert what in decision.error
    assert "tensor a" in decision.error
    assert "ranks 0, 2 sent" in decision.error
    assert "rank 1 sent" in decision.error
    assert not decision.ended


def test_a_mismatch_is_found_among_those_who_have_not_joined() -> None:
    (decision,) = play(3, 100, (2, JOIN), (0, A), (1, reduce("a", 2)))

    assert decision.members == (0, 1)
    assert "shapes" in decision.error


def test_gathered_tensors_may_differ_in_their_first_dimension_only() -> None:
    def gather(*shape: int) -> Request:
        return Request(Operation.ALLGATHER, "g", "torch.float32", (shape,))

    (fits,) = play(2, 100, (1, gather(5, 2)), (0, gather(3, 2)))
    (does_not,) = play(2, 100, (1, gather(5, 2)), (0, gather(5, 3)))

    assert fits.first_dimensions == ((3, 5),)
    assert "shapes" in does_not.error


def test_rows_of_an_all_to_all_are_told_member_by_member() -> None:
    def exchange(process_set: int, *splits: int) -> Request:
        return Request(
            Operation.ALLTOALL, "x", "torch.int8", ((sum(splits),),), process_set=process_set, splits=splits
        )

    negotiation = Negotiation(3, 100, {1: (0, 2)})
    (decision,) = after(negotiation, (2, exchange(1, 3, 4)), (0, exchange(1, 1, 2)))

    assert decision.splits == ((1, 2), (3, 4))


# --- joining, leaving -----------------------------------------------------------------------------------


def test_who_has_joined_takes_part_in_what_others_reduce() -> None:
    (decision,) = play(3, 100, (1, JOIN), (0, A), (2, A), (0, Poll()))

    assert decision.joined == {1}
    assert decision.members == (0, 1, 2)


def test_what_was_asked_for_before_joining_is_done_with_the_tensor_of_who_joined() -> None:
    (decision,) = play(2, 100, (1, A), (1, JOIN), (0, A), (0, Poll()))

    assert decision.joined == frozenset()


def test_joining_ends_when_all_have_joined_and_tells_who_was_last() -> None:
    *before, last = play(3, 100, (1, A), (1, JOIN), (0, JOIN), (2, JOIN))

    assert names(before) == [["a"]]
    assert before[0].joined == {0, 2}
    assert (last.requests, last.result) == ((JOIN,), 2)


def test_ranks_can_join_again() -> None:
    negotiation = Negotiation(2, 100)

    assert [decision.result for decision in after(negotiation, (0, JOIN), (1, JOIN))] == [1]
    assert names(after(negotiation, (0, A), (0, Wait(A)))) == []
    assert [decision.result for decision in after(negotiation, (1, A), (1, JOIN), (0, JOIN))] == [-1, 0]


def test_what_cannot_be_done_without_those_who_joined_is_refused() -> None:
    gather = Request(Operation.ALLGATHER, "g", "torch.float32", ((3,),))
    (decision,) = play(2, 100, (1, JOIN), (0, gather))

    assert decision.members == (0,)
    assert "rank 1 joined" in decision.error


def without_rank_1(*steps: tuple[int, object]) -> list[Decision]:
    """What is decided of three ranks' steps, after the second one is gone."""
    negotiation = Negotiation(3, 100)
    before = after(negotiation, (1, A), (1, GATHER))
    assert before == []
    negotiation.goes_on_without(1)
    return after(negotiation, *steps)  # type: ignore[arg-type]


GATHER = Request(Operation.ALLGATHER, "g", "torch.float32", ((3,),))


def test_who_is_gone_is_left_out_and_told_nothing() -> None:
    (reduced,) = without_rank_1((0, A), (2, A), (0, Poll()), (2, Poll()))
    (gathered,) = without_rank_1((0, GATHER), (2, GATHER))
    (ended,) = without_rank_1((0, JOIN), (2, JOIN))

    assert (reduced.members, reduced.gone, reduced.joined) == ((0, 1, 2), {1}, frozenset())
    assert gathered.first_dimensions == ((3, 0, 3),)
    assert ended.result == 2


@pytest.mark.parametrize(
    "request_",
    [
        Request(Operation.BROADCAST, "b", "torch.float32", ((3,),), root=1),
        Request(Operation.ALLTOALL, "t", "torch.float32", ((3,),), splits=(1, 1, 1)),
        Request(Operation.REDUCESCATTER, "r", "torch.float32", ((3,),)),
    ],
)
def test_what_cannot_be_done_without_who_is_gone_is_refused(request_: Request) -> None:
    (decision,) = without_rank_1((0, request_), (2, request_))

    assert "rank 1 ended" in decision.error
    assert (decision.ended, decision.members) == (True, (0, 2))


def test_what_all_had_asked_for_is_done_with_who_is_gone() -> None:
    negotiation = Negotiation(3, 100)
    assert after(negotiation, (0, A), (1, A), (2, A)) == []
    negotiation.goes_on_without(1)
    (decision,) = after(negotiation, (0, Poll()), (2, Poll()))

    assert (names([decision]), decision.gone) == ([["a"]], {1})


def test_nobody_waits_for_who_is_gone() -> None:
    negotiation = Negotiation(2, 100)
    after(negotiation, (0, A), (0, Wait(A)))
    negotiation.goes_on_without(1)

    assert names(negotiation.decide()) == [["a"]]
    assert not negotiation.everybody_waits()


@pytest.mark.parametrize("request_", [A, JOIN, Request(Operation.BARRIER, "a")])
def test_what_needs_somebody_who_left_is_refused(request_: Request) -> None:
    before, behind = Negotiation(3, 100), Negotiation(3, 100)
    before.asks(0, request_)
    before.leaves(1)
    behind.leaves(1)
    behind.asks(0, request_)

    for negotiation in (before, behind):
        (decision,) = negotiation.decide()
        assert decision.members == (0,)
        assert decision.ended
        assert "rank 1 ended" in decision.error


def test_what_all_had_asked_for_is_done_though_somebody_left() -> None:
    negotiation = Negotiation(2, 100)
    after(negotiation, (0, A), (1, A))
    negotiation.leaves(1)

    assert [decision.error for decision in negotiation.decide()] == [""]


# --- process sets ---------------------------------------------------------------------------------------


def add(*members: int) -> Request:
    return Request(Operation.ADD_PROCESS_SET, f"add {members}", members=members)


def remove(number: int) -> Request:
    return Request(Operation.REMOVE_PROCESS_SET, f"remove {number}", removed_set=number)


def all_ask(negotiation: Negotiation, request: Request) -> list[Decision]:
    return after(negotiation, *((rank, request) for rank in negotiation.process_sets[GLOBAL_SET]))


def test_a_process_set_is_added_once_and_its_number_is_not_used_again() -> None:
    negotiation = Negotiation(3, 100, {1: (0, 1)})

    assert [decision.result for decision in all_ask(negotiation, add(1, 2))] == [2]
    assert [decision.result for decision in all_ask(negotiation, add(1, 2))] == [-1]
    assert [decision.result for decision in all_ask(negotiation, remove(2))] == [0]
    assert [decision.result for decision in all_ask(negotiation, remove(2))] == [-1]
    assert [decision.result for decision in all_ask(negotiation, add(1, 2))] == [3]


def test_the_set_of_all_cannot_be_removed() -> None:
    negotiation = Negotiation(2, 100)

    assert [decision.result for decision in all_ask(negotiation, remove(GLOBAL_SET))] == [-1]
    assert names(all_ask(negotiation, Request(Operation.BARRIER, "b"))) == [["b"]]


def test_only_members_are_needed_for_what_is_asked_for_in_a_process_set() -> None:
    negotiation = Negotiation(3, 100, {1: (0, 2)})
    mine = reduce("m", process_set=1)
    (decision,) = after(negotiation, (2, mine), (0, mine), (0, Poll()))

    assert decision.members == (0, 2)


def test_what_is_outstanding_in_a_set_that_is_removed_is_done_or_refused() -> None:
    negotiation = Negotiation(2, 100, {1: (0, 1)})
    whole, partly = reduce("whole", process_set=1), reduce("partly", process_set=1)
    first, second, third = after(
        negotiation, (0, whole), (0, partly), (1, whole), (0, remove(1)), (1, remove(1))
    )

    assert names([first, second, third]) == [["whole"], ["remove 1"], ["partly"]]
    assert (first.error, second.result, third.members) == ("", 0, (0,))
    assert "removed" in third.error
    negotiation.leaves(1)
    assert negotiation.decide() == []


@pytest.mark.parametrize("process_set", [1, 7])
def test_who_asks_in_a_set_that_there_is_not_or_is_not_in_it_is_told(process_set: int) -> None:
    negotiation = Negotiation(3, 100, {1: (0, 1)})
    (decision,) = after(negotiation, (2, reduce("a", process_set=process_set)))

    assert decision.members == (2,)
    assert f"process set {process_set}" in decision.error
    assert not negotiation.everybody_waits()


# --- programs that cannot end ---------------------------------------------------------------------------


def test_ranks_that_wait_for_each_other_are_all_told_who_waits_for_what() -> None:
    negotiation = Negotiation(3, 100)
    assert after(negotiation, (0, A), (0, Wait(A)), (1, B), (1, Wait(B)), (2, B)) == []
    assert not negotiation.everybody_waits()
    assert after(negotiation, (2, Wait(B))) == []
    assert negotiation.everybody_waits()

    decisions = {decision.requests[0].name: decision for decision in negotiation.give_up_all()}

    assert {name: decision.members for name, decision in decisions.items()} == {"a": (0,), "b": (1, 2)}
    for decision in decisions.values():
        assert says(decision.error, "rank 0 waits for a", "ranks 1, 2 did not ask")
        assert says(decision.error, "ranks 1, 2 wait for b", "rank 0 did not ask")
    assert not negotiation.everybody_waits()
    assert names(after(negotiation, (0, A), (1, A), (2, A), (2, Poll()))) == [["a"]]


def test_who_has_what_it_waited_for_is_not_waiting_though_others_ask_for_it_again() -> None:
    negotiation = Negotiation(2, 100)
    assert names(after(negotiation, (0, A), (0, Wait(A)), (1, A), (1, Wait(A)))) == [["a"]]
    after(negotiation, (1, A), (1, Wait(A)))

    assert not negotiation.everybody_waits()


def test_who_joined_or_left_asks_for_nothing_that_others_could_wait_for() -> None:
    negotiation = Negotiation(4, 100, {1: (1, 2)})
    in_set = reduce("s", process_set=1)
    after(negotiation, (0, JOIN), (1, in_set), (1, Wait(in_set)), (2, A))
    negotiation.leaves(3)
    negotiation.decide()
    assert not negotiation.everybody_waits()
    after(negotiation, (2, B), (2, Wait(B)))

    assert not negotiation.everybody_waits()  # rank 2 was told that B cannot be done


def test_what_takes_too_long_is_told_with_those_who_are_missing() -> None:
    negotiation = Negotiation(3, 100)
    negotiation.asks(0, A, now_s=10.0)
    negotiation.asks(2, A, now_s=90.0)
    negotiation.asks(2, B, now_s=90.0)

    assert negotiation.stalled(10.0) == {}
    assert negotiation.stalled(11.0) == {"a": (1,)}
    assert [decision.members for decision in negotiation.give_up("a", "why")] == [(0, 2)]
    assert negotiation.stalled(100.0) == {"b": (0, 1)}
