"""The gain of a job from its satellites, as its leaders measure it one after the other. Pure.

Each leader tells its agents the numbers. The agents tell the next leader, which goes on from there. Time
without a leader is not counted.
"""

from __future__ import annotations

import math

from flexo_protos.resources import Amount
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic.trace import count


class Accounting:
    """The accounting of one `flexo run`. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._satellite_worker_s = 0.0
        self._resizes = 0
        self._paused_s = 0.0
        self._workers = 0
        """Number of workers in the last generation; 0: no generation yet."""
        self._generation = 0
        """The last generation whose pause is part of `_paused_s`."""
        self._pause_s = 0.0
        """The pause of that generation: the longest that any of its workers has reported so far."""

    def inherit(self, told: pb.Accounting) -> None:
        """Go on from the numbers that an agent has from an earlier leader."""
        if told.resizes >= self._resizes and told.workers:
            self._workers = told.workers
        self._satellite_worker_s = max(self._satellite_worker_s, told.satellite_worker_s)
        self._resizes = max(self._resizes, told.resizes)
        self._paused_s = max(self._paused_s, told.paused_s)
        if told.generation > self._generation:
            self._generation, self._pause_s = told.generation, math.inf  # its workers will report it again

    def train(self, workers: int, now: float) -> None:
        """Note that this number of workers in satellites has trained since the last call."""
        self._satellite_worker_s += workers * (now - self._at)
        self._at = now

    @property
    def workers(self) -> int:
        """The number of workers in the last generation; 0: no generation yet, or training pauses."""
        return self._workers

    def go(self, workers: int) -> None:
        """Note that a generation of this number of workers begins."""
        self._resizes += self._workers not in (0, workers)
        self._workers = workers

    def paused(self, generation: int, seconds: float) -> None:
        """Note the seconds that a worker stood still at the boundary at which it entered `generation`."""
        if generation > self._generation and seconds:
            self._generation, self._pause_s = generation, 0.0
        if generation == self._generation and seconds > self._pause_s:
            self._paused_s += seconds - self._pause_s
            self._pause_s = seconds

    def told(self) -> pb.Accounting:
        """The numbers as a message for the next leader."""
        return pb.Accounting(
            satellite_worker_s=self._satellite_worker_s,
            resizes=self._resizes,
            paused_s=self._paused_s,
            workers=self._workers,
            generation=self._generation,
        )

    def sentence(self, gpus: Amount) -> str:
        """ "412 GPU minutes trained on satellites, 7 resizes, 0.3 s paused". `gpus`: GPUs of a worker."""
        minutes = self._satellite_worker_s * float(gpus or 1) / 60
        number = f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}".removesuffix(".0")
        what = f"{'GPU' if gpus else 'worker'} minute{'' if number == '1' else 's'}"
        return (
            f"{number} {what} trained on satellites, {count(self._resizes, 'resize')},"
            f" {self._paused_s:.1f} s paused"
        )
