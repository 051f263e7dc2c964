"""The arguments of `flexo forecast`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

METHODS: Final = ("seasonal", "lstm")
PICTURES: Final = ("png", "svg", "pdf")
"""Allowed extensions of a picture's file."""


@dataclass(frozen=True, slots=True)
class AskedHistory:
    """Options that choose the source of past demand: a file, a made-up load, or else flexod's event store."""

    file: Path | None
    generate: bool
    seed: int
    days: float
    """Number of days of a made-up load."""
    servers: int
    """Servers of a made-up load's cluster."""
    daemon: str | None
    day_s: float


@dataclass(frozen=True, slots=True)
class AskedForecast:
    """Options of the forecast: its method, its length and its interval."""

    method: str
    ahead_days: float
    quantile: float


@dataclass(frozen=True, slots=True)
class AskedTest:
    """Options of the back-test."""

    wanted: bool
    test_days: float


@dataclass(frozen=True, slots=True)
class AskedOutput:
    """Options of the output."""

    picture: Path | None
    as_json: bool
