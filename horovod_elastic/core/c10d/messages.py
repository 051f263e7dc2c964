"""Encoding and decoding of the messages between ranks and rank 0 (collectives.proto).

A rank numbers its requests. It sends a repeated request as a number, because gradients are the same in every
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flexo_protos.v1 import collectives_pb2 as pb
from horovod_elastic.core.c10d.negotiation import Decision
from horovod_elastic.core.c10d.requests import Operation, Reduction, Request, RequestKey, key_of

MAX_NUMBERED = 8192
"""Limit of the requests that are remembered by number. Requests with ever new names must not pile up."""
_NO_NUMBER = 2**32 - 1


@dataclass(frozen=True, slots=True)
class WaitStep:
    """A step of a rank's program: the rank waits, or polls."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A step of a rank's program: the rank does nothing before the request under this key is done."""

    key: RequestKey


Step = Request | WaitStep | Blocked
"""A step of a rank's program."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A decision of rank 0, as one rank receives it."""

    keys: tuple[RequestKey, ...] = ()
    """The keys of this rank's requests, in the order in which they are fused; empty if it has joined."""
    requests: tuple[Request, ...] = ()
    """The requests that the others carry out, if this rank has joined; otherwise empty."""
    first_dimensions: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    result: int = -1
    error: str = ""
    ended: bool = False
    """See Decision.ended."""


def as_heard(decision: Decision, rank: int) -> Heard:
    """The decision as this rank receives it."""
    joined = rank in decision.joined
    return Heard(
        keys=() if joined else tuple(key_of(request) for request in decision.requests),
        requests=decision.requests if joined else (),
        first_dimensions=decision.first_dimensions,
        splits=decision.splits,
        result=decision.result,
        error=decision.error,
        ended=decision.ended,
    )


class RankNumbers:
    """A rank's side of the numbering: encodes steps into messages, and decodes the numbers in answers."""

    def __init__(self) -> None:
        self._numbers: dict[Request, int] = {}
        self._outstanding: dict[int, RequestKey] = {}
        self._by_key: dict[RequestKey, int] = {}
        self._next = 0

    def encode(self, steps: Iterable[Step]) -> list[pb.ProgramStep]:
        """The steps as messages, in the same order."""
        encoded: list[pb.ProgramStep] = []
        again: list[int] = []
        for step in steps:
            if isinstance(step, Request) and (number := self._numbers.get(step)) is not None:
                self._is_outstanding(number, step)
                again.append(number)
                continue
            if again:
                encoded.append(pb.ProgramStep(asks_again=pb.RequestNumbers(numbers=again)))
                again = []
            encoded.append(self._encode_one(step))
        if again:
            encoded.append(pb.ProgramStep(asks_again=pb.RequestNumbers(numbers=again)))
        return encoded

    def _encode_one(self, step: Step) -> pb.ProgramStep:
        if isinstance(step, WaitStep):
            return pb.ProgramStep(waits=True)
        if isinstance(step, Blocked):
            # Rank 0 no longer knows a request that was answered meanwhile: send a number without meaning.
            return pb.ProgramStep(is_blocked=self._by_key.get(step.key, _NO_NUMBER))
        if len(self._numbers) >= MAX_NUMBERED:
            self._numbers.clear()
        number, self._next = self._next, self._next + 1
        self._numbers[step] = number
        self._is_outstanding(number, step)
        return pb.ProgramStep(asks=encode_request(step))

    def _is_outstanding(self, number: int, request: Request) -> None:
        key = key_of(request)
        self._outstanding[number] = key
        self._by_key[key] = number

    def decode(self, collective: pb.Collective) -> Heard:
        """The decision in a message of rank 0, with the keys of this rank's requests."""
        keys = tuple(self._outstanding.pop(number) for number in collective.numbers.numbers)
        for key in keys:
            del self._by_key[key]
        return Heard(
            keys=keys,
            requests=tuple(map(decode_request, collective.requests)),
            first_dimensions=_tuples(collective.first_dimensions),
            splits=_tuples(collective.splits),
            result=collective.result,
            error=collective.error,
            ended=collective.ended,
        )


