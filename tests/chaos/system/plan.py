"""What happens to a whole cluster, by its seed. Pure."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

KEPT = (11,)
"""Seeds that have found something once."""
SEEDS = tuple(sorted({*range(1, 11), *KEPT}))
"""Those that `make test-chaos` runs."""
MINUTES = 1.0
"""How long things go wrong in one run."""
FAULTS_A_MINUTE = 6
TRAIN_NODES, INFERENCE_NODES, GPUS_PER_NODE = 4, 3, 2
FOR_EVER_S = 3600
"""Until the run is over."""
_FUNGIBLE_EVERY = 3
"""Of the seeds: in these a base is on a lent server."""


class Target(enum.StrEnum):
    """What fails."""

    FLEXOD = "flexod"
    SLURMCTLD = "slurmctld"
    SLURMD = "slurmd"
    LEADER = "leader"
    AGENT = "agent"
    WORKER = "worker"
    LEADERS_LINK = "connection of leaders and agents with flexod"
    SLURM_LINK = "connection of flexod with slurmctld"


class Deed(enum.StrEnum):
    """How it fails."""

    KILL = "kill"
    """SIGKILL. Daemons are started again `for_s` later, as systemd would do it."""
    HOLD = "hold"
    """SIGSTOP, and SIGCONT `for_s` later."""
    CUT = "cut"
    """Connections are reset and new ones refused, for `for_s`."""
    STALL = "stall"
    """Nothing gets through for `for_s`, and nobody is told, as when a cable is out."""


LINKS = (Target.LEADERS_LINK, Target.SLURM_LINK)
OF_A_JOB = (Target.LEADER, Target.AGENT, Target.WORKER)


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure. Times in seconds; `at_s` counts from the moment when all elastic jobs train."""

    at_s: float
    target: Target
    deed: Deed
    for_s: float
    choice: float
    """From 0 to 1: which of those that there are."""
    job: int
    """Which elastic job, if it is a process of one."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """An elastic job, there from the beginning to the end."""

    name: str
    smallest: int
    largest: int
    base_nodes: int
    fungible: bool = False


@dataclass(frozen=True, slots=True)
class Ordinary:
    """A job of a fixed size: training, or inference on a whole server."""

    name: str
    at_s: float
    runs_s: int
    inference: bool
    nodes: int = 1
    gpus_per_node: int = GPUS_PER_NODE
    server: str = ""
    """Inference that wants this very one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    lasts_s: float
    elastic: tuple[Elastic, ...]
    filler: Ordinary | None
    """Holds the training nodes that elastic jobs leave: a fungible job then starts on a lent server."""
    faults: tuple[Fault, ...]
    arrivals: tuple[Ordinary, ...]


def plan(seed: int, minutes: float = MINUTES) -> Plan:
    """The same for the same seed and length, always."""
    die = random.Random(f"system {seed}")
    lasts_s = 60.0 * minutes
    fungible = seed % _FUNGIBLE_EVERY == 0
    base_nodes = die.choice((1, 2))  # the same for both: else they may not fit beside the filler
    elastic = tuple(Elastic(f"elastic{number}", 2, die.choice((4, 5)), base_nodes) for number in (1, 2))
    filler = None
    if fungible:
        elastic += (Elastic("fungible", 2, 2, 1, True),)
        filler = Ordinary("filler", 0.0, FOR_EVER_S, inference=False, nodes=2)
    return Plan(
        seed, lasts_s, elastic, filler, _faults(die, lasts_s, len(elastic)), _arrivals(die, lasts_s, fungible)
    )


def _faults(die: random.Random, lasts_s: float, jobs: int) -> tuple[Fault, ...]:
    """Spread over the time; every target once before any of them fails again."""
    number = max(2, round(lasts_s / 60 * FAULTS_A_MINUTE))
    slot = lasts_s / number
    targets: list[Target] = []
    while len(targets) < number:
        targets += die.sample(list(Target), len(Target))
    return tuple(
        _fault(die, round(slot * (place + die.uniform(0.05, 0.95)), 2), target, jobs)
        for place, target in enumerate(targets[:number])
    )


def _fault(die: random.Random, at_s: float, target: Target, jobs: int) -> Fault:
    deed = die.choice((Deed.CUT, Deed.STALL) if target in LINKS else (Deed.KILL, Deed.KILL, Deed.HOLD))
    for_s = round(die.uniform(1.0, 10.0) if deed is Deed.KILL else die.uniform(3.0, 18.0), 2)
    return Fault(at_s, target, deed, for_s, die.random(), die.randrange(jobs))


def _arrivals(die: random.Random, lasts_s: float, fungible: bool) -> tuple[Ordinary, ...]:
    """Training of a fixed size that wants what satellites have, and inference that wants its servers."""
    servers = [f"i{number}" for number in range(1, INFERENCE_NODES + 1)]
    arrivals = []
    for number in range(1, 4):
        at_s, pinned = round(die.uniform(0.0, 0.8 * lasts_s), 2), die.random() < 0.5
        # The first runs long enough for its server's loan to be ended.
        runs_s = round(lasts_s) if number == 1 else die.randint(8, 20)
        server = die.choice(servers) if pinned else ""
        arrivals.append(Ordinary(f"inference{number}", at_s, runs_s, inference=True, server=server))
    for number in range(1, 1 if fungible else 4):
        at_s, nodes, gpus = (
            round(die.uniform(0.0, 0.8 * lasts_s), 2),
            die.choice((1, 1, 2)),
            die.choice((1, 2)),
        )
        arrivals.append(Ordinary(f"rigid{number}", at_s, die.randint(8, 20), False, nodes, gpus))
    return tuple(sorted(arrivals, key=lambda each: each.at_s))
