"""A check that the requests of the ranks under one name fit together, with an error text if they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from horovod_elastic.core.c10d.requests import Operation, Request

_ANY_FIRST_DIMENSION = (Operation.ALLGATHER, Operation.ALLTOALL)
"""Operations whose tensors may differ in the first dimension from rank to rank."""


def disagreement(requests: Mapping[int, Request]) -> str:
    """A text that names the first difference, with tensor and ranks; empty if the requests fit together.

    `requests`: the requests by rank, at least one.
    """
    first = next(iter(requests.values()))
    # Equal requests of most ranks are one object (messages.Interned). Comparing all takes rank 0 much longer.
    distinct = {id(request): request for request in requests.values()}
    if all(request == first for request in distinct.values()):
        return ""
    for what, look in _LOOKS:
        by_value: dict[object, list[int]] = {}
        for rank, request in sorted(requests.items()):
            by_value.setdefault(look(request), []).append(rank)
        if len(by_value) > 1:
            sides = [f"{ranks_text(ranks)} sent {_text(value)}" for value, ranks in by_value.items()]
            return f"Mismatched {what} for tensor {first.name}: {', '.join(sides)}."
    return ""


def ranks_text(ranks: Sequence[int]) -> str:
    """The ranks in words: `rank 3`, `ranks 0, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def _shapes(request: Request) -> object:
    if request.operation in _ANY_FIRST_DIMENSION:
        return tuple(("any", *shape[1:]) if shape else () for shape in request.shapes)
    return request.shapes


_LOOKS: tuple[tuple[str, Callable[[Request], object]], ...] = (
    ("operations", lambda request: request.operation.name.lower()),
    ("numbers of tensors in a group", lambda request: (request.grouped, len(request.shapes))),
    ("data types", lambda request: request.dtype),
    ("shapes", _shapes),
    ("reductions", lambda request: request.reduction.name.lower()),
    ("prescale and postscale factors", lambda request: (request.prescale, request.postscale)),
    ("root ranks", lambda request: request.root),
    ("process sets to remove", lambda request: request.removed_set),
    ("devices", lambda request: "a tensor on a GPU" if request.on_gpu else "a tensor in memory"),
    ("members of a process set", lambda request: request.members),
)


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
