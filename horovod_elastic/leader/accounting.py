"""What a job gains from its satellites, as its leaders measure it one after the other. Pure.

Each leader tells its agents, and they tell the next leader, which goes on from there. Time without a leader
is not counted.
"""

from __future__ import annotations

import math

from flexo_protos.resources import Amount
from flexo_protos.v1 import workers_pb2 as pb


class Accounting:
    """Of one `flexo run`. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._satellite_worker_s = 0.0
        self._resizes = 0
        self._paused_s = 0.0
        self._workers = 0
        """In the last generation; 0: there was none yet."""
        self._generation = 0
        """The last one whose pause is in `_paused_s`."""
        self._pause_s = 0.0
        """That pause, as long as any of its workers has said so far."""

    def inherit(self, told: pb.Accounting) -> None:
        """Go on from what an agent has heard of an earlier leader."""
        if told.resizes >= self._resizes and told.workers:
            self._workers = told.workers
        self._satellite_worker_s = max(self._satellite_worker_s, told.satellite_worker_s)
        self._resizes = max(self._resizes, told.resizes)
        self._paused_s = max(self._paused_s, told.paused_s)
        if told.generation > self._generation:
            self._generation, self._pause_s = told.generation, math.inf  # its workers say it again

    def train(self, workers: int, now: float) -> None:
        """So many workers in satellites have trained since the last call."""
        self._satellite_worker_s += workers * (now - self._at)
        self._at = now

    def go(self, workers: int) -> None:
        """A generation of so many workers begins."""
        self._resizes += self._workers not in (0, workers)
        self._workers = workers

    def paused(self, generation: int, seconds: float) -> None:
        """A worker stood still so long at the boundary where it entered this generation."""
        if generation > self._generation and seconds:
            self._generation, self._pause_s = generation, 0.0
        if generation == self._generation and seconds > self._pause_s:
            self._paused_s += seconds - self._pause_s
            self._pause_s = seconds

    def told(self) -> pb.Accounting:
        """For the next leader."""
        return pb.Accounting(
            satellite_worker_s=self._satellite_worker_s,
            resizes=self._resizes,
            paused_s=self._paused_s,
            workers=self._workers,
            generation=self._generation,
        )

    def sentence(self, gpus: Amount) -> str:
        """ "412 GPU minutes on satellites, 7 resizes, 0.3 s paused"; `gpus` is how many a worker has."""
        minutes = self._satellite_worker_s * float(gpus or 1) / 60
        number = f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}".removesuffix(".0")
        what = f"{'GPU' if gpus else 'worker'} minute{'' if number == '1' else 's'}"
        resizes = f"{self._resizes} resize{'' if self._resizes == 1 else 's'}"
        return f"{number} {what} on satellites, {resizes}, {self._paused_s:.1f} s paused"
