"""What an examination finds: one thing that was looked at, how it is, and how to fix it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How a thing is."""

    OK = "ok"
    WARNING = "warning"
    """flexo works, but worse than it could, or in a way that few want."""
    PROBLEM = "problem"
    """Something that flexo promises does not work."""
    NOT_CHECKED = "not_checked"
    """It cannot be known from here; `what` says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    check: str
    """What was looked at, in a word that stays: `partition.tier`."""
    level: Level
    what: str
    """How it is, in a sentence."""
    fix: str = ""
    """What to do about it, with the command or the line of configuration; "" where there is nothing to do."""


def ok(check: str, what: str) -> Finding:
    """It is as it should be."""
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, fix: str) -> Finding:
    """It is not as it should be; flexo lives with it."""
    return Finding(check, Level.WARNING, what, fix)


def problem(check: str, what: str, fix: str) -> Finding:
    """It is not as it must be."""
    return Finding(check, Level.PROBLEM, what, fix)


def not_checked(check: str, why: str, fix: str = "") -> Finding:
    """It cannot be known from here; `fix`: how to find out."""
    return Finding(check, Level.NOT_CHECKED, why, fix)
