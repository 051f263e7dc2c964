"""A commit writes over the copies of the commit before, instead of into new memory.

Horovod's handlers make a deep copy of model and optimizer at every commit. Most of the time goes into memory
that the system has to find and clear first. The old copy is thrown away right after. The result here equals a
deep copy, also in which tensors share memory. Values that do not fit are deep-copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from horovod_elastic.core.c10d import torchs_own

_Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def copied(value: Any, over: Any) -> Any:
    """A copy as of copy.deepcopy(value), in the memory of `over` where it fits; `over` is useless afterwards.

    `value`: tensors and anything else in dictionaries, lists and tuples. `over`: an earlier copy of such a
    value, or of anything else. Only tensors in memory are written over, and never memory that `value` itself
    uses.
    """
    pairs = _fitting(value, over)
    if pairs:
        torchs_own.copy_each([old for _, old in pairs], [tensor for tensor, _ in pairs])
    return copy.deepcopy(value, {id(tensor): old for tensor, old in pairs})


def save_over(attribute: str, spare: Callable[[Any], Any] = lambda handler: None) -> Callable[[Any], None]:
    """A method `save` for a handler of Horovod's that keeps the state_dict of its value in `attribute`.

    `spare`: gives the spare memory that a handler writes over instead; None if there is none.
    """

    def save(self: Any) -> None:
        """Remember the present state, for restore()."""
        over = spare(self) or getattr(self, attribute)
        setattr(self, attribute, copied(self.value.state_dict(), over))

    return save


def _fitting(value: Any, over: Any) -> _Pairs:
    """Tensors of `value`, each with a tensor of `over` that may become its copy."""
    pairs: _Pairs = []
    unpaired: list[torch.Tensor] = []
    for tensor, old in _beside(value, over):
        if _fits(tensor, old):
            pairs.append((tensor, old))
        else:
            unpaired.append(tensor)
    return pairs if _shares_alike(pairs, unpaired) else []


def _beside(value: Any, over: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Each tensor of `value` with the object in the same place in `over`; None if there is none."""
    if isinstance(value, torch.Tensor):
        yield value, over
    elif isinstance(value, dict):
        known = over if isinstance(over, dict) else {}
        for key, each in value.items():
            yield from _beside(each, known.get(key))
    elif isinstance(value, list | tuple):
        alike = type(over) is type(value) and len(over) == len(value)
        for number, each in enumerate(value):
            yield from _beside(each, over[number] if alike else None)


def _fits(tensor: torch.Tensor, old: Any) -> bool:
    return (
        type(old) is type(tensor)
        and _is_plain(tensor)
        and _is_plain(old)
        and tensor.dtype == old.dtype
        and tensor.shape == old.shape
        and tensor.stride() == old.stride()
        and tensor.storage_offset() == old.storage_offset()
        and not old.is_inference()
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor has elements in memory and nothing else, each element at a place of its own."""
    return (
        _has_memory(tensor)
        and not tensor.is_quantized
        and not tensor.requires_grad
        and (tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor)))
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is in this process's memory: not on a GPU, empty, sparse, or of another class."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
    )


def _shares_alike(pairs: _Pairs, unpaired: list[torch.Tensor]) -> bool:
    """Whether copies share memory exactly where their tensors do, and no copy shares memory with a tensor."""
    copy_of: dict[int, int] = {}
    for tensor, old in pairs:
        here, there = _memory(tensor), _memory(old)
        if copy_of.setdefault(here, there) != there:
            return False
    copies = set(copy_of.values())
    others = {_memory(tensor) for tensor in unpaired if _has_memory(tensor)}
    one_of_each = len(copies) == len(copy_of) and copies.isdisjoint(copy_of)
    return one_of_each and others.isdisjoint(copies) and others.isdisjoint(copy_of)


def _memory(tensor: torch.Tensor) -> int:
    """The address of the memory of which the tensor is a view."""
    return int(tensor.untyped_storage().data_ptr())
