"""The file with the times of a cluster's all-reduces: a job measures and writes them, flexod reads them.

JSON, because an administrator looks at it. Each version of the format has a number. A release refuses
versions that it does not know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

FORMAT: Final = "flexo all-reduce times"
VERSION: Final = 1
MOST_WORKERS: Final = 100_000
_MOST_NUMBERS: Final = 100_000
_KEYS: Final = ("backend", "workers", "weights", "seconds")


class BadAllReduceFile(ValueError):
    """A text that is not such a file; the message says what is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True)
class AllReduceTable:
    """The seconds of all-reduces by numbers of workers and of weights of 4 bytes."""

    backend: str
    """What the workers' tensors were on: "cpu", or the name of the GPUs."""
    workers: tuple[int, ...]
    """Numbers of workers that were measured, ascending, from 2."""
    weights: tuple[float, ...]
    """Numbers of weights that were measured, ascending."""
    seconds: tuple[tuple[float, ...], ...]
    """The medians, indexed by `workers`, then by `weights`."""

    def to_text(self) -> str:
        """The file's content."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n"


def parse(text: str) -> AllReduceTable:
    """The table in a file's content. Raises BadAllReduceFile."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadAllReduceFile(f"it is not JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise BadAllReduceFile(f'it is not a file of all-reduce times: "format" has to be "{FORMAT}"')
    if fields.get("version") != VERSION:
        raise BadAllReduceFile(f"version {fields.get('version')!r:.40} is not known: {VERSION} is allowed")
    lacks = [key for key in _KEYS if key not in fields]
    if lacks:
        raise BadAllReduceFile(f"it lacks {', '.join(lacks)}")
    backend = fields["backend"]
    if not isinstance(backend, str) or not backend.isprintable() or len(backend) > 100:
        raise BadAllReduceFile('"backend" has to be a string of at most 100 printable characters')
    workers = _ascending("workers", fields["workers"], 2, MOST_WORKERS)
    if any(each != int(each) for each in workers):
        raise BadAllReduceFile('"workers" has to be a list of whole numbers')
    weights = _ascending("weights", fields["weights"], 1, math.inf)
    rows = _list("seconds", fields["seconds"])
    if len(rows) != len(workers):
        raise BadAllReduceFile(f'"seconds" has {len(rows)} rows: one for each of {len(workers)} "workers"')
    return AllReduceTable(
        backend=backend,
        workers=tuple(int(each) for each in workers),
        weights=weights,
        seconds=tuple(_row(number, row, len(weights)) for number, row in zip(workers, rows, strict=True)),
    )


def _row(workers: float, row: Any, length: int) -> tuple[float, ...]:
    what = f'"seconds" of {workers:g} workers'
    numbers = _numbers(what, row)
    if len(numbers) != length:
        raise BadAllReduceFile(f'{what} has {len(numbers)} numbers: one for each of {length} "weights"')
    if min(numbers) <= 0:
        raise BadAllReduceFile(f"{what} has {min(numbers):g}: numbers above 0 are allowed")
    return numbers


def _ascending(key: str, value: Any, low: float, high: float) -> tuple[float, ...]:
    numbers = _numbers(f'"{key}"', value)
    if list(numbers) != sorted(set(numbers)) or not low <= numbers[0] <= numbers[-1] <= high:
        raise BadAllReduceFile(f'"{key}" has to ascend, from {low:g} on, to {high:g} at most')
    return numbers


def _numbers(what: str, value: Any) -> tuple[float, ...]:
    numbers = _list(what, value)
    if not numbers or any(type(each) not in (int, float) or not math.isfinite(each) for each in numbers):
        raise BadAllReduceFile(f"{what} has to be a list of numbers, at least one")
    return tuple(float(each) for each in numbers)


def _list(what: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > _MOST_NUMBERS:
        raise BadAllReduceFile(f"{what} has to be a list")
    return value
