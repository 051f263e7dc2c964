"""Tests forecasts on past demand: each forecast sees only what was before its origin, and origins roll to the
end.

The scores, for each lead (from the origin to the forecast time):

- the mean absolute error in servers, and as a share of the truth where that is at least one server;
- the part of the truth within the band, and the part above it, where too much would have been lent;
- the peaks, and the missed ones. A peak is a bin that is the highest within two hours of a day either way. It
  lies above the lowest of the two hours before by 5% of the whole range of demand. It is missed at a lead if
  the newest forecast made at least that long before has its band's upper edge below the peak.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.forecast_interval import Fitted, Method
from flexo.loaning.history import Floats, History

PEAK_REACH: Final = 1 / 12
"""The part of a day, either way, in which a peak is the highest: two hours."""
PEAK_RISE: Final = 0.05
"""The least rise to a peak, as a part of the difference between the highest and the lowest of the whole
history."""
_ORIGINS_A_DAY: Final = 96


class TooShort(ValueError):
    """The error for a history that is too short to test on; the message says how long it has to be."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A method under test, and the number of days after which it learns anew."""

    name: str
    method: Method
    refit_days: float = 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one method at one lead. Errors are in servers; shares are from 0 to 1."""

    method: str
    lead_s: float
    forecasts: int
    mae: float
    mape: float | None
    """Mean absolute error as a share of the truth; None: the truth was never a whole server."""
    within: float
    """The part of the truth in the band, edges included."""
    above: float
    """The part of the truth above the band."""
    peaks: int
    missed: int
    missed_by: float
    """Servers by which the missed peaks were above the band, on average; 0: no peak was missed."""
    fits: int
    fit_cpu_s: float
    """Processor seconds to learn once, on average."""


@dataclass(frozen=True, slots=True)
class _Told:
    """All forecasts of one method: one row per origin, one column per lead in bins from 0 on."""

    origins: NDArray[np.int64]
    """Indexes of the origins in the history."""
    lower: Floats
    expected: Floats
    upper: Floats
    fits: int
    fit_cpu_s: float


def backtest(
    history: History, rivals: Sequence[Rival], leads_s: Sequence[float], test_days: float, quantile: float
) -> tuple[Score, ...]:
    """Forecast through the last `test_days` of `history`. Raises TooShort unless half a day comes before."""
    bins = history.seasons.bins_a_day
    begin = len(history) - round(test_days * bins)
    if begin < bins // 2 or len(history) - begin < 2:
        text = (
            f"{history.span} of history do not do: it takes half a day before the {test_days:g} days tested"
        )
        raise TooShort(text)
    leads = [max(1, round(lead / history.seasons.step_s)) for lead in leads_s]
    places = peaks(history.values, bins)
    scores = []
    for rival in rivals:
        told = _forecasts(history, rival, begin, max(leads) + bins // _ORIGINS_A_DAY, quantile)
        scores += [
            _score(rival.name, lead * history.seasons.step_s, told, history.values, lead, places)
            for lead in leads
        ]
    return tuple(scores)


def peaks(values: Floats, bins_a_day: int) -> NDArray[np.int64]:
    """The indexes of the peaks (see the module); holes are skipped."""
    reach = max(1, round(PEAK_REACH * bins_a_day))
    rise = PEAK_RISE * (np.nanmax(values) - np.nanmin(values))
    filled = np.where(np.isfinite(values), values, -np.inf)
    found = []
    for place in range(1, len(values)):
        before = values[max(0, place - reach) : place]
        around = filled[max(0, place - reach) : place + reach + 1]
        first = place - max(0, place - reach) == int(np.argmax(around))
        if first and np.isfinite(before).any() and values[place] - np.nanmin(before) >= max(rise, 1e-9):
            found.append(place)
    return np.array(found, dtype=np.int64)


def _forecasts(history: History, rival: Rival, begin: int, longest: int, quantile: float) -> _Told:
    """The forecasts from each origin on, `longest` bins far."""
    seasons = history.seasons
    every = max(1, seasons.bins_a_day // _ORIGINS_A_DAY)
    origins = np.arange(begin - 1, len(history) - 1, every)
    lines = np.empty((3, len(origins), longest + 1))
    fitted: Fitted | None = None
    fits, fit_cpu_s, fitted_at = 0, 0.0, -math.inf
    for row, origin in enumerate(origins):
        known = history.until(history.first + int(origin))
        if fitted is None or origin - fitted_at >= rival.refit_days * seasons.bins_a_day:
            began = time.process_time()
            fitted, fitted_at, fits = rival.method(known, quantile), float(origin), fits + 1
            fit_cpu_s += time.process_time() - began
        now = (history.first + int(origin) + 0.5) * seasons.step_s
        band = fitted.predict(known, now, now + longest * seasons.step_s)
        lines[:, row] = band.lower, band.expected, band.upper
    return _Told(origins, lines[0], lines[1], lines[2], fits, fit_cpu_s / max(1, fits))


def _score(
    name: str, lead_s: float, told: _Told, values: Floats, lead: int, places: NDArray[np.int64]
) -> Score:
    rows = np.flatnonzero(told.origins + lead < len(values))
    truth = values[told.origins[rows] + lead]
    rows, truth = rows[np.isfinite(truth)], truth[np.isfinite(truth)]
    if not len(rows):
        raise TooShort(f"nothing is left to test {lead_s:g} s ahead: it takes more days to test on")
    missed = np.abs(truth - told.expected[rows, lead])
    sensible = truth >= 1
    above, below = truth > told.upper[rows, lead], truth < told.lower[rows, lead]
    number, short = _missed_peaks(told, values, lead, places)
    return Score(
        method=name,
        lead_s=lead_s,
        forecasts=len(rows),
        mae=float(missed.mean()),
        mape=float((missed[sensible] / truth[sensible]).mean()) if sensible.any() else None,
        within=1 - float((above | below).mean()),
        above=float(above.mean()),
        peaks=number,
        missed=len(short),
        missed_by=float(np.mean(short)) if short else 0.0,
        fits=told.fits,
        fit_cpu_s=told.fit_cpu_s,
    )


def _missed_peaks(
    told: _Told, values: Floats, lead: int, places: NDArray[np.int64]
) -> tuple[int, list[float]]:
    """The number of peaks that have a forecast from `lead` bins before, and by how much each missed peak was
    above it."""
    number, short = 0, []
    for place in places:
        row = int(np.searchsorted(told.origins, place - lead, side="right")) - 1
        if row < 0 or place - told.origins[row] >= told.upper.shape[1]:
            continue
        number += 1
        over = float(values[place] - told.upper[row, place - told.origins[row]])
        if over > 0:
            short.append(over)
    return number, short
