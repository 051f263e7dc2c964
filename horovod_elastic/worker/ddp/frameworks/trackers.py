"""The run of a tracker goes on in another process once rank 0 is lost.

Trackers such as wandb and TensorBoard write in the process of rank 0. All other workers are told which run it
is, so that the next rank 0 goes on with that run, and begins no other one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

_VARIABLES = "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_PROJECT", "WANDB_ENTITY"


@dataclass(frozen=True, slots=True)
class WandbRun:
    """A run of wandb. `entity`: its user or team; "" if wandb does not know that, as in its offline mode."""

    run_id: str
    project: str
    entity: str


def wandb_run() -> WandbRun | None:
    """The run that this process has begun; None if there is none."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or getattr(run, "disabled", False):
        return None
    return WandbRun(str(run.id), str(run.project or ""), str(run.entity or ""))


@contextlib.contextmanager
def going_on_with(run: WandbRun | None) -> Iterator[None]:
    """Have wandb.init() go on with this run. Its own arguments count more than these variables."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    if run is not None:
        values = run.run_id, "allow", run.project, run.entity
        os.environ.update({name: value for name, value in zip(_VARIABLES, values, strict=True) if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def finish_wandb() -> None:
    """End the part of the run that this process has written: another process goes on with the run."""
    if wandb_run() is not None:
        sys.modules["wandb"].finish()
