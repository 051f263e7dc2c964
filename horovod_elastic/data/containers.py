"""Walks through a mini-batch: replaces what its lists, tuples, named tuples and dictionaries hold."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch.nn.utils.rnn import PackedSequence


def replaced(batch: Any, replace: Callable[[Any], Any]) -> Any:
    """A copy of a mini-batch with `replace` applied to each object that is none of these containers.

    Containers may hold containers, and keep their class. A PackedSequence counts as one object, because a
    part of it has to stay in host memory.
    """
    if isinstance(batch, PackedSequence):
        return replace(batch)
    if isinstance(batch, Mapping):
        changed = {key: replaced(value, replace) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return type(batch)(changed)  # type: ignore[call-arg]
        same_class = copy.copy(batch)  # made by a copy: a defaultdict cannot be made of a dictionary alone
        same_class.update(changed)
        return same_class
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(replaced(each, replace) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(replaced(each, replace) for each in batch)
    return replace(batch)


def pinned(batch: Any) -> Any:
    """A copy of a mini-batch in page-locked memory, from which GPUs copy in the background."""
    return replaced(batch, lambda each: each.pin_memory() if hasattr(each, "pin_memory") else each)
