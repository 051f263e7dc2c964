"""A finding of an examination: one checked thing, its condition, and how to fix it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """The condition of a checked thing."""

    OK = "ok"
    WARNING = "warning"
    """flexo works, but worse than it could, or in a way that few want."""
    PROBLEM = "problem"
    """Something that flexo promises does not work."""
    NOT_CHECKED = "not_checked"
    """The condition cannot be known from here; `what` says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    check: str
    """The checked thing, by a name that never changes: `partition.tier`."""
    level: Level
    what: str
    """The condition of the thing, in a sentence."""
    fix: str = ""
    """The remedy, with the command or the line of configuration; "" where none is needed."""


def ok(check: str, what: str) -> Finding:
    """The finding that a thing is as it should be."""
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, fix: str) -> Finding:
    """The finding that a thing is not as it should be, but that flexo can live with it."""
    return Finding(check, Level.WARNING, what, fix)


def problem(check: str, what: str, fix: str) -> Finding:
    """The finding that a thing is not as it must be."""
    return Finding(check, Level.PROBLEM, what, fix)


def not_checked(check: str, why: str, fix: str = "") -> Finding:
    """The finding that a condition cannot be known from here. `fix`: how to find out."""
    return Finding(check, Level.NOT_CHECKED, why, fix)
