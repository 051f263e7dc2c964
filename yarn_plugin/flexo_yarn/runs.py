"""The runs of a base application, and the priorities of their containers, which name run and place.

A job begins anew when YARN takes a container of its base, and when an attempt of its ApplicationMaster finds
nothing to go on with. Each run has a number, the job's restart count, which no earlier run of it had.
"""

from __future__ import annotations

from typing import Final

_SLOTS: Final = 1 << 16
"""Containers that a base can have, and one more."""
RUNS_OF_AN_ATTEMPT: Final = 100
"""Runs of one attempt of an ApplicationMaster; their numbers follow each other."""


def priority_of(run: int, slot: int) -> int:
    """The priority of the container at place `slot`, from 1, of a run."""
    return run * _SLOTS + slot


def run_of(priority: int) -> int:
    """The run of the container with this priority."""
    return priority // _SLOTS


def first_run(attempt: int) -> int:
    """The number of the first run that an attempt, from 1, begins."""
    return (attempt - 1) * RUNS_OF_AN_ATTEMPT
