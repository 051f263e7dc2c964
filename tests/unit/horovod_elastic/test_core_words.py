"""What ranks and rank 0 say to each other arrives as it was meant, and repeated requests as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_protos.v1 import collectives_pb2 as pb
from horovod_elastic.core.c10d import messages
from horovod_elastic.core.c10d.messages import (
    Blocked,
    Heard,
    Interned,
    NumbersOfARank,
    RankNumbers,
    Step,
    WaitStep,
    as_heard,
    decode_request,
    encode,
    encode_request,
)
from horovod_elastic.core.c10d.negotiation import Decision
from horovod_elastic.core.c10d.requests import Operation, Reduction, Request, key_of

sizes = st.integers(0, 2**40)
ranks = st.integers(0, 2**20)
any_fields = st.builds(
    Request,
    operation=st.sampled_from(Operation),
    name=st.text(),
    dtype=st.sampled_from(["", "torch.float32", "torch.bool"]),
    shapes=st.lists(st.lists(sizes, max_size=4).map(tuple), max_size=3).map(tuple),
    on_gpu=st.booleans(),
    reduction=st.sampled_from(Reduction),
    prescale=st.floats(allow_nan=False),
    postscale=st.floats(allow_nan=False),
    root=st.integers(-1, 2**20),
    process_set=st.integers(0, 2**20),
    splits=st.lists(sizes, max_size=4).map(tuple),
    members=st.lists(ranks, max_size=4).map(tuple),
    grouped=st.booleans(),
)
requests = any_fields.map(
    lambda request: (
        replace(request, root=-1, removed_set=request.root)
        if request.operation is Operation.REMOVE_PROCESS_SET
        else request
    )
)


def reduce(name: str, process_set: int = 0) -> Request:
    return Request(Operation.ALLREDUCE, name, "torch.float32", ((3,),), process_set=process_set)


class Conversation:
    """One rank with rank 0."""

    def __init__(self) -> None:
        self.rank = RankNumbers()
        self.rank_0 = NumbersOfARank(Interned())
        self.bytes = 0

    def say(self, *steps: Step) -> list[Step]:
        """What rank 0 hears."""
        message = pb.FromRank(steps=self.rank.encode(steps)).SerializeToString()
        self.bytes = len(message)
        return list(self.rank_0.decode(pb.FromRank.FromString(message).steps))

    def answer(self, heard: Heard) -> Heard:
        """What the rank hears."""
        message = encode(heard, self.rank_0.numbers(heard)).SerializeToString()
        return self.rank.decode(pb.Collective.FromString(message))

    def answer_all(self, keys: Sequence[messages.RequestKey]) -> None:
        assert self.answer(Heard(tuple(keys))) == Heard(tuple(keys))


@given(requests)
def test_a_request_is_the_same_after_it_was_said(request_: Request) -> None:
    message = encode_request(request_).SerializeToString()

    assert decode_request(pb.CollectiveRequest.FromString(message)) == request_


@given(st.lists(requests, max_size=5, unique_by=key_of), st.lists(st.permutations(range(5)), max_size=4))
def test_steps_are_the_same_in_the_same_order_however_often_they_are_said(
    known: list[Request], orders: list[list[int]]
) -> None:
    talk = Conversation()
    for order in orders:
        steps: list[Step] = []
        for number in order:
            steps += known[number : number + 1]
            steps += [WaitStep()] if number % 2 else []
        asked = [key_of(step) for step in steps if isinstance(step, Request)]
        steps += [Blocked(asked[-1])] if asked else []

        assert talk.say(*steps) == steps
        talk.answer_all(asked)


def test_what_is_asked_for_again_is_said_in_few_bytes() -> None:
    talk = Conversation()
    gradients = [reduce(f"a rather long name of a gradient {number}") for number in range(100)]
    for repeated in (False, True):
        assert talk.say(*gradients) == gradients
        assert (talk.bytes < 500) == repeated
        talk.answer_all(list(map(key_of, gradients)))


def test_names_that_are_new_every_time_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_NUMBERED", 10)
    talk = Conversation()
    kept = reduce("again and again")
    for number in range(100):
        steps = [kept, reduce(f"new {number}"), WaitStep()]
        assert talk.say(*steps) == steps
        talk.answer_all([(0, "again and again"), (0, f"new {number}")])

    assert len(talk.rank._numbers) <= 10
    assert len(talk.rank_0._requests) <= 20
    assert len(talk.rank_0._interned._requests) <= 10


def test_what_is_outstanding_for_long_is_answered_though_its_number_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "MAX_NUMBERED", 10)
    talk = Conversation()
    talk.say(reduce("early"))
    for number in range(100):
        talk.say(reduce(f"new {number}"))
        talk.answer_all([(0, f"new {number}")])

    talk.answer_all([(0, "early")])


def test_equal_requests_of_different_ranks_are_one_object_at_rank_0() -> None:
    interned = Interned()
    heard = []
    for _ in range(3):
        steps = RankNumbers().encode([reduce("a")])
        heard += list(NumbersOfARank(interned).decode(steps))

    assert heard[0] is heard[1] is heard[2]


def test_each_rank_hears_its_own_numbers() -> None:
    talks = [Conversation(), Conversation()]
    for talk, names in zip(talks, ("ab", "ba"), strict=True):
        talk.say(*map(reduce, names))
    heard = as_heard(Decision((0, 1), (reduce("a"), reduce("b"))), 0)

    assert [talk.rank_0.numbers(heard) for talk in talks] == [(0, 1), (1, 0)]
    for talk, numbers in zip(talks, ((0, 1), (1, 0)), strict=True):
        assert talk.rank.decode(encode(heard, numbers)) == heard


def test_who_has_joined_hears_what_the_others_do() -> None:
    decision = Decision((0, 1), (reduce("a"), reduce("b", process_set=2)), joined=frozenset({1}))
    talk = Conversation()

    assert as_heard(decision, 0).keys == ((0, "a"), (2, "b"))
    assert talk.answer(as_heard(decision, 1)).requests == decision.requests


def test_everything_about_a_decision_is_heard() -> None:
    talk = Conversation()
    talk.say(reduce("a"))
    heard = Heard(
        keys=((0, "a"),),
        first_dimensions=((1, 0), (3, 4)),
        splits=((), (2, 1)),
        result=-1,
        error="rank 1 ended",
        ended=True,
    )

    assert talk.answer(heard) == heard


def test_who_is_blocked_by_what_was_answered_meanwhile_is_not_blocked() -> None:
    talk = Conversation()
    talk.say(reduce("a"))
    talk.answer_all([(0, "a")])

    assert talk.say(WaitStep(), Blocked((0, "a"))) == [WaitStep()]


def test_a_number_that_was_never_given_is_an_error() -> None:
    step = pb.ProgramStep(asks_again=pb.RequestNumbers(numbers=[7]))

    with pytest.raises(KeyError):
        list(NumbersOfARank(Interned()).decode([step]))


@pytest.mark.parametrize("field", ["operation", "reduction"])
def test_an_operation_or_reduction_that_there_is_not_is_an_error(field: str) -> None:
    message = encode_request(reduce("a"))
    setattr(message, field, 99)

    with pytest.raises(ValueError, match="99"):
        decode_request(message)
