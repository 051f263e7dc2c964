"""The forecast for a history too short for a season: demand stays as it is, in a wide band.

The band is the most that demand has changed so far in the same time. For longer leads than were observed, the
band grows as a random walk does, and is not narrower than the range of demand so far.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.forecast_interval import LEADS, ForecastInterval, band_around, bins_between
from flexo.loaning.history import Floats, History

_FEWEST: Final = 12
"""The fewest changes over a lead that must have been observed, so that the lead counts."""
_BLIND_SHARE: Final = 0.1
"""The least half-width of the band, as a part of the last value; it is also at least one server."""


class LastValue:
    """The last value with a wide band (see the module)."""

    def __init__(self, leads: NDArray[np.int64], changes: Floats, quantile: float, note: str) -> None:
        self._leads = leads
        self._changes = changes
        self._quantile = quantile
        self._note = note

    @classmethod
    def learn(cls, history: History, quantile: float) -> LastValue:
        """Learn the changes of demand from any history."""
        values, leads, changes = history.values, [], []
        for lead in (lead for lead in LEADS if lead <= len(values) // 4):
            moved = values[lead:] - values[:-lead]
            moved = np.abs(moved[np.isfinite(moved)])
            if len(moved) >= _FEWEST:
                leads.append(lead)
                changes.append(float(moved.max()))
        note = (
            f"{history.span} of history are too few for the course of a day:"
            " this is the last value, in a wide band"
        )
        return cls(np.array(leads, dtype=np.int64), np.array(changes), quantile, note)

    def predict(self, history: History, now: float, until: float) -> ForecastInterval:
        """See `forecast_interval.Fitted`."""
        numbers = bins_between(history, now, until)
        values = history.values
        last = float(values[-1])
        leads = np.maximum(1, numbers - history.last)
        change = np.maximum(self._change(leads), max(1.0, _BLIND_SHARE * last))
        unknown = leads > self._leads[-1] if len(self._leads) else np.ones(len(leads), dtype=bool)
        below = np.where(unknown, np.minimum(-change, np.nanmin(values) - last), -change)
        above = np.where(unknown, np.maximum(change, np.nanmax(values) - last), change)
        expected = np.full(len(numbers), last)
        return band_around(
            history, numbers, (expected, below, above), self._quantile, "last value", self._note
        )

    def _change(self, leads: NDArray[np.int64]) -> Floats:
        """The largest change per lead: as observed, or continued as a random walk for longer leads."""
        if not len(self._leads):
            return np.zeros(len(leads))
        beyond = np.sqrt(np.maximum(1.0, leads / self._leads[-1]))
        place = np.minimum(np.searchsorted(self._leads, leads), len(self._leads) - 1)
        return np.asarray(np.maximum.accumulate(self._changes)[place] * beyond)
