"""The ratio of slurmctld's mean times for a user's RPC with flexod and without, and its uncertainty."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from flexo_bench.scale.watch import Rpcs, Watched, together

_PIECES = 12
"""Pieces of a stretch. Neighbouring rounds wait for the same backfill cycle, so they are drawn together."""
_DRAWS = 2000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of means, and its 95% interval (bootstrap over pieces of the stretches)."""

    value: float
    low: float
    high: float


def ratio(with_it: Sequence[Watched], without: Sequence[Watched]) -> Ratio:
    """The ratio of the mean times of all RPCs in these stretches."""
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
