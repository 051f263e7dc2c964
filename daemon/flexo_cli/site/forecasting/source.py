"""The history that a forecast is made from: a CSV file, a made-up load, or flexod's event store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from flexo.loaning.diurnal import Diurnal
from flexo.loaning.history import BINS_A_DAY, History
from flexo_cli.connection import Daemon, find_address
from flexo_cli.output import ago, clock
from flexo_cli.site.forecasting import history_file
from flexo_cli.site.forecasting.asked import AskedHistory
from flexo_cli.site.forecasting.history_file import BadHistory, Sample

_BACK_DAYS: Final = 35.0
"""Days of the event store that are read."""
_BEGIN: Final = 1_767_571_200.0
"""The start of made-up histories: Monday, the 5th of January 2026, 0:00 UTC."""


@dataclass(frozen=True, slots=True)
class Past:
    """A history and its source."""

    history: History
    source: str
    first_at: float
    last_at: float
    now: float
    """The end of the history, after which the forecast begins."""

    @property
    def told(self) -> str:
        """Source, span and age of the history, in a sentence."""
        span = f"{self.history.span} to {clock(self.last_at)}"
        age = self.now - self.last_at
        late = f"; the last value is {ago(self.last_at, self.now)} old" if age > 900 else ""
        return f"{self.source}, {span}{late}"


def past(asked: AskedHistory) -> Past:
    """The requested past. Raises BadHistory, diurnal.BadShape, OSError, Unreachable and Refusal."""
    if asked.file is not None:
        return _of(history_file.read(asked.file), str(asked.file), asked.day_s)
    if asked.generate:
        return _of(_made_up(asked), f"made up with seed {asked.seed}", asked.day_s)
    now = time.time()
    step_s = max(1.0, asked.day_s / BINS_A_DAY)
    reply = Daemon(find_address(asked.daemon)).demand(now - _BACK_DAYS * asked.day_s, step_s)
    if not reply.samples:
        raise BadHistory(
            ("flexod's event store has no demand yet: is [loaning] set up? --history reads a file",)
        )
    samples = [(sample.at, sample.servers) for sample in reply.samples]
    return _of(samples, f"flexod's event store ({reply.samples[-1].source})", asked.day_s, now)


def _of(samples: list[Sample], source: str, day_s: float, now: float | None = None) -> Past:
    times = [at for at, _ in samples]
    first, last = min(times), max(times)
    return Past(History.of(samples, day_s), source, first, last, last if now is None else now)


def _made_up(asked: AskedHistory) -> list[Sample]:
    load = Diurnal(servers=asked.servers, day_s=asked.day_s)
    times = _BEGIN + np.arange(max(1, round(asked.days * BINS_A_DAY))) * (asked.day_s / BINS_A_DAY)
    servers = load.servers_at(times, asked.seed)
    return list(zip(times.tolist(), servers.tolist(), strict=True))
