"""The indices of an iteration's batches, which a DataLoader takes in place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from horovod_elastic.worker.ddp.deal import Deal


class Rest:
    """A loader's own batches, without the first ones. Samplers draw random numbers for the first one."""

    def __init__(self, batches: Any, left_out: int) -> None:
        self._batches = batches
        self._left_out = left_out
        self._iterator: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iter(self._batches)
        return self

    def __next__(self) -> Any:
        self.skip()
        return next(self._iterator)

    def skip(self) -> None:
        """Leave the first ones out now, if that was not done yet."""
        for _ in range(self._left_out):
            next(self._iterator, None)
        self._left_out = 0


class Dealt:
    """The batches' indices from one place of an epoch on."""

    def __init__(
        self, deal: Deal, order: list[int], start: int, rank: int, workers: int, most: int | None = None
    ) -> None:
        self._deal = deal
        self._order = order
        self._start = start
        self._rank = rank
        self._workers = workers
        self._most = most

    def __len__(self) -> int:
        return self._deal.steps(self._start, self._workers, self._most)

    def __iter__(self) -> Iterator[list[int]]:
        start, most = self._start, self._most
        for _ in range(len(self)):
            share = self._deal.share(start, self._rank, self._workers, most)
            yield self._at(share.places)
            start = share.end
            most = most and most - 1

    def _at(self, places: range) -> list[int]:
        order = self._order
        if places.stop <= len(order):  # in all steps but an epoch's last one
            return order[places.start : places.stop : places.step]
        return [order[place % len(order)] for place in places]
