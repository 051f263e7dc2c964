"""How good forecasts would have been: each origin sees only what was before it, and they roll to the end.

What is counted, for each lead (from the origin to what is forecast):

- the mean absolute error in servers; as a share of the truth where that is at least one server;
- how much of the truth lay within the band, and how much above it, where too much would have been lent;
- peaks, and those missed. A peak is a bin that is the highest within two hours of a day either way, and lies
  above the lowest of the two hours before by 5% of all that demand ever swings. It is missed at a lead
  if the newest forecast made at least that long before has its band's upper edge below it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.band import Fitted, Method
from flexo.loaning.history import Floats, History

PEAK_REACH: Final = 1 / 12
"""Of a day, either way: two hours."""
PEAK_RISE: Final = 0.05
"""Of the difference between the highest and the lowest in the whole history."""
_ORIGINS_A_DAY: Final = 96


class TooShort(ValueError):
    """A history of which nothing is left to test on; the message says how long it has to be."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A method, and after how many days it learns anew."""

    name: str
    method: Method
    refit_days: float = 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """How one method did at one lead. Errors in servers, shares 0 to 1."""

    method: str
    lead_s: float
    forecasts: int
    mae: float
    mape: float | None
    """None: the truth was never a whole server."""
    within: float
    """Of the truth, in the band, edges included."""
    above: float
    """Of the truth, above the band."""
    peaks: int
    missed: int
    missed_by: float
    """Servers that the missed peaks were above the band, on average; 0 without any."""
    fits: int
    fit_cpu_s: float
    """Seconds of a processor that it took to learn once, on average."""


@dataclass(frozen=True, slots=True)
class _Told:
    """All forecasts of one method: a row an origin, a column a lead in bins from 0 on."""

    origins: NDArray[np.int64]
    """Places in the history."""
    lower: Floats
    expected: Floats
    upper: Floats
    fits: int
    fit_cpu_s: float


def backtest(
    history: History, rivals: Sequence[Rival], leads_s: Sequence[float], test_days: float, quantile: float
) -> tuple[Score, ...]:
    """Forecast through the last `test_days` of `history`. Raises TooShort unless as much comes before."""
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
    """Where the peaks are (see the module), holes left aside."""
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
    """From each origin on, `longest` bins far."""
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
    """How many peaks have a forecast from `lead` bins before; by how much each missed one was above."""
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
