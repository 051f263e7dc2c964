"""Whether Slurm would start a job on a node now, from its compound state (IDLE+CLOUD+POWERED_DOWN)."""

from __future__ import annotations

from collections.abc import Iterable

_GOOD_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
# A list of what is harmless and not of what is harmful: every release adds flags, and a node that we take
# for unusable costs idle GPUs, while one that we take for usable costs grants that never become real.
# COMPLETING is missing on purpose: its GPUs count as free already, but Slurm starts nothing on the node
# before the epilog has ended (tried on 22.05, on a node that is partly in use too).
_HARMLESS_FLAGS = frozenset({"CLOUD", "DYNAMIC_NORM"})
_LONGEST_REASON = 200


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
