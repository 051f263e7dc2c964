"""Decides whether Slurm would start a job on a node now, by the node's state (IDLE+CLOUD+POWERED_DOWN)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from flexo.model.nodes import NodeCondition

_GOOD_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
# The list names harmless flags, not harmful ones: every release adds flags. A node that flexod takes
# for unusable costs idle GPUs. A node that flexod takes for usable costs grants that never become real.
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
"""The conditions of flags. Every other flag that is not harmless puts a node out of service."""


def first_line(reason: str) -> str:
    """The first line of an administrator's reason, short enough to stand in a sentence."""
    lines = reason.splitlines()
    return " ".join(lines[0].split())[:_LONGEST_REASON] if lines else ""


def why_unusable(state: str, flags: Iterable[str], reason: str, owner: str) -> str:
    """The reason why jobs do not start on a node: its state and, if somebody gave one, the reason for it; ""
    if jobs start."""
    bad = [flag for flag in flags if flag not in _HARMLESS_FLAGS]
    if state in _GOOD_STATES and not bad:
        return f"exclusive to user {owner}" if owner else ""
    said = "+".join([state, *bad])
    return f"{said}: {reason}" if reason else said


def conditions(state: str, flags: Iterable[str], owner: str) -> frozenset[NodeCondition]:
    """The conditions that keep jobs from starting on a node. There are none exactly if `why_unusable` returns
    ""."""
    bad = [flag for flag in flags if flag not in _HARMLESS_FLAGS]
    if state == "UNKNOWN":  # slurmctld has just begun
        found = {NodeCondition.UNKNOWN}
        bad = [flag for flag in bad if flag != "NOT_RESPONDING"]
    else:
        found = set() if state in _GOOD_STATES else {NodeCondition.OUT_OF_SERVICE}
    found |= {_CONDITIONS.get(flag, NodeCondition.OUT_OF_SERVICE) for flag in bad}
    return frozenset(found or ({NodeCondition.OUT_OF_SERVICE} if owner else ()))
