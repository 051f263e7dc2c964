"""What ranks ask of each other: a request by one rank, and the response that all carry out at once.

A rank names the tensor and says what is to become of it; rank 0 answers once all members have asked for the
same (negotiation.py). A grouped operation is one request with several tensors: all of them or none.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

GLOBAL_SET = 0
"""The process set of all ranks."""
Key = tuple[int, str]
"""What is asked for: its process set and its name there."""


_ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}


class Operation(enum.IntEnum):
    """What can be asked for."""

    ALLREDUCE = 1
    ALLGATHER = 2
    BROADCAST = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    BARRIER = 6
    JOIN = 7
    ADD_PROCESS_SET = 8
    REMOVE_PROCESS_SET = 9


class Reduction(enum.IntEnum):
    """Horovod's numbers (common/common.h, ReduceOp)."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's wish. What the operation does not need keeps its default."""

    operation: Operation
    name: str
    dtype: str = ""
    """As str(tensor.dtype) says; one for all tensors of a group."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of each tensor, at this rank."""
    on_gpu: bool = False
    reduction: Reduction = Reduction.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    """Of a broadcast: a rank of the generation, not of the process set. Of a process set to be removed: its
    number."""
    process_set: int = GLOBAL_SET
    splits: tuple[int, ...] = ()
    """Of an all-to-all: how many rows go to each member. Always given."""
    members: tuple[int, ...] = ()
    """Of a process set that is to be added: ranks in ascending order."""
    grouped: bool = False
    """It was asked for as a group, if only of one tensor: never fused with others."""


def key_of(request: Request) -> Key:
    """Under which it is negotiated."""
    return request.process_set, request.name


def is_fusable(request: Request) -> bool:
    """Whether it may share a message with others."""
    return request.operation is Operation.ALLREDUCE and not request.grouped


def size_bytes(request: Request) -> int:
    """Of its tensors, at this rank."""
    item = _ITEM_BYTES.get(request.dtype.removeprefix("torch."), 1)
    return sum(math.prod(shape) for shape in request.shapes) * item


@dataclass(frozen=True, slots=True)
class Response:
    """What the members of a process set do next."""

    requests: tuple[Request, ...]
    """Of one operation and one kind, in the order in which they are fused. One, unless they are all-reduces.

    Shapes are this rank's own; where it has joined, and asked for nothing, those that others reduce."""
    first_dimensions: tuple[tuple[int, ...], ...] = ()
    """Of an all-gather: for each tensor of the request, the first dimension at each member."""
    splits: tuple[tuple[int, ...], ...] = ()
    """Of an all-to-all: splits[i][j] rows go from the i-th member to the j-th."""
    result: int = -1
    """Who joined last; the number of an added process set; 0 if one was removed, -1 if it was unknown."""
