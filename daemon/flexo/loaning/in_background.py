"""A forecast that learns in a thread, for a loop that must not wait.

Until the thread is done, the result of the last learning counts, and before that a quick forecast.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from flexo.loaning.forecast_interval import Fitted, ForecastInterval, Method
from flexo.loaning.history import History


class InBackground:
    """A Method made of a slow and a quick one. If the slow one fails, the bands of the quick one say so in
    `note`."""

    def __init__(self, slow: Method, quick: Method) -> None:
        self._slow = slow
        self._quick = quick
        self._learnt: Fitted | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, history: History, quantile: float) -> Fitted:
        """Learn with the quick method, and start the slow one in a thread (see `forecast_interval.Method`).
        Never waits."""
        best = _Best(self._learnt or self._quick(history, quantile))
        if self._thread is None or not self._thread.is_alive():
            known = history.until(history.last)
            self._thread = threading.Thread(target=self._learn, args=(known, quantile, best), daemon=True)
            self._thread.start()
        return best

    def _learn(self, history: History, quantile: float, best: _Best) -> None:
        try:
            self._learnt = best.fitted = self._slow(history, quantile)
        except Exception as error:
            best.trouble = f"the forecast that was asked for could not learn ({error}): this is another one"


class _Best:
    """The best forecast that is available when it is asked."""

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = fitted
        self.trouble = ""

    def predict(self, history: History, now: float, until: float) -> ForecastInterval:
        """See `forecast_interval.Fitted`."""
        band = self.fitted.predict(history, now, until)
        return replace(band, note=self.trouble) if self.trouble else band
