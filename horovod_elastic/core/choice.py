"""Which core a job's workers train with: said to `flexo run`, carried to all of them by the environment.

Imported whenever Python starts in a job, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

TORCH, HOROVOD = CORES = ("torch", "horovod")
DEFAULT_CORE = TORCH
VARIABLE = "FLEXO_CORE"


def chosen(environment: Mapping[str, str] = os.environ) -> str:
    """One of CORES. Raises ValueError if the environment names another."""
    return _checked(environment.get(VARIABLE) or DEFAULT_CORE, VARIABLE)


def choose(name: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """What is started with `environment` from now on uses that core. Raises ValueError if there is none."""
    environment[VARIABLE] = _checked(name, "--core")


def _checked(name: str, source: str) -> str:
    if name not in CORES:
        raise ValueError(f"{source}={name}: there is no such core; it is one of {', '.join(CORES)}")
    return name
