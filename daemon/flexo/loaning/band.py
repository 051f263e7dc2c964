"""What every forecast of demand says: what is expected, and the band around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.history import Floats, History

QUANTILE: Final = 0.95
"""The band's upper edge, if nothing else is said; the lower edge is the other way round."""
HOURS: Final = 24
LEADS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 72, 96, 144, 288)
"""How far ahead, in bins, a forecast's uncertainty is looked at."""


@dataclass(frozen=True, slots=True)
class Band:
    """Demand in servers by bins from now on; each array has one value a bin. Never below 0."""

    times: Floats
    """Where the bins begin, seconds since the epoch."""
    lower: Floats
    expected: Floats
    upper: Floats
    quantile: float
    """Share of values that are at most `upper`; as many are at least `lower`."""
    method: str
    note: str = ""
    """Why it is less than it could be, in a sentence; "" when it is not."""

    @property
    def highest(self) -> float:
        """The upper edge at its highest."""
        return float(self.upper.max())


class Fitted(Protocol):
    """A forecast whose learning is done."""

    def predict(self, history: History, now: float, until: float) -> Band:
        """From the bin of `now` to that of `until`, with `history` as it is by then (not empty)."""
        ...


Method = Callable[[History, float], Fitted]
"""Learns from a history, for a quantile."""


def hour_of(numbers: NDArray[np.int64], bins_a_day: int) -> NDArray[np.int64]:
    """The hour of the day (a 24th of it) of bins by number."""
    return np.asarray((numbers % bins_a_day) * HOURS // bins_a_day)


def bins_between(history: History, now: float, until: float) -> NDArray[np.int64]:
    """The numbers of the bins from that of `now` to that of `until`; one at least."""
    first = history.bin_of(now)
    return np.arange(first, max(first, history.bin_of(until)) + 1)


def band_around(
    history: History,
    numbers: NDArray[np.int64],
    lines: tuple[Floats, Floats, Floats],
    quantile: float,
    method: str,
    note: str = "",
) -> Band:
    """Expected, and how far the band reaches below and above; nothing is below 0."""
    expected, below, above = lines
    expected = np.maximum(expected, 0.0)
    return Band(
        times=numbers * history.seasons.step_s,
        lower=np.maximum(expected + np.minimum(below, 0.0), 0.0),
        expected=expected,
        upper=expected + np.maximum(above, 0.0),
        quantile=quantile,
        method=method,
        note=note,
    )
