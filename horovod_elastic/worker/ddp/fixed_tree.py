"""Sums over all ranks in a fixed order, whatever carries the tensors and wherever the ranks run.

Floating-point numbers added in another order give other bits, and libraries choose the order by the
network. So each rank gets its part of all ranks' tensors, adds these parts up along one binary tree over the
ranks, and gives the sum to all. That moves as much data as an all-reduce. Tensors on a GPU go through memory:
several ranks may share a GPU, which NCCL refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from horovod_elastic.worker.ddp import torchs_own

_REDUCING = ("allreduce", "allreduce_coalesced", "reduce")


def adds_up(name: str, tensors: Sequence[torch.Tensor], options: Sequence[Any]) -> bool:
    """Whether the collective `name` of ProcessGroup adds floating-point numbers up."""
    inexact = any(each.is_floating_point() or each.is_complex() for each in tensors)
    return name in _REDUCING and inexact and _is_one_of(options, dist.ReduceOp.SUM, dist.ReduceOp.AVG)


def add_up(group: Any, tensors: Sequence[torch.Tensor], options: Sequence[Any]) -> None:
    """Put the sum over all ranks, or the mean, into each tensor. Raises RuntimeError if a rank is gone."""
    divisor = group.size() if _is_one_of(options, dist.ReduceOp.AVG) else 1
    for tensor in tensors:
        _add_up(group, tensor, divisor)


def _add_up(group: Any, tensor: torch.Tensor, divisor: int) -> None:
    own = tensor.detach()
    flat = own.cpu().contiguous().view(-1)  # the tensor's own memory, if it is in order and on no GPU
    even = flat.numel() // group.size() * group.size()
    _add_up_even(group, flat[:even], divisor)
    if even < flat.numel():
        rest = torch.zeros(group.size(), dtype=flat.dtype)
        rest[: flat.numel() - even] = flat[even:]
        _add_up_even(group, rest, divisor)
        flat[even:] = rest[: flat.numel() - even]
    if flat.data_ptr() != own.data_ptr():
        own.copy_(flat.view(own.shape))


def _add_up_even(group: Any, flat: torch.Tensor, divisor: int) -> None:
    """Add up a tensor that has a part of the same length for each rank."""
    if not flat.numel():
        return
    parts = torch.empty_like(flat)
    group.alltoall_base(parts, flat, [], []).wait()
    total = along_tree(parts.view(group.size(), -1))
    torchs_own.gather_parts(group, flat, total if divisor == 1 else total / divisor)


def along_tree(rows: torch.Tensor) -> torch.Tensor:
    """The sum of the rows: neighbours in pairs, then neighbours among these sums, and so on, in place."""
    while len(rows) > 1:
        rows[: len(rows) // 2 * 2 : 2] += rows[1::2]
        rows = rows[::2]
    return rows[0]


def _is_one_of(options: Sequence[Any], *operations: Any) -> bool:
    """Whether the collective's operation is one of these. ReduceOp knows its kinds, but not vice versa."""
    operation = options[0].reduceOp if options else dist.ReduceOp.SUM
    return any(operation == each for each in operations)
