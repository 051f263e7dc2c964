"""Sums of floating-point tensors over all ranks by Aggregators, under `--core=service`.

Packed inputs are written straight into the memory that this worker shares with its node's Aggregator, and
results are read from there: nothing is copied more often than for an all-reduce. If a rank is gone, an
average is that of the ranks that contributed. A rank that dies while it pushes is in some parts of a sum
only, so the ranks are counted part by part.

A few bytes of some ranks reach all others as a sum, too: of whole numbers, to which the others add zeros. So
such an exchange also goes on without a rank that dies.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from horovod_elastic.aggregation.client import AggregationClient, Key, SumsFailed
from horovod_elastic.aggregation.memory import KeyShape, carries
from horovod_elastic.core.c10d.attendance import Attendance
from horovod_elastic.core.c10d.packing import Packing, Shapes, parts, scale

MOST_KEYS = 512
"""Limit of a generation's keys. For further combinations of shapes, a script uses its all-reduce."""
MOST_SHARED_BYTES = 1 << 20
"""Limit of what is shared as a sum. Beyond it, a broadcast or an all-gather costs much less."""
_LOOK_S = 0.5


class Sums:
    """The sums of one generation. Its ranks make the same calls in the same order.

    `at_once`: how many sums of the same shapes may be under way. They use as many keys in turn, from the
    beginning of each step on, so that which key a sum has follows from the program alone, never from how fast
    sums are.
    """

    def __init__(self, client: AggregationClient, attendance: Attendance, at_once: int = 1) -> None:
        self._client = client
        self._attendance = attendance
        self._at_once = at_once
        self._changed = threading.Condition()
        self._slots: dict[tuple[Shapes, torch.dtype], list[_Slot]] = {}
        self._begun: Counter[tuple[Shapes, torch.dtype]] = Counter()

    def can(self, shapes: Shapes, dtype: torch.dtype) -> bool:
        """Whether tensors of these shapes are summed here. All ranks get the same answer."""
        if not carries(_name(dtype)) or not sum(map(math.prod, shapes)):
            return False
        return (shapes, dtype) in self._slots or len(self._slots) * self._at_once < MOST_KEYS

    def begin(
        self,
        shapes: Shapes,
        dtype: torch.dtype,
        tensors: Sequence[torch.Tensor | None],
        prescale: float = 1.0,
    ) -> Summing:
        """Begin to sum these tensors, of `shapes`; None is zeros. Raises SumsFailed.

        The tensors may be changed at once. Whoever begins a sum takes its results.
        """
        slot = self._next_slot(shapes, dtype)
        slot.input.fill(tensors)
        slot.input.scale(prescale)
        summing = Summing(self, slot)
        self._client.begin(slot.key, summing.ends)
        return summing

    def begins_step(self) -> None:
        """Use the keys from the first one on again."""
        self._begun.clear()

    def share(self, size: int, offset: int, data: torch.Tensor | None) -> Sharing:
        """Begin to share `size` bytes with all ranks. Raises SumsFailed.

        `data`: the bytes that this rank has, which belong at `offset`; None if it has none of them.
        """
        whole = torch.zeros(-(-size // 4), dtype=torch.int32)
        if data is not None:
            whole.view(torch.uint8)[offset : offset + data.numel()] = data
        return Sharing(self.begin((tuple(whole.shape),), whole.dtype, [whole]), whole, size)

    def _next_slot(self, shapes: Shapes, dtype: torch.dtype) -> _Slot:
        """The slot whose turn it is, once its last sum was taken. Only one thread begins sums."""
        slots = self._slots.setdefault((shapes, dtype), [])
        number = self._begun[shapes, dtype] % self._at_once
        self._begun[shapes, dtype] += 1
        if number == len(slots):
            slots.append(_Slot(self._client, shapes, dtype, number))
        slot = slots[number]
        with self._changed:
            while slot.is_busy:
                self._client.check()
                self._changed.wait(_LOOK_S)
            slot.is_busy = True
        return slot

    def contributors(self, slot: _Slot) -> frozenset[int]:
        """The ranks that contributed to all parts of a sum that is there."""
        client = self._client
        if not client.missing(slot.key):
            return frozenset(range(client.plan.size))
        return frozenset.intersection(*client.contributors(slot.key))

    def take(
        self,
        slot: _Slot,
        outputs: Sequence[torch.Tensor | None],
        factor: float,
        *,
        average: bool,
        of_gradients: bool,
    ) -> None:
        """Copy a sum that is there into these tensors, times `factor`."""
        some_are_missing = (average or of_gradients) and self._client.missing(slot.key)
        parts_of = self._client.contributors(slot.key) if some_are_missing else []
        if of_gradients:
            ranks = (
                frozenset[int]().union(*parts_of) if parts_of else frozenset(range(self._client.plan.size))
            )
            self._attendance.contribute(ranks)
        if average and parts_of:
            self._averaged(slot, parts_of, factor).copy_to(outputs)
        else:
            slot.result.copy_to(outputs)
            if given := parts([output for output in outputs if output is not None]):
                scale(given, factor)
        with self._changed:
            slot.is_busy = False
            self._changed.notify_all()

    def _averaged(self, slot: _Slot, contributors: Sequence[frozenset[int]], factor: float) -> Packing:
        """A copy of a result, times `factor`, whose parts are averages of these contributors each.

        It is a copy because the other workers of this node read the same result.
        """
        plan, shape = self._client.plan, slot.key.shape
        flat = slot.result.flat.clone()
        for part, ranks in enumerate(contributors):
            where = shape.part(part, plan.part_bytes)
            scale(parts([flat[where]]), factor * plan.size / len(ranks))
        return Packing(flat, slot.shapes)


class _Slot:
    """A key with its memory as tensors."""

    def __init__(self, client: AggregationClient, shapes: Shapes, dtype: torch.dtype, number: int) -> None:
        self.is_busy = False
        self.shapes = shapes
        elements = sum(map(math.prod, shapes))
        digest = hashlib.blake2b(repr(shapes).encode(), digest_size=12).hexdigest()
        self.key: Key = client.key(KeyShape(f"{digest}/{number}", _name(dtype), elements))
        assert self.key.result is not None
        self.input = Packing(torch.frombuffer(self.key.input.view, dtype=dtype, count=elements), shapes)
        self.result = Packing(torch.frombuffer(self.key.result.view, dtype=dtype, count=elements), shapes)


class Summing:
    """A sum under way."""

    def __init__(self, sums: Sums, slot: _Slot) -> None:
        self._sums = sums
        self._slot = slot
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error = ""
        self._then: Callable[[], None] | None = None

    def ends(self, error: str) -> None:
        """The client says that the sum is there, or why it will not be."""
        with self._lock:
            self._error = error
            self._over.set()
            then = self._then
        if then is not None:
            then()

    def then(self, call: Callable[[], None]) -> None:
        """Call this once the sum is there or has failed, in the client's thread or at once."""
        with self._lock:
            if not self._over.is_set():
                self._then = call
                return
        call()

    def wait(self) -> None:
        """Wait for the sum. Raises SumsFailed."""
        self._over.wait()
        if self._error:
            raise SumsFailed(self._error)

    def is_over(self) -> bool:
        """Whether the sum is there or has failed."""
        return self._over.is_set()

    def contributors(self) -> frozenset[int]:
        """The ranks that contributed to all parts of the sum, which is there and was not taken yet."""
        return self._sums.contributors(self._slot)

    def take(
        self,
        outputs: Sequence[torch.Tensor | None],
        factor: float = 1.0,
        *,
        average: bool = False,
        of_gradients: bool = False,
    ) -> None:
        """Wait for the sum and copy it into these tensors, times `factor`. Call it once. Raises SumsFailed.

        `average`: the factor divides by the number of ranks. It is larger where some are missing: each part
        of the sum is divided by the number of its own contributors.
        `of_gradients`: who contributes to the sum has trained on its samples. A rank that is in some parts
        only counts, as one does that is in some sums of a step only: its samples are not dealt again.
        """
        self.wait()
        self._sums.take(self._slot, outputs, factor, average=average, of_gradients=of_gradients)


class Sharing:
    """An exchange of bytes under way."""

    def __init__(self, summing: Summing, whole: torch.Tensor, size: int) -> None:
        self._summing = summing
        self._whole = whole
        self._size = size

    def then(self, call: Callable[[], None]) -> None:
        """See Summing.then."""
        self._summing.then(call)

    def result(self) -> tuple[torch.Tensor, frozenset[int]]:
        """Wait for the bytes of all ranks; return them with the ranks that took part. Raises SumsFailed."""
        self._summing.wait()
        ranks = self._summing.contributors()
        self._summing.take([self._whole])
        return self._whole.view(torch.uint8)[: self._size], ranks


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
