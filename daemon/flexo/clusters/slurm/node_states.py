"""Whether Slurm would start a job on a node now, from its compound state (IDLE+CLOUD+POWERED_DOWN)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from flexo.model.nodes import NodeCondition

_GOOD_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
# A list of what is harmless and not of what is harmful: every release adds flags, and a node that we take
# for unusable costs idle GPUs, while one that we take for usable costs grants that never become real.
# COMPLETING is missing on purpose: its GPUs count as free already, but Slurm starts nothing on the node
# before the epilog has ended (tried on 22.05, on a node that is partly in use too).
_HARMLESS_FLAGS = frozenset({"CLOUD", "DYNAMIC_NORM"})
_LONGEST_REASON = 200
_CONDITIONS: Final[Mapping[str, NodeCondition]] = {
    "COMPLETING": NodeCondition.ENDING,
    "PLANNED": NodeCondition.PLANNED,
    "DRAIN": NodeCondition.DRAIN,
    "DRAINING": NodeCondition.DRAIN,
    "MAINT": NodeCondition.MAINTENANCE,
    "RESERVED": NodeCondition.RESERVED,
    "REBOOT_REQUESTED": NodeCondition.REBOOT,
}
"""Of flags; every other one that is not harmless puts a node out of service."""


def first_line(reason: str) -> str:
    """What an administrator gave as a reason, short enough to stand in a sentence."""
    lines = reason.splitlines()
    return " ".join(lines[0].split())[:_LONGEST_REASON] if lines else ""


def why_unusable(state: str, flags: Iterable[str], reason: str, owner: str) -> str:
    """ "" for a node on which jobs start; else its state and, where somebody gave one, the reason."""
    bad = [flag for flag in flags if flag not in _HARMLESS_FLAGS]
    if state in _GOOD_STATES and not bad:
        return f"exclusive to user {owner}" if owner else ""
    said = "+".join([state, *bad])
    return f"{said}: {reason}" if reason else said


def conditions(state: str, flags: Iterable[str], owner: str) -> frozenset[NodeCondition]:
    """What keeps jobs from starting there; nothing exactly where `why_unusable` says ""."""
    bad = [flag for flag in flags if flag not in _HARMLESS_FLAGS]
    if state == "UNKNOWN":  # slurmctld has just begun
        found = {NodeCondition.UNKNOWN}
        bad = [flag for flag in bad if flag != "NOT_RESPONDING"]
    else:
        found = set() if state in _GOOD_STATES else {NodeCondition.OUT_OF_SERVICE}
    found |= {_CONDITIONS.get(flag, NodeCondition.OUT_OF_SERVICE) for flag in bad}
    return frozenset(found or ({NodeCondition.OUT_OF_SERVICE} if owner else ()))
