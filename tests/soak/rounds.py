"""What happens in each round of a soak, by its seed. Pure.

A round is a short run of the chaos tests' kind (chaos.system): two elastic jobs, jobs that take nodes and
lent servers from their satellites, and failures. Besides, an elastic job fails, or is cancelled by its user.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from chaos.system.plan import Deed, Elastic, Fault, Ordinary, Plan, Target

LASTS_S = 20.0
"""From the moment when both elastic jobs train to the last failure."""
_KILLED_FOR_S = (1.0, 4.0)
_HELD_FOR_S = (2.0, 5.0)


class End(enum.StrEnum):
    """How an elastic job ends that is not to complete."""

    FAILS = "its script fails"
    CANCELLED = "its user cancels it"


class Restart(enum.StrEnum):
    """Of a daemon, by its administrator: SIGTERM, and started again."""

    SLURMCTLD = "slurmctld"
    FLEXOD = "flexod"


@dataclass(frozen=True, slots=True)
class Doomed:
    """An elastic job that does not complete. Seconds from when the others train."""

    name: str
    at_s: float
    end: End


@dataclass(frozen=True, slots=True)
class Round:
    """One round."""

    number: int
    plan: Plan
    doomed: tuple[Doomed, ...]
    restarts: tuple[tuple[float, Restart], ...]


def round_of(seed: int, number: int, *, flexod_too: bool) -> Round:
    """The same for the same numbers, always. `flexod_too`: it is killed or restarted as well."""
    die = random.Random(f"soak {seed} {number}")
    elastic = tuple(Elastic(f"elastic{each}", 2, die.choice((3, 4)), 1) for each in (1, 2))
    faults = [_fault(die, die.choice((Target.LEADER, Target.AGENT, Target.WORKER)))]
    restarts: list[tuple[float, Restart]] = []
    # In turn: slurmctld is killed, is restarted, and is left alone while a node's slurmd is hit.
    if number % 3 == 0:
        faults.append(_fault(die, Target.SLURMCTLD))
    elif number % 3 == 1:
        restarts.append((_moment(die), Restart.SLURMCTLD))
    else:
        faults.append(_fault(die, Target.SLURMD))
    if flexod_too and number % 2 == 0:
        faults.append(Fault(_moment(die), Target.FLEXOD, Deed.KILL, 1.0, 0.0, 0))
    elif flexod_too:
        restarts.append((_moment(die), Restart.FLEXOD))
    arrivals = (
        Ordinary("rigid", _moment(die), die.randint(5, 10), False, 1, die.choice((1, 2))),
        Ordinary("inference", _moment(die), die.randint(5, 10), inference=True),
    )
    plan = Plan(seed, LASTS_S, elastic, None, tuple(sorted(faults, key=lambda fault: fault.at_s)), arrivals)
    return Round(number, plan, (Doomed("doomed", _moment(die) / 2, list(End)[number % 2]),), tuple(restarts))


def _moment(die: random.Random) -> float:
    return round(die.uniform(0.05, 0.8) * LASTS_S, 2)


def _fault(die: random.Random, target: Target) -> Fault:
    """SIGKILL twice as often as SIGSTOP."""
    deed = die.choice((Deed.KILL, Deed.KILL, Deed.HOLD))
    for_s = round(die.uniform(*(_KILLED_FOR_S if deed is Deed.KILL else _HELD_FOR_S)), 2)
    return Fault(_moment(die), target, deed, for_s, die.random(), die.randrange(2))
