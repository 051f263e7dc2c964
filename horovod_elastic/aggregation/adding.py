"""Adds arrays up in one order, so that the same numbers give the same bits in every run.

Half precision is added in single precision and rounded once, by whoever has the whole sum. PyTorch does that,
and is imported at the first such sum only: it is large, and numpy has no bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from horovod_elastic.aggregation.memory import HALVES, Array


def add_up(summands: Sequence[Array], into: Array, dtype: str) -> None:
    """Put the sum of `summands`, in their order, into `into`.

    Summands and `into` have type `dtype` or, where that is a half precision, float32. `into` may share its
    memory with the first summand only.
    """
    if dtype in HALVES:
        _add_halves(summands, into, dtype)
        return
    if len(summands) == 1:
        if summands[0] is not into:
            np.copyto(into, summands[0])
        return
    np.add(summands[0], summands[1], out=cast(Any, into))
    for each in summands[2:]:
        np.add(into, each, out=cast(Any, into))


def _add_halves(summands: Sequence[Array], into: Array, dtype: str) -> None:
    import torch  # see the module

    def tensor(array: Array) -> torch.Tensor:
        if array.dtype == np.float32:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16)).view(getattr(torch, dtype))

    if len(summands) == 1:
        tensor(into).copy_(tensor(summands[0]))
        return
    total = tensor(into) if into.dtype == np.float32 else torch.empty(len(into))
    total.copy_(tensor(summands[0]))
    for each in summands[1:]:
        total.add_(tensor(each))
    if into.dtype != np.float32:
        tensor(into).copy_(total)
