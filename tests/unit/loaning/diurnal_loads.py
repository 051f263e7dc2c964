"""Loads for tests of forecasts: made up with known shapes, and what a forecast of them is worth."""

from __future__ import annotations

import numpy as np

from flexo.loaning.diurnal import Diurnal
from flexo.loaning.history import Floats, History

DAY_S = 86_400.0
STEP_S = 300.0
BEGIN = 1_767_571_200.0
"""Monday, the 5th of January 2026."""


def times(days: float, step_s: float = STEP_S) -> Floats:
    return BEGIN + np.arange(round(days * DAY_S / step_s)) * step_s


def load(days: float, seed: int = 1, **shape: float) -> tuple[Floats, Floats]:
    at = times(days)
    return at, Diurnal(**shape).servers_at(at, seed)  # type: ignore[arg-type]


def history(at: Floats, servers: Floats) -> History:
    return History.of(zip(at.tolist(), servers.tolist(), strict=True))
