"""What `flexo forecast` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

METHODS: Final = ("seasonal", "lstm")
PICTURES: Final = ("png", "svg", "pdf")
"""What the names of pictures may end in."""


@dataclass(frozen=True, slots=True)
class AskedHistory:
    """Where demand of the past comes from: a file, made up, or else flexod's journal."""

    file: Path | None
    generate: bool
    seed: int
    days: float
    """Made up: how many."""
    servers: int
    """Made up: the cluster's size."""
    daemon: str | None
    day_s: float


@dataclass(frozen=True, slots=True)
class AskedForecast:
    """Which forecast, and how far."""

    method: str
    ahead_days: float
    quantile: float


@dataclass(frozen=True, slots=True)
class AskedTest:
    """The back-test."""

    wanted: bool
    test_days: float


@dataclass(frozen=True, slots=True)
class AskedOutput:
    """Where the results go."""

    picture: Path | None
    as_json: bool
