"""Pure: the partitions of a model's parameters, and which server holds each of them at first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flexo.aggregation.demand import LARGEST_TASK, piece_sizes

BYTES = 4
"""Bytes of a parameter: all are float32."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive parameters of one tensor. `tensor`: its place in the model."""

    tensor: int
    first: int
    """The place of its first parameter in the tensor, which counts as flat."""
    count: int
    """Its number of parameters."""


def partitions_of(shapes: Sequence[tuple[int, ...]], largest: int = LARGEST_TASK) -> tuple[Partition, ...]:
    """The partitions of tensors with these shapes, in the tensors' order, none above `largest` bytes."""
    found = []
    for tensor, shape in enumerate(shapes):
        first = 0
        for count in piece_sizes(math.prod(shape), largest // BYTES):
            found.append(Partition(tensor, first, count))
            first += count
    return tuple(found)


def spread(partitions: Sequence[Partition], servers: Sequence[int]) -> tuple[int, ...]:
    """The server of each partition: the largest go first, each to the server that has least so far."""
    load = dict.fromkeys(servers, 0)
    holders = [0] * len(partitions)
    for key in sorted(range(len(partitions)), key=lambda each: -partitions[each].count):
        holders[key] = min(servers, key=lambda server: load[server])
        load[holders[key]] += partitions[key].count
    return tuple(holders)


def round_robin(partitions: Sequence[Partition], servers: int) -> tuple[int, ...]:
    """The server of each partition: they are dealt in their order, whatever their sizes, as ps-lite does."""
    return tuple(key % servers for key in range(len(partitions)))


def busiest_share(partitions: Sequence[Partition], holders: Sequence[int]) -> float:
    """The part of all parameters that the server with most of them holds, from 0 to 1."""
    load = Counter[int]()
    for partition, holder in zip(partitions, holders, strict=True):
        load[holder] += partition.count
    return max(load.values()) / sum(load.values())
