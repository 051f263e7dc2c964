"""What happens to a job, by its seed. Pure."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

SEEDS = tuple(range(1, 51))
"""Those that `make test-chaos` runs."""


class Victim(enum.StrEnum):
    """Which process of the job."""

    WORKER = "worker"
    AGENT = "agent"
    LEADER = "leader"
    """The agent that leads."""
    SUPERVISOR = "supervisor"
    """What Slurm has started on a node: its agent and its workers die with it."""


class Deed(enum.StrEnum):
    """What is done to it."""

    KILL = "kill"
    STOP = "stop"
    """SIGSTOP, and never continued."""
    HOLD = "hold"
    """SIGSTOP, continued after `hold_s`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. Times in seconds."""

    seed: int
    victim: Victim
    deed: Deed
    choice: float
    """From 0 to 1: which of those that may be hit."""
    at_s: float
    """After the first commit."""
    hold_s: float
    base_nodes: int
    """The base's two workers are on one node, or on two."""
    scale_to: int | None
    """The job's owner resizes it (flexo scale) a moment before."""
    scale_before_s: float
    linger_s: float
    """How long it trains on afterwards: a stopped agent is given up after a while only, and a job that loses
    a worker at its very end has failed."""


def plan(seed: int) -> Plan:
    """The same for the same seed, always."""
    die = random.Random(seed)
    deed = (Deed.KILL, Deed.STOP, Deed.KILL, Deed.HOLD, Deed.KILL)[seed % 5]
    return Plan(
        seed=seed,
        victim=list(Victim)[seed % 4],  # in turns, so that few seeds have all of them
        deed=deed,
        choice=die.random(),
        at_s=round(die.uniform(0.2, 12.0), 2),
        hold_s=round(die.uniform(1.0, 20.0), 2),
        base_nodes=die.choice((1, 2)),
        scale_to=die.choice((None, None, 2, 3, 4)),
        scale_before_s=round(die.uniform(0.0, 3.0), 2),
        linger_s=round(die.uniform(*((20.0, 30.0) if deed is Deed.STOP else (3.0, 6.0))), 2),
    )
