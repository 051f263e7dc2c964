"""The forecast where too little is known for a season: demand stays as it is, in a wide band.

The band is the most that demand has changed so far in as long a time; further ahead than that is known, it
grows as a random walk does, and is not narrower than all that demand has been so far.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.band import LEADS, Band, band_around, bins_between
from flexo.loaning.history import Floats, History

_FEWEST: Final = 12
"""Changes that have to be seen over a lead before they count."""
_BLIND_SHARE: Final = 0.1
"""Of the last value, at least so much either way is allowed for; and one server."""


class LastValue:
    """See the module."""

    def __init__(self, leads: NDArray[np.int64], changes: Floats, quantile: float, note: str) -> None:
        self._leads = leads
        self._changes = changes
        self._quantile = quantile
        self._note = note

    @classmethod
    def learn(cls, history: History, quantile: float) -> LastValue:
        """From any history."""
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

    def predict(self, history: History, now: float, until: float) -> Band:
        """See Fitted."""
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
        """Seen where it was seen; beyond, as a random walk goes on."""
        if not len(self._leads):
            return np.zeros(len(leads))
        beyond = np.sqrt(np.maximum(1.0, leads / self._leads[-1]))
        place = np.minimum(np.searchsorted(self._leads, leads), len(self._leads) - 1)
        return np.asarray(np.maximum.accumulate(self._changes)[place] * beyond)
