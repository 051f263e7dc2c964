"""The choice of the core that a job's workers train with.

`flexo run --core` makes the choice, and an environment variable carries it to all workers. Every Python
process of a job imports this module at its start, so the module itself imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

TORCH, HOROVOD, SERVICE = CORES = ("torch", "horovod", "service")
"""SERVICE is the torch core with sums by Aggregators (horovod_elastic/aggregation) instead of all-reduces."""
DEFAULT_CORE = TORCH
VARIABLE = "FLEXO_CORE"


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


def _checked(name: str, source: str) -> str:
    if name not in CORES:
        raise ValueError(f"{source}={name}: there is no such core; it is one of {', '.join(CORES)}")
    return name
