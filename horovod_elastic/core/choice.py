"""The choice of the core that a job's workers train with.

`flexo run --core` makes the choice, and an environment variable carries it to all workers. Every Python
process of a job imports this module at its start, so the module itself imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

TORCH, HOROVOD, SERVICE = CORES = ("torch", "horovod", "service")
"""SERVICE is the torch core with sums by Aggregators (horovod_elastic/aggregation) instead of all-reduces."""
TORCH_TIMEOUT_S = 120
"""How long a worker waits for others on the torch core; HOROVOD_GLOO_TIMEOUT_SECONDS is the user's word."""
DEFAULT_CORE = TORCH
VARIABLE = "FLEXO_CORE"
OWN, SATELLITES, POOL, AUTO = AGGREGATORS = ("own", "satellites", "pool", "auto")
"""Whose Aggregators sum: those beside the job's workers, those in satellites of the job that have CPUs only,
or a pool's, which several jobs share. AUTO: flexod chooses among them, in this order."""
AGGREGATORS_VARIABLE = "FLEXO_AGGREGATORS"
CORES_VARIABLE = "FLEXO_AGGREGATOR_CORES"
_MOST_AGGREGATOR_CORES = 10_000
_ALLOWED = f"{', '.join(AGGREGATORS[:-1])} or {AGGREGATORS[-1]}"


def chosen(environment: Mapping[str, str] = os.environ) -> str:
    """The core that `environment` names, one of CORES. Raises ValueError if it names another."""
    return _checked(environment.get(VARIABLE) or DEFAULT_CORE, VARIABLE)


def is_on_torch(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the core that `environment` names is the torch core, with or without Aggregators."""
    return chosen(environment) in (TORCH, SERVICE)


def sums_by_service(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether Aggregators make the sums of gradients."""
    return chosen(environment) == SERVICE


def choose(name: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the core for processes started with `environment`. Raises ValueError if there is no such core."""
    environment[VARIABLE] = _checked(name, "--core")


def wants_pool(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has asked for pool Aggregators. Raises ValueError as `check_aggregators` does."""
    check_aggregators(environment)
    return environment.get(AGGREGATORS_VARIABLE) == POOL


def wants_satellites(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has asked for Aggregators in satellites. Raises ValueError as `check_aggregators`
    does."""
    check_aggregators(environment)
    return environment.get(AGGREGATORS_VARIABLE) == SATELLITES


def leaves_choice(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user leaves it to flexod whose Aggregators sum. Raises ValueError as `check_aggregators`
    does."""
    check_aggregators(environment)
    return environment.get(AGGREGATORS_VARIABLE) == AUTO


def wants_assignment(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether Aggregators elsewhere than on the workers' nodes may sum. Raises ValueError as
    `check_aggregators` does."""
    check_aggregators(environment)
    return (environment.get(AGGREGATORS_VARIABLE) or OWN) != OWN


def aggregator_cores(environment: Mapping[str, str] = os.environ) -> int:
    """The CPU cores for Aggregators of the job: in satellites, or such that it would reserve without a pool;
    0: one for each node."""
    return int(environment.get(CORES_VARIABLE) or 0)


def choose_aggregators(name: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set whose Aggregators sum. Raises ValueError for an unknown word."""
    if name not in AGGREGATORS:
        raise ValueError(f"--aggregators={name}: allowed is {_ALLOWED}")
    environment[AGGREGATORS_VARIABLE] = name


def choose_aggregator_cores(text: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the cores of `aggregator_cores`. Raises ValueError for anything but a number of cores."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_AGGREGATOR_CORES:
        raise ValueError(f"--aggregator-cores={text}: allowed is a number from 1 to {_MOST_AGGREGATOR_CORES}")
    environment[CORES_VARIABLE] = text


def check_aggregators(environment: Mapping[str, str] = os.environ) -> None:
    """Check what the environment says of Aggregators. Raises ValueError."""
    said = environment.get(AGGREGATORS_VARIABLE) or OWN
    if said not in AGGREGATORS:
        raise ValueError(f"{AGGREGATORS_VARIABLE}={said}: allowed is {_ALLOWED}")
    if said != OWN and not sums_by_service(environment):
        raise ValueError(
            f"--aggregators={said} ({AGGREGATORS_VARIABLE}) needs --core={SERVICE}: with"
            f" --core={chosen(environment)}, no Aggregator sums gradients"
        )
    if cores := environment.get(CORES_VARIABLE):
        choose_aggregator_cores(cores, {})


def _checked(name: str, source: str) -> str:
    if name not in CORES:
        raise ValueError(f"{source}={name}: there is no such core; it is one of {', '.join(CORES)}")
    return name
