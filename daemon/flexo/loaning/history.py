"""Past demand on an even grid: the highest value of each few minutes, with holes where nothing was recorded.

A lender must have enough servers at any moment, so a bin keeps the highest value that it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
BINS_A_DAY: Final = 288
"""The finest grid: 5 minutes of a real day."""
_KEEP_DAYS: Final = 35
_GROW_BY: Final = 4096


@dataclass(frozen=True, slots=True)
class Seasons:
    """The length of a day in seconds (minutes for a demonstration), and the number of bins in it."""

    day_s: float = 86_400.0
    bins_a_day: int = BINS_A_DAY

    @classmethod
    def for_samples_every(cls, interval_s: float, day_s: float = 86_400.0) -> Seasons:
        """The finest grid on which samples every `interval_s` leave no holes: bins of 5 minutes to an hour of
        a day."""
        fits = (bins for bins in (288, 144, 96, 72, 48, 24) if day_s / bins >= 0.999 * interval_s)
        return cls(day_s, next(fits, 24))

    @property
    def step_s(self) -> float:
        """The length of a bin in seconds."""
        return self.day_s / self.bins_a_day

    @property
    def bins_a_week(self) -> int:
        """The number of bins in seven days."""
        return 7 * self.bins_a_day


class History:
    """Demand by bins; bin k is the time from k to k + 1 steps after the epoch. Holes are NaN."""

    def __init__(self, seasons: Seasons) -> None:
        self.seasons = seasons
        self.first = 0
        """The number of the first value's bin."""
        self._values = np.empty(0)
        self._count = 0

    @classmethod
    def of(cls, samples: Iterable[tuple[float, float]], day_s: float = 86_400.0) -> History:
        """Make a history from samples (at, servers) in any order, on a grid as fine as the samples."""
        ordered = sorted(samples)
        times = np.array([at for at, _ in ordered])
        usual = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        history = cls(Seasons.for_samples_every(usual, day_s))
        for at, servers in ordered:
            history.note(at, servers)
        return history

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Floats:
        """One value per bin; a view."""
        return self._values[: self._count]

    @property
    def last(self) -> int:
        """The number of the newest bin, which has a value. Without any value, one before the first."""
        return self.first + self._count - 1

    @property
    def days(self) -> float:
        """The number of days that the history spans."""
        return self._count / self.seasons.bins_a_day

    @property
    def span(self) -> str:
        """The length of the history, in words."""
        hours = 24 * self.days
        return f"{hours:.1f} hours" if hours < 48 else f"{self.days:.1f} days"

    def bin_of(self, at: float) -> int:
        """The number of the bin that contains `at`."""
        return math.floor(at / self.seasons.step_s)

    def note(self, at: float, servers: float) -> None:
        """Record the demand at `at`. Later values are forgotten, because the clock has been set back."""
        place = self.bin_of(at) - self.first
        if not self._count or place < 0 or place - self._count > _KEEP_DAYS * self.seasons.bins_a_day:
            self.first, self._count, place = self.bin_of(at), 0, 0
        self._make_room(place)
        place = self.bin_of(at) - self.first
        if place >= self._count:
            self._values[self._count : place + 1] = np.nan
        self._count = place + 1
        self._values[place] = np.fmax(self._values[place], servers)

    def until(self, last: int) -> History:
        """This history up to bin `last`; the values are shared."""
        part = History(self.seasons)
        part.first, part._values = self.first, self._values
        part._count = max(0, min(self._count, last + 1 - self.first))
        while part._count and math.isnan(self._values[part._count - 1]):
            part._count -= 1
        return part

    def _make_room(self, place: int) -> None:
        if place < len(self._values):
            return
        gone = max(0, self._count - _KEEP_DAYS * self.seasons.bins_a_day)
        if gone:  # also the holes after the removed part: a history begins with a value
            gone += int(np.argmin(np.isnan(self.values[gone:])))
        kept = self._count - gone
        values = np.full(max(place - gone + 1, kept) + _GROW_BY, np.nan)
        values[:kept] = self.values[gone:]
        self.first += gone
        self._values, self._count = values, kept
