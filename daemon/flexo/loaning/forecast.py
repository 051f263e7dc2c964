"""The forecast of the inference cluster's demand: which method learns from which history, and when it learns
anew."""

from __future__ import annotations

import math
from typing import Final

from flexo.loaning import seasonal
from flexo.loaning.forecast_interval import QUANTILE, Fitted, ForecastInterval, Method
from flexo.loaning.history import History, Seasons
from flexo.loaning.last_value import LastValue

_REFITS_A_DAY: Final = 8
_EARLY_REFITS_A_DAY: Final = 24


def learn(history: History, quantile: float = QUANTILE) -> Fitted:
    """The seasonal forecast or, if the history is too short to learn a season, the last value."""
    if seasonal.can_learn(history):
        return seasonal.Seasonal.learn(history, quantile)
    return LastValue.learn(history, quantile)


class Predictor:
    """A running forecast: it records demand as it is read, and learns anew a few times a day."""

    def __init__(
        self,
        day_s: float = 86_400.0,
        interval_s: float = 60.0,
        quantile: float = QUANTILE,
        method: Method = learn,
    ) -> None:
        self._history = History(Seasons.for_samples_every(interval_s, day_s))
        self._quantile = quantile
        self._method = method
        self._fitted: Fitted | None = None
        self._fitted_at = -math.inf

    def note(self, at: float, servers: float) -> None:
        """Record the demand at `at`."""
        before = self._history.last
        self._history.note(at, servers)
        if self._history.last < before - 1:
            self._fitted = None  # the clock has been set back

    def band(self, now: float, until: float) -> ForecastInterval:
        """The forecast from `now` to `until`. Raises ValueError before any demand was recorded."""
        if not len(self._history):
            raise ValueError("nothing was noted yet: there is no history to forecast from")
        day_s = self._history.seasons.day_s
        often = _REFITS_A_DAY if self._history.days >= seasonal.SEASON_AFTER else _EARLY_REFITS_A_DAY
        if self._fitted is None or now - self._fitted_at >= day_s / often:
            self._fitted = self._method(self._history, self._quantile)
            self._fitted_at = now
        return self._fitted.predict(self._history, now, until)
