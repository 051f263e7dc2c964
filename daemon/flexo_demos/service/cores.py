"""CPU cores that Aggregators hold by Slurm's accounting, and those that jobs would reserve for their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FIELDS = "JobIDRaw,ElapsedRaw,AllocCPUS,State"
"""The columns of sacct that `parse` reads."""


@dataclass(frozen=True, slots=True)
class Use:
    """One job in Slurm's accounting."""

    elapsed_s: int
    cores: int
    state: str

    @property
    def core_s(self) -> int:
        """Core seconds that it held."""
        return self.elapsed_s * self.cores


def parse(text: str) -> dict[int, Use]:
    """The jobs in what `sacct -X --parsable2 --noheader --format=FIELDS` prints."""
    found = {}
    for line in text.splitlines():
        number, elapsed, cores, state = line.split("|")
        found[int(number)] = Use(int(elapsed), int(cores), state.partition(" ")[0])
    return found


@dataclass(frozen=True, slots=True)
class CoreSeconds:
    """Core seconds for sums, over the time of the whole story."""

    pool: int
    """Held by the pool's Aggregators, those that idle too."""
    reserved: int
    """That the jobs would have reserved for Aggregators of their own."""

    @property
    def saved(self) -> float:
        """The part that sharing saves."""
        return 1 - self.pool / self.reserved


def core_seconds(
    uses: Mapping[int, Use], aggregators: Iterable[int], jobs: Sequence[int], cores_each: int
) -> CoreSeconds | None:
    """Sum up. `cores_each`: what each job would reserve. None: a job is missing in the accounting."""
    pool = list(aggregators)
    if not pool or not jobs or not {*pool, *jobs} <= uses.keys():
        return None
    reserved = sum(uses[job].elapsed_s * cores_each for job in jobs)
    return CoreSeconds(sum(uses[job].core_s for job in pool), reserved) if reserved else None
