"""Requests that ranks make, and responses that the members of a process set carry out together.

A request names a tensor and an operation. Rank 0 responds once all members of the process set have made the
same request (negotiation.py). A grouped operation is one request with several tensors. It is carried out on
all of them or on none.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

GLOBAL_SET = 0
"""The number of the process set of all ranks."""
RequestKey = tuple[int, str]
"""The key of a request: the number of its process set, and its name within that set."""


_ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}


class Operation(enum.IntEnum):
    """The operations that a rank can request."""

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
    """The ways to reduce tensors, with Horovod's numbers (common/common.h, ReduceOp)."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's request for one operation. Fields that the operation does not need keep their defaults."""

    operation: Operation
    name: str
    dtype: str = ""
    """The type of all tensors of the request, as str(tensor.dtype) gives it."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shape of each tensor at this rank."""
    on_gpu: bool = False
    reduction: Reduction = Reduction.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    """For BROADCAST: the sending rank, as a rank of the generation, not of the process set."""
    removed_set: int = -1
    """For REMOVE_PROCESS_SET: the number of the process set to remove."""
    process_set: int = GLOBAL_SET
    splits: tuple[int, ...] = ()
    """For ALLTOALL, always given: the number of this rank's rows that go to each member."""
    members: tuple[int, ...] = ()
    """For ADD_PROCESS_SET: the ranks of the new process set, in ascending order."""
    grouped: bool = False
    """The script made a grouped call, even if with one tensor. The request is never fused with others."""


def key_of(request: Request) -> RequestKey:
    """The key under which the ranks negotiate the request."""
    return request.process_set, request.name


def is_fusable(request: Request) -> bool:
    """Whether the request may be fused with others into one message: an all-reduce that is not grouped."""
    return request.operation is Operation.ALLREDUCE and not request.grouped


def size_bytes(request: Request) -> int:
    """The size in bytes of the request's tensors at this rank. Types that are not listed have one byte."""
    item = _ITEM_BYTES.get(request.dtype.removeprefix("torch."), 1)
    return sum(math.prod(shape) for shape in request.shapes) * item


@dataclass(frozen=True, slots=True)
class Response:
    """The next operation that the members of a process set carry out."""

    requests: tuple[Request, ...]
    """One request, or several if rank 0 has fused all-reduces, in the order in which they are fused.

    Fused all-reduces have the same dtype, device (GPU or CPU), reduction, prescale and postscale. The shapes
    are those at this rank. If this rank has called join() and made no request, they are those at others."""
    first_dimensions: tuple[tuple[int, ...], ...] = ()
    """For ALLGATHER: for each tensor of the request, its first dimension at each member."""
    splits: tuple[tuple[int, ...], ...] = ()
    """For ALLTOALL: splits[i][j] rows go from the i-th member to the j-th."""
    result: int = -1
    """The result of JOIN, ADD_PROCESS_SET and REMOVE_PROCESS_SET; -1 for other operations.

    For JOIN: the rank that joined last. For ADD_PROCESS_SET: the number of the new set; -1 if a set of these
    ranks exists. For REMOVE_PROCESS_SET: 0 if the set was removed; -1 if it is unknown or the global set."""
