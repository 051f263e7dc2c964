"""slurmctld's mean time for a user's RPC with flexod, to that without, and how sure that is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from flexo_bench.scale.watch import Rpcs, Watched, together

_PIECES = 12
"""Of a stretch. Rounds beside each other wait for the same cycle of backfill: they are drawn as one."""
_DRAWS = 2000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of means, and within what it lies 95 times of 100 (bootstrap over pieces of the stretches)."""

    value: float
    low: float
    high: float


def ratio(with_it: Sequence[Watched], without: Sequence[Watched]) -> Ratio:
    """Of the mean times of all RPCs in these stretches."""
    value = _of([each.users for each in with_it], [each.users for each in without])
    above, below = ([_pieces(each.rounds) for each in stretches] for stretches in (with_it, without))
    chance = random.Random(_SEED)
    drawn = sorted(_of(_drawn(above, chance), _drawn(below, chance)) for _ in range(_DRAWS))
    outside = _DRAWS * 25 // 1000
    return Ratio(value, drawn[outside], drawn[-1 - outside])


def _of(above: Sequence[Rpcs], below: Sequence[Rpcs]) -> float:
    return together(above).mean_us / together(below).mean_us


def _pieces(rounds: Sequence[Rpcs]) -> list[Rpcs]:
    size = max(1, len(rounds) // _PIECES)
    return [together(rounds[start : start + size]) for start in range(0, len(rounds), size)]


def _drawn(stretches: Sequence[Sequence[Rpcs]], chance: random.Random) -> list[Rpcs]:
    return [piece for pieces in stretches for piece in chance.choices(pieces, k=len(pieces))]
