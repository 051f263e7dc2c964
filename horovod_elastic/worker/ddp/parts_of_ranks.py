"""Tells whether a DataLoader without a DistributedSampler loads other samples on each rank.

Such a script has cut the data itself, by rank and world size. The part of a newcomer would overlap with those
of the others. Where all ranks load the same data, each in an order of its own, it does no harm.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

DEEPEST = 4
MOST = 64
"""Of a container or an array, the elements at its beginning and at its end that are looked at, at most."""
ROWS = 8
MOST_VALUES = 20_000
_PLAIN = (int, float, bool, str, bytes, type(None), complex, range)


def digest(loader: Any) -> int:
    """A digest of what the loader loads: its dataset and samplers, and what they are made of.

    Seeds are left out: that ranks have other ones does not divide the data.
    """
    found, seen = hashlib.sha256(), set[int]()
    values = (_within(each, 0, seen) for each in (loader.dataset, loader.sampler, loader.batch_sampler))
    for text in itertools.islice(itertools.chain.from_iterable(values), MOST_VALUES):
        found.update(text.encode())
    return int.from_bytes(found.digest()[:7], "big") or 1


def _within(value: Any, depth: int, seen: set[int]) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield repr(value)
        return
    yield type(value).__name__
    if isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__"):
        yield _of_array(value)
    elif depth <= DEEPEST and id(value) not in seen:
        seen.add(id(value))
        yield from _of_container(value, depth, seen)


def _of_container(value: Any, depth: int, seen: set[int]) -> Iterator[str]:
    if isinstance(value, list | tuple):
        yield str(len(value))
        for each in value if len(value) <= 2 * MOST else [*value[:MOST], *value[-MOST:]]:
            yield from _within(each, depth + 1, seen)
        return
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    for name in list(itertools.islice(inner, MOST)):
        if isinstance(name, str | int) and "seed" not in str(name):
            yield str(name)
            yield from _within(inner[name], depth + 1, seen)


def _of_array(value: Any) -> str:
    """The shape of a tensor or an array, and elements of its first and last rows."""
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return str(tuple(value.shape))
    rows = value if value.ndim else value.reshape(1)
    ends = rows[:ROWS].reshape(-1)[:MOST], rows[-ROWS:].reshape(-1)[-MOST:]
    return f"{tuple(value.shape)} {[each.tolist() for each in ends]}"
