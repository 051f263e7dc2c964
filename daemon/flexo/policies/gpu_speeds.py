"""Normalised GPUs: the speed of a worker on one GPU type, relative to another (Lyra, slides: T4 = 1/3 V100).

Policies calculate with these speeds, and the simulator takes them as the truth about the jobs that it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

T4_SPEED: Final = 1 / 3
"""The speed of a T4, in V100s (Lyra, slides, "Evaluation - Experiment Setup")."""
SLOWEST: Final = 0.001
FASTEST: Final = 1000.0
"""The largest speed that a site declares; SLOWEST is the smallest. Others are mistakes, and the leaders of
heterogeneous jobs refuse them, too."""
MIXED_EFFICIENCY: Final = 0.9
"""The part of the sum of speeds that remains where speeds differ. The slides call it "non-ideal" and print no
figure."""


@dataclass(frozen=True)
class GpuSpeeds:
    """The speeds of GPUs, by type. Small and capital letters in a type's name are equal."""

    speeds: Mapping[str, float] = field(default_factory=lambda: {"T4": T4_SPEED})
    """The speed of each named type, relative to the types that are not named."""
    mixed_efficiency: float = MIXED_EFFICIENCY
    """The efficiency of a run on GPUs of different speeds; 1: the batch is split so well that nothing is
    lost."""

    def __post_init__(self) -> None:
        for gpu_type, speed in self.speeds.items():
            if not 0 < speed < float("inf"):
                raise ValueError(f"the speed of a GPU is above 0, that of {gpu_type} is {speed}")
        if not 0 < self.mixed_efficiency <= 1:
            raise ValueError(f"the efficiency of mixed GPUs is above 0, at most 1: {self.mixed_efficiency}")

    def of(self, gpu_type: str) -> float:
        """The speed of a GPU of this type."""
        return self._by_name.get(gpu_type.casefold(), 1.0)

    def each(self, workers: Mapping[str, int], mixes: bool) -> float:
        """The mean speed of a worker of one run. `workers`: the number of workers (at least one) by GPU type.

        If `mixes`, the batch is split in proportion to the speeds (LBBSP): speeds add up, less the loss by
        mixing. Otherwise, and where the split does not pay, all workers wait for the slowest.
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
    """The paces of jobs: speeds on the GPUs of one cluster, relative to the type that a job asks for (1: as
    fast)."""

    def __init__(self, speeds: GpuSpeeds, gpu_types: Iterable[str]) -> None:
        self._speeds = speeds
        self._fastest = max(map(speeds.of, gpu_types), default=1.0)
        self._one: dict[tuple[str, str], float] = {}

    def of(self, asked: str, workers: Mapping[str, int], mixes: bool) -> float:
        """The pace of a run. `workers`: the number of workers, at least one, by GPU type.

        `asked`: the type that the job asks for; "": none, and the pace is relative to the cluster's fastest
        type.
        """
        return self._speeds.each(workers, mixes) / (self._speeds.of(asked) if asked else self._fastest)

    def of_one(self, asked: str, gpu_type: str) -> float:
        """The pace of a run on one type alone."""
        known = self._one.get((asked, gpu_type))
        if known is None:
            known = self._one[asked, gpu_type] = self.of(asked, {gpu_type: 1}, mixes=False)
        return known
