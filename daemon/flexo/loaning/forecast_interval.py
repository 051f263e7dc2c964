"""The result of every forecast of demand: the expected value, and the interval around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.history import Floats, History

QUANTILE: Final = 0.95
"""The default quantile of the band's upper edge. The lower edge has the opposite quantile."""
HOURS: Final = 24
LEADS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 72, 96, 144, 288)
"""The leads, in bins, for which a forecast's uncertainty is measured."""


@dataclass(frozen=True, slots=True)
class ForecastInterval:
    """Demand in servers by bins from now on; each array has one value per bin. Never below 0."""

    times: Floats
    """The begins of the bins, in seconds since the epoch."""
    lower: Floats
    expected: Floats
    upper: Floats
    quantile: float
    """Share of values that are at most `upper`; the same share is at least `lower`."""
    method: str
    note: str = ""
    """A sentence on why the forecast is less good than it could be; "": it is not."""

    @property
    def highest(self) -> float:
        """The largest value of the upper edge."""
        return float(self.upper.max())


class Fitted(Protocol):
    """A forecast that has learnt."""

    def predict(self, history: History, now: float, until: float) -> ForecastInterval:
        """Forecast from the bin of `now` to that of `until`. `history`: demand up to now, not empty."""
        ...


Method = Callable[[History, float], Fitted]
"""Learns from a history, for a quantile of the band's upper edge."""


def hour_of(numbers: NDArray[np.int64], bins_a_day: int) -> NDArray[np.int64]:
    """The hour of the day (a 24th of it) of each bin number."""
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
) -> ForecastInterval:
    """The band from three lines: the expected values, and the distances of the lower and the upper edge. No
    value is below 0."""
    expected, below, above = lines
    expected = np.maximum(expected, 0.0)
    return ForecastInterval(
        times=numbers * history.seasons.step_s,
        lower=np.maximum(expected + np.minimum(below, 0.0), 0.0),
        expected=expected,
        upper=expected + np.maximum(above, 0.0),
        quantile=quantile,
        method=method,
        note=note,
    )
