"""The memory of one key, shared between the workers of a node and their Aggregator.

A *key* is what the workers sum together again and again: one message of the core. Each worker has memory for
its input, and all workers of a node share the memory for results. That also records, for each part, which
round's sum it holds and who contributed, so that an Aggregator that is started again finds what its
predecessor has done.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from horovod_elastic.aggregation.frames import BadFrame

MOST_ELEMENTS = 1 << 34
MOST_PARTS = 1 << 17
"""Limit of a key's parts, whose records every Aggregator keeps: 128 GiB in parts of the usual size."""
_ALIGNED = 64
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
HALVES = ("float16", "bfloat16")
Array = npt.NDArray[np.generic]


def wide(dtype: str) -> str:
    """The type in which partial sums of `dtype` are kept and sent."""
    return "float32" if dtype in HALVES else dtype


@dataclass(frozen=True, slots=True)
class KeyShape:
    """A key's name, the type of its numbers (as torch names it) and how many there are."""

    name: str
    dtype: str
    elements: int

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return _ITEM_BYTES[self.dtype]

    @property
    def size(self) -> int:
        """Bytes of all numbers."""
        return self.elements * self.item_bytes

    @property
    def sent_size(self) -> int:
        """Bytes of a node's sum of all numbers, as it is sent."""
        return self.elements * _ITEM_BYTES[wide(self.dtype)]

    def parts(self, part_bytes: int) -> int:
        """The number of parts of at most `part_bytes`."""
        return -(-self.elements // (part_bytes // self.item_bytes))

    def part(self, number: int, part_bytes: int) -> slice:
        """The elements of this part."""
        each = part_bytes // self.item_bytes
        return slice(number * each, min((number + 1) * each, self.elements))


def carries(dtype: str) -> bool:
    """Whether Aggregators sum numbers of this type."""
    return dtype in _ITEM_BYTES


def shape_to_bytes(shape: KeyShape) -> bytes:
    """The shape as JSON."""
    return json.dumps([shape.name, shape.dtype, shape.elements]).encode()


def shape_from_bytes(data: bytes) -> KeyShape:
    """The shape in `data`. Raises BadFrame."""
    try:
        name, dtype, elements = json.loads(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadFrame(f"a key that cannot be read: {error}") from error
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(elements, int):
        raise BadFrame("a key that is no name, type and number of elements")
    if dtype not in _ITEM_BYTES:
        raise BadFrame(f"a key of type {str(dtype)[:20]!r}; allowed are {', '.join(_ITEM_BYTES)}")
    if not 0 < elements <= MOST_ELEMENTS:
        raise BadFrame(f"a key of {elements} numbers; 1 to {MOST_ELEMENTS} are allowed")
    return KeyShape(name, dtype, elements)


def numbers(memory: memoryview | mmap.mmap, dtype: str, offset: int, elements: int) -> Array:
    """The numbers in `memory`, as numpy knows them: 16 bits without a meaning for bfloat16."""
    kind = "uint16" if dtype == "bfloat16" else dtype
    return np.frombuffer(memory, dtype=kind, count=elements, offset=offset)


class InputMemory:
    """A worker's memory for its inputs of one key: the numbers, and nothing else."""

    def __init__(self, shape: KeyShape, fd: int = -1) -> None:
        """Map the memory behind `fd`, which stays the caller's, or make it. BadFrame if it is too small."""
        made, self._map = _mapped("flexo-input", shape.size, fd)
        self.fd = made if fd < 0 else -1
        self.numbers = numbers(self._map, shape.dtype, 0, shape.elements)

    @property
    def view(self) -> memoryview:
        """The same as bytes."""
        return memoryview(self._map)

    def touch(self) -> None:
        """Have the kernel provide the memory now, which nobody else uses yet."""
        self.numbers.fill(0)

    def close(self) -> None:
        """Close the descriptor. The memory is there as long as somebody uses it."""
        self.fd = _closed(self.fd)


class ResultMemory:
    """A node's memory for the results of one key, of `ranks` ranks."""

    def __init__(
        self, shape: KeyShape, part_bytes: int, ranks: int, fd: int = -1, *, shared: bool = True
    ) -> None:
        """Map the memory behind `fd`, which then is this object's, or make it. BadFrame if it is small.

        `shared`: whether there are workers, who map it. Otherwise it takes no descriptors.
        """
        parts, self.mask_bytes = shape.parts(part_bytes), mask_bytes(ranks)
        if parts > MOST_PARTS:
            raise BadFrame(f"a key of {parts} parts; at most {MOST_PARTS} are allowed")
        begins = _rounded(parts * (8 + self.mask_bytes), _ALIGNED)
        size = begins + shape.size
        self.fd, self._map = _mapped("flexo-result", size, fd) if shared else (-1, mmap.mmap(-1, size))
        self._rounds = np.frombuffer(self._map, dtype=np.uint64, count=parts)
        self._masks = np.frombuffer(
            self._map, dtype=np.uint8, count=parts * self.mask_bytes, offset=8 * parts
        )
        self.offset = begins
        """Where the numbers begin, in bytes."""
        self.numbers = numbers(self._map, shape.dtype, begins, shape.elements)

    @property
    def view(self) -> memoryview:
        """The numbers as bytes."""
        return memoryview(self._map)[self.offset :]

    def touch(self) -> None:
        """Have the kernel provide the memory now. Others may use it."""
        bytes(memoryview(self._map)[:: mmap.PAGESIZE])

    def round_of(self, part: int) -> int:
        """The round whose sum this part holds; 0: none."""
        return int(self._rounds[part])

    def contributors(self, part: int) -> bytes:
        """Who contributed to this part's sum: a bit for each rank (`mask_of`)."""
        return self._masks[part * self.mask_bytes : (part + 1) * self.mask_bytes].tobytes()

    def is_whole(self, part: int, number: int, contributors: bytes) -> None:
        """Record that the part holds this round's sum. The sum was written before."""
        self._masks[part * self.mask_bytes : (part + 1) * self.mask_bytes] = np.frombuffer(
            contributors, dtype=np.uint8
        )
        self._rounds[part] = number

    def close(self) -> None:
        """Close the descriptor. The memory is there as long as somebody uses it."""
        self.fd = _closed(self.fd)


def mask_bytes(ranks: int) -> int:
    """Bytes of a mask with a bit for each of so many ranks."""
    return (ranks + 7) // 8


def mask_of(ranks: Sequence[int], size: int) -> bytes:
    """The mask with the bits of these ranks, among `size`."""
    return sum(1 << rank for rank in ranks).to_bytes(mask_bytes(size), "little")


def ranks_in(mask: bytes) -> frozenset[int]:
    """The ranks whose bits a mask has."""
    value = int.from_bytes(mask, "little")
    return frozenset(rank for rank in range(value.bit_length()) if value >> rank & 1)


def both(one: bytes, other: bytes) -> bytes:
    """The mask with the bits of both."""
    value = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return value.to_bytes(len(one), "little")


def _mapped(name: str, size: int, fd: int) -> tuple[int, mmap.mmap]:
    if fd < 0:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
    elif os.fstat(fd).st_size < size:
        raise BadFrame(f"memory of {os.fstat(fd).st_size} bytes for a key that needs {size}")
    return fd, mmap.mmap(fd, size)


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
