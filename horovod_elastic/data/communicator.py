"""The exchange of records between the ranks of a generation: an asynchronous allgather of Horovod's.

The allgather is begun when a mini-batch is handed to the script, and finished when the script asks for the
next one. So it travels beside the gradients. Records have the same size nearly always, because Horovod
remembers its agreement on a tensor only as long as the tensor's shape stays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from horovod_elastic.data.allotment import Record
from horovod_elastic.ranges import Range

_HEAD = 10
"""The number of numbers before the ranges."""
_ROOM = 8
"""Ranges are padded to a multiple of this number of ranges."""


Records = Mapping[int, Record]
"""Records by rank. A rank that has died is missing, where the others go on without it."""


class Gathering(Protocol):
    """An exchange that is under way."""

    def finish(self) -> Records:
        """Wait for the records of all that live. Raises HorovodInternalError if the generation breaks."""
        ...


class Communicator(Protocol):
    """The ranks that share a dataset."""

    def place(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks."""
        ...

    def begin(self, name: str, record: Record) -> Gathering:
        """Begin to exchange records with all ranks. `name` tells datasets apart."""
        ...

    def failure(self, why: str) -> Exception:
        """The exception that takes all ranks back to their last commit."""
        ...


class Alone:
    """A single process, without Horovod, or before it has joined the others."""

    def place(self) -> tuple[int, int]:
        """Rank 0 of 1."""
        return 0, 1

    def begin(self, name: str, record: Record) -> Gathering:
        """Return the record alone: there is no other rank."""
        return _Gathered(record)

    def failure(self, why: str) -> Exception:
        """There is no other rank, so this is a fault."""
        return RuntimeError(why)


class OverHorovod:
    """The ranks of Horovod's present communicator."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd

    def place(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks, as Horovod says."""
        return self._hvd.rank(), self._hvd.size()

    def begin(self, name: str, record: Record) -> Gathering:
        """Submit the allgather of the ranks' records."""
        if self._hvd.size() == 1:
            return _Gathered(record)
        numbers = torch.tensor(encode(self._hvd.rank(), record), dtype=torch.int64)
        return _UnderWay(self._hvd, self._hvd.allgather_async(numbers, name=f"flexo.data.{name}"))

    def failure(self, why: str) -> Exception:
        """HorovodInternalError, for which hvd.elastic.run goes back to the last commit."""
        from horovod.common.exceptions import HorovodInternalError

        return HorovodInternalError(why)  # type: ignore[no-any-return]


class _Gathered:
    def __init__(self, record: Record) -> None:
        self._record = record

    def finish(self) -> Records:
        return {0: self._record}


class _UnderWay:
    def __init__(self, hvd: Any, handle: int) -> None:
        self._hvd = hvd
        self._handle = handle

    def finish(self) -> Records:
        return decode(self._hvd.synchronize(self._handle).tolist())


def present() -> Communicator:
    """Horovod's ranks, if the script has imported and initialised Horovod; otherwise this process alone."""
    hvd = sys.modules.get("horovod.torch")
    # Horovod's Python files alone have no such function
    is_initialized = getattr(hvd, "is_initialized", None)
    return OverHorovod(hvd) if is_initialized is not None and is_initialized() else Alone()


def encode(rank: int, record: Record) -> list[int]:
    """A rank's record as numbers: a head, then (start, length) of each range, then padding."""
    numbers = [
        rank,
        record.epoch,
        record.draw,
        record.left,
        record.opening,
        record.held_since,
        record.batch_size,
        record.pace,
        record.settled,
        len(record.held),
    ]
    for each in record.held:
        numbers += each
    room = max(1, -(-len(record.held) // _ROOM)) * _ROOM
    return numbers + [0] * (_HEAD + 2 * room - len(numbers))


def decode(numbers: Sequence[int]) -> Records:
    """The records by rank, from their numbers one behind the other."""
    records = {}
    at = 0
    while at < len(numbers):
        rank, epoch, draw, left, opening, held_since, batch_size, pace, settled, count = numbers[
            at : at + _HEAD
        ]
        at += _HEAD
        flat = numbers[at : at + 2 * count]
        held = tuple(Range(start, size) for start, size in zip(flat[::2], flat[1::2], strict=True))
        place = epoch, draw, left, opening, held_since
        records[rank] = Record(*place, batch_size, pace, bool(settled), held)
        at += 2 * max(1, -(-count // _ROOM)) * _ROOM
    return records
