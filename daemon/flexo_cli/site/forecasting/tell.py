"""Prints history, forecast and back-test: as lines of little bars, tables, and JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from flexo.loaning.backtest import Score
from flexo.loaning.forecast_interval import ForecastInterval
from flexo.loaning.history import Floats
from flexo_cli.output import Json, clock, print_line, print_pairs, print_table
from flexo_cli.site.forecasting.source import Past

_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-=+*%#"
"""Bars for a terminal whose encoding lacks `_BARS`."""
_WIDTH: Final = 72
_ROWS: Final = 24
_SHOWN_DAYS: Final = 3.0


def print_forecast(past: Past, band: ForecastInterval) -> None:
    """Print the last days and the forecast as bars, and the forecast as a table."""
    values = past.history.values
    shown = values[-round(_SHOWN_DAYS * past.history.seasons.bins_a_day) :]
    top = float(max(np.nanmax(shown), band.upper.max()))
    print_pairs(
        [
            ("history", past.told),
            (
                "forecast",
                f"{band.method}, {_share(1 - band.quantile)} to {_share(band.quantile)} as the band",
            ),
            *((("note", band.note),) if band.note else ()),
            ("scale", f"0 to {top:.1f} servers"),
            (f"last {len(shown) / past.history.seasons.bins_a_day:.2g} days", _bars(shown, top)),
            ("expected", _bars(band.expected, top)),
            ("upper edge", _bars(band.upper, top)),
        ]
    )
    print_line("")
    edges = np.linspace(0, len(band.times), min(_ROWS, len(band.times)) + 1).astype(int)
    print_table(
        ("FROM", "LOWER", "EXPECTED", "UPPER"),
        [
            (
                clock(float(band.times[begin])),
                f"{band.lower[begin:end].min():.1f}",
                f"{band.expected[begin:end].mean():.1f}",
                f"{band.upper[begin:end].max():.1f}",
            )
            for begin, end in pairwise(edges)
        ],
        right=("LOWER", "EXPECTED", "UPPER"),
    )


def print_scores(scores: Sequence[Score], test_days: float, quantile: float) -> None:
    """Print the scores of all methods, grouped by lead."""
    print_line(f"back-test: forecasts made through the last {test_days:g} days, each from what was before it")
    columns = ("AHEAD", "METHOD", "MAE", "MAPE", "IN BAND", "ABOVE", "PEAKS", "MISSED", "BY", "LEARNS IN")
    print_table(
        columns,
        [
            (
                _ahead(score.lead_s),
                score.method,
                f"{score.mae:.2f}",
                "" if score.mape is None else _share(score.mape),
                _share(score.within),
                _share(score.above),
                str(score.peaks),
                str(score.missed),
                f"{score.missed_by:.1f}" if score.missed else "",
                f"{score.fit_cpu_s:.2f} s",
            )
            for score in sorted(scores, key=lambda score: score.lead_s)
        ],
        right=[column for column in columns if column != "METHOD"],
    )
    print_line(
        f"MAE and BY in servers. IN BAND would be {_share(2 * quantile - 1)}, ABOVE {_share(1 - quantile)},"
        " if the band were perfect. A peak is missed if the band's upper edge was below it."
    )


def forecast_as_json(past: Past, band: ForecastInterval) -> dict[str, Json]:
    """History and forecast as JSON with stable keys."""
    return {
        "history": {
            "source": past.source,
            "first_at": past.first_at,
            "last_at": past.last_at,
            "days": past.history.days,
            "values": int(np.isfinite(past.history.values).sum()),
        },
        "method": band.method,
        "quantile": band.quantile,
        "note": band.note or None,
        "forecast": [
            {"at": float(at), "lower": float(lower), "expected": float(expected), "upper": float(upper)}
            for at, lower, expected, upper in zip(
                band.times, band.lower, band.expected, band.upper, strict=True
            )
        ],
    }


def scores_as_json(scores: Sequence[Score]) -> list[Json]:
    """The back-test as JSON with stable keys: one object for each method and lead."""
    return [
        {
            "method": score.method,
            "lead_s": score.lead_s,
            "forecasts": score.forecasts,
            "mae": score.mae,
            "mape": score.mape,
            "within": score.within,
            "above": score.above,
            "peaks": score.peaks,
            "missed": score.missed,
            "missed_by": score.missed_by,
            "fits": score.fits,
            "fit_cpu_s": score.fit_cpu_s,
        }
        for score in scores
    ]


def _bars(values: Floats, top: float) -> str:
    """Draw values from 0 to `top` as at most `_WIDTH` bars, each its stretch's maximum; holes are blank."""
    bars = _BARS if _has_bars() else _PLAIN_BARS
    parts = np.array_split(values, min(_WIDTH, len(values)))
    highest = [float(np.nanmax(part)) if np.isfinite(part).any() else None for part in parts]
    scale = (len(bars) - 1) / max(top, 1e-9)
    return "".join(" " if value is None else bars[round(value * scale)] for value in highest)


def _has_bars() -> bool:
    try:
        _BARS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _share(share: float) -> str:
    return f"{100 * share:.3g}%"


def _ahead(seconds: float) -> str:
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