class Interned:
    """Makes equal requests of different ranks one object. Then mostly there is nothing to compare."""

    def __init__(self) -> None:
        self._requests: dict[Request, Request] = {}

    def one(self, request: Request) -> Request:
        """The remembered request that equals `request`. If there is none, `request`, which is remembered."""
        if len(self._requests) >= MAX_NUMBERED:
            self._requests.clear()
        return self._requests.setdefault(request, request)


class NumbersOfARank:
    """Rank 0's side of the numbering for one rank: decodes the rank's messages, and numbers the answers."""

    def __init__(self, interned: Interned) -> None:
        self._interned = interned
        self._requests: dict[int, Request] = {}
        self._outstanding: dict[RequestKey, int] = {}
        self._next = 0

    def decode(self, steps: Iterable[pb.ProgramStep]) -> Iterator[Step]:
        """The steps in the messages, in the same order.

        Raises KeyError for an unknown number, and ValueError as decode_request does.
        """
        for step in steps:
            kind = step.WhichOneof("body")
            if kind == "asks":
                yield self._is_new(self._interned.one(decode_request(step.asks)))
            elif kind == "asks_again":
                for number in step.asks_again.numbers:
                    request = self._requests[number]
                    self._outstanding[key_of(request)] = number
                    yield request
            elif kind == "is_blocked":
                if (found := self._requests.get(step.is_blocked)) is not None:
                    yield Blocked(key_of(found))
            else:
                yield WaitStep()

    def _is_new(self, request: Request) -> Request:
        number, self._next = self._next, self._next + 1
        self._requests[number] = request
        self._requests.pop(number - 2 * MAX_NUMBERED, None)
        self._outstanding[key_of(request)] = number
        return request

    def numbers(self, heard: Heard) -> tuple[int, ...]:
        """The rank's numbers of the requests in `heard`. These requests are no longer outstanding."""
        return tuple(self._outstanding.pop(key) for key in heard.keys)


def encode(heard: Heard, numbers: Sequence[int]) -> pb.Collective:
    """The message for a rank that gave these numbers to its requests."""
    return pb.Collective(
        numbers=pb.RequestNumbers(numbers=numbers),
        requests=map(encode_request, heard.requests),
        first_dimensions=_dimensions(heard.first_dimensions),
        splits=_dimensions(heard.splits),
        result=heard.result,
        error=heard.error,
        ended=heard.ended,
    )


def encode_request(request: Request) -> pb.CollectiveRequest:
    """The message with all fields of the request."""
    return pb.CollectiveRequest(
        operation=request.operation,
        name=request.name,
        dtype=request.dtype,
        shapes=_dimensions(request.shapes),
        on_gpu=request.on_gpu,
        reduction=request.reduction,
        prescale=request.prescale,
        postscale=request.postscale,
        root=request.removed_set if request.operation is Operation.REMOVE_PROCESS_SET else request.root,
        process_set=request.process_set,
        splits=request.splits,
        members=request.members,
        grouped=request.grouped,
    )


def decode_request(message: pb.CollectiveRequest) -> Request:
    """The request in a message. Raises ValueError for an unknown operation or reduction."""
    operation = Operation(message.operation)
    removes = operation is Operation.REMOVE_PROCESS_SET
    return Request(
        operation=operation,
        name=message.name,
        dtype=message.dtype,
        shapes=_tuples(message.shapes),
        on_gpu=message.on_gpu,
        reduction=Reduction(message.reduction),
        prescale=message.prescale,
        postscale=message.postscale,
        root=-1 if removes else message.root,
        removed_set=message.root if removes else -1,
        process_set=message.process_set,
        splits=tuple(message.splits),
        members=tuple(message.members),
        grouped=message.grouped,
    )


def _dimensions(all_sizes: Iterable[Sequence[int]]) -> list[pb.Dimensions]:
    return [pb.Dimensions(sizes=sizes) for sizes in all_sizes]


def _tuples(dimensions: Iterable[pb.Dimensions]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(each.sizes) for each in dimensions)
