"""A small LSTM as another forecast of demand, since Lyra forecasts with one. It needs PyTorch when it is
used.

Nothing else is published about Lyra's; this one is plain. It reads the last hours of demand and predicts
three quantiles for any lead up to a day: `1 - quantile`, the median as the expected value, and `quantile`. It
is trained by the pinball loss, whose minimum these quantiles are, on pairs of an instant and a lead drawn
from the history. It also gets the time of the day and of the week of the predicted instant, and the demand a
day before that instant. The same seed and history give the same forecast on one machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from flexo.loaning.forecast_interval import Fitted, ForecastInterval, band_around, bins_between
from flexo.loaning.history import Floats, History
from flexo.loaning.last_value import LastValue
from flexo.loaning.seasonal import can_learn
from flexo_protos.installing import Wheel, how_to_install

if TYPE_CHECKING:
    import torch

_WINDOW: Final = 36
"""Number of bins that the network reads: three hours of a real day."""
_HIDDEN: Final = 32
STEPS: Final = 700
_BATCH: Final = 256
_RATE: Final = 0.01
_FORGOTTEN: Final = 0.2
"""Share of training examples without the demand of the day before, which long leads do not have either."""


class TorchMissing(Exception):
    """The error for a missing PyTorch; the message says what to do."""


@dataclass(frozen=True, slots=True)
class LstmMethod:
    """Learns an LSTM, or the last value if the history is too short (see `forecast.learn`). Raises
    TorchMissing."""

    seed: int = 0

    def check(self) -> None:
        """Raise TorchMissing now and not later."""
        _torch()

    def __call__(self, history: History, quantile: float) -> Fitted:
        """See `forecast_interval.Method`."""
        _torch()
        if not can_learn(history):
            return LastValue.learn(history, quantile)
        return Lstm.learn(history, quantile, self.seed)


class Lstm:
    """The trained LSTM (see the module)."""

    def __init__(self, net: torch.nn.ModuleDict, scale: tuple[float, float], quantile: float) -> None:
        self._net = net
        self._mean, self._deviation = scale
        self._quantile = quantile

    @classmethod
    def learn(cls, history: History, quantile: float, seed: int) -> Lstm:
        """Train from scratch; some seconds for weeks of history."""
        torch = _torch()
        mean, deviation = float(np.nanmean(history.values)), max(float(np.nanstd(history.values)), 1e-6)
        examples = _Examples((_filled(history.values) - mean) / deviation, history)
        random = np.random.default_rng(seed)
        with _one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = _net()
            optimizer = torch.optim.Adam(net.parameters(), lr=_RATE)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=_RATE, total_steps=STEPS)
            for _ in range(STEPS):
                origins, leads = examples.drawn(random)
                forget = random.random(len(origins)) < _FORGOTTEN
                said = _said(net, *examples.inputs(origins, leads, forget))
                loss = _pinball(said, examples.scaled[origins + leads], quantile)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        net.eval()
        return cls(net, (mean, deviation), quantile)

    def predict(self, history: History, now: float, until: float) -> ForecastInterval:
        """See `forecast_interval.Fitted`."""
        torch = _torch()
        numbers = bins_between(history, now, until)
        scaled = (_filled(history.values) - self._mean) / self._deviation
        examples = _Examples(scaled, history)
        leads = np.maximum(1, numbers - history.last)
        origins = np.full(len(leads), len(scaled) - 1)
        with _one_thread(), torch.no_grad():
            said = _said(
                self._net, *examples.inputs(origins, leads, np.zeros(len(leads), dtype=bool), once=True)
            )
        low, middle, high = np.sort(said.numpy().astype(np.float64), axis=1).T * self._deviation
        expected = middle + self._mean
        lines = expected, low - middle, high - middle
        return band_around(history, numbers, lines, self._quantile, "LSTM")


class _Examples:
    """The network's inputs for an instant and a lead, both in bins. `scaled` has no holes."""

    def __init__(self, scaled: Floats, history: History) -> None:
        self.scaled = scaled
        self._padded = np.concatenate((np.full(_WINDOW - 1, scaled[0]), scaled))
        self._bins = history.seasons.bins_a_day
        self._first = history.first

    def drawn(self, random: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Instants and leads for one step of training; the logarithms of the leads are spread evenly."""
        longest = min(self._bins, len(self.scaled) - 2)
        leads = np.exp(random.uniform(0, math.log(longest), _BATCH)).astype(np.int64)
        return (random.random(_BATCH) * (len(self.scaled) - leads)).astype(np.int64), leads

    def inputs(
        self,
        origins: NDArray[np.int64],
        leads: NDArray[np.int64],
        forget: NDArray[np.bool_],
        *,
        once: bool = False,
    ) -> tuple[Floats, Floats]:
        """The hours before each instant (one for all with `once`), and the known facts about the predicted
        instant."""
        shown = origins[:1] if once else origins
        windows = self._padded[shown[:, None] + np.arange(_WINDOW)]
        targets = origins + leads
        before = targets - self._bins
        known = (before >= 0) & (before <= origins) & ~forget
        yesterday = np.where(known, self.scaled[np.clip(before, 0, origins)], 0.0)
        day = 2 * math.pi * (targets + self._first) / self._bins
        far = np.log(leads) / math.log(self._bins)
        columns = (
            *(np.cos(day), np.sin(day), np.cos(2 * day), np.sin(2 * day), np.cos(day / 7), np.sin(day / 7)),
            *(np.minimum(far, 1.0), yesterday, known.astype(np.float64), self.scaled[origins]),
        )
        return windows[:, :, None], np.stack(columns, axis=1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch use one thread meanwhile, with which such a small network is fastest."""
    torch = _torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _net() -> torch.nn.ModuleDict:
    torch = _torch()
    asked = 10
    head = torch.nn.Sequential(
        torch.nn.Linear(_HIDDEN + asked, 2 * _HIDDEN), torch.nn.ReLU(), torch.nn.Linear(2 * _HIDDEN, 3)
    )
    return torch.nn.ModuleDict({"lstm": torch.nn.LSTM(1, _HIDDEN, batch_first=True), "head": head})


def _said(net: torch.nn.ModuleDict, windows: Floats, asked: Floats) -> torch.Tensor:
    """Three scaled quantiles of each example: shape (examples, 3). The head predicts changes from the last
    value."""
    torch = _torch()
    told = torch.as_tensor(asked, dtype=torch.float32)
    _, (hidden, _) = net["lstm"](torch.as_tensor(windows, dtype=torch.float32))
    read = hidden[-1].expand(len(told), -1)
    return net["head"](torch.cat((read, told), dim=1)) + told[:, -1:]


def _pinball(said: torch.Tensor, truth: Floats, quantile: float) -> torch.Tensor:
    torch = _torch()
    wanted = torch.tensor([1 - quantile, 0.5, quantile])
    missed = torch.as_tensor(truth, dtype=torch.float32)[:, None] - said
    return torch.maximum(wanted * missed, (wanted - 1) * missed).mean()


def _filled(values: Floats) -> Floats:
    """The values with each hole filled by a straight line between its neighbours."""
    known = np.flatnonzero(np.isfinite(values))
    return np.interp(np.arange(len(values)), known, values[known])


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        text = f"the LSTM needs PyTorch, which cannot be imported here ({error})."
        raise TorchMissing(f"{text} {how_to_install(Wheel.SITES, 'torch')}") from error
    return torch
