"""Normalised GPUs: what a worker does on a GPU of one type, in that of another (Lyra, slides: T4 = 1/3 V100).

Policies reckon with it, and the simulator takes it as the truth about the jobs that it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

T4_SPEED: Final = 1 / 3
"""In V100s (Lyra, slides, "Evaluation - Experiment Setup")."""
SLOWEST: Final = 0.001
FASTEST: Final = 1000.0
"""What a site may declare; all else is a mistake, and the leaders of heterogeneous jobs refuse it, too."""
MIXED_EFFICIENCY: Final = 0.9
"""What is left of the sum of speeds where they differ. The slides call it "non-ideal" and print no figure."""


@dataclass(frozen=True)
class GpuSpeeds:
    """What GPUs do by their type. Names count in small or capital letters alike."""

    speeds: Mapping[str, float] = field(default_factory=lambda: {"T4": T4_SPEED})
    """In GPUs of the types that are not named."""
    mixed_efficiency: float = MIXED_EFFICIENCY
    """Of one run on GPUs of different speeds; 1: the batch is split so well that nothing is lost."""

    def __post_init__(self) -> None:
        for gpu_type, speed in self.speeds.items():
            if not 0 < speed < float("inf"):
                raise ValueError(f"the speed of a GPU is above 0, that of {gpu_type} is {speed}")
        if not 0 < self.mixed_efficiency <= 1:
            raise ValueError(f"the efficiency of mixed GPUs is above 0, at most 1: {self.mixed_efficiency}")

    def of(self, gpu_type: str) -> float:
        """What a GPU of this type does."""
        return self._by_name.get(gpu_type.casefold(), 1.0)

    def each(self, workers: Mapping[str, int], mixes: bool) -> float:
        """What each worker of one run does in the mean, with so many (at least one) on each GPU type.

        Where `mixes`, the batch is split in proportion to the speeds (LBBSP): they add up, less what that
        loses. Without it, and where it does not pay, all wait for the slowest.
        """
        speeds = {self.of(gpu_type) for gpu_type in workers}
        slowest = min(speeds)
        if len(speeds) == 1 or not mixes:
            return slowest
        together = sum(count * self.of(gpu_type) for gpu_type, count in workers.items())
        return max(slowest, together / sum(workers.values()) * self.mixed_efficiency)

    @cached_property
    def _by_name(self) -> Mapping[str, float]:
        return {gpu_type.casefold(): speed for gpu_type, speed in self.speeds.items()}


class Paces:
    """How fast jobs are on the GPUs of one cluster, to those that they ask for: 1 is as fast."""

    def __init__(self, speeds: GpuSpeeds, gpu_types: Iterable[str]) -> None:
        self._speeds = speeds
        self._fastest = max(map(speeds.of, gpu_types), default=1.0)
        self._one: dict[tuple[str, str], float] = {}

    def of(self, asked: str, workers: Mapping[str, int], mixes: bool) -> float:
        """Of a run with so many workers, at least one, on each type.

        `asked`: the type that its job asks for; "": none, and its speed is that on the cluster's fastest.
        """
        return self._speeds.each(workers, mixes) / (self._speeds.of(asked) if asked else self._fastest)

    def of_one(self, asked: str, gpu_type: str) -> float:
        """Likewise, of a run on one type alone."""
        known = self._one.get((asked, gpu_type))
        if known is None:
            known = self._one[asked, gpu_type] = self.of(asked, {gpu_type: 1}, mixes=False)
        return known
