"""Priorities of YARN's applications, as flexo counts them: one more than YARN, because 0 is a held job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from flexo.clusters.base import ActionRefused, Priority
from flexo.clusters.priority_band import PriorityBand
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.configuration import HIGHEST_PRIORITY

ENOUGH: Final = 2000
"""The least highest priority with which flexod puts jobs in order: half of it is flexod's band."""


def of(report: pb.ApplicationReport) -> int:
    """An application's priority."""
    return report.priority.priority + 1


def band_of(highest: int) -> PriorityBand:
    """The upper half of YARN's priorities, which end with `highest`."""
    return PriorityBand(highest // 2 + 2, highest + 1)


def set_priorities(
    priorities: Sequence[Priority], highest: int, set_one: Callable[[str, int], int | None]
) -> None:
    """Set each. `set_one`: sets YARN's priority of an application; returns what became of it, None if the
    application has ended. Raises ActionRefused, with what all refusals say; the rest is set."""
    if highest < ENOUGH:
        raise ActionRefused(
            f"{HIGHEST_PRIORITY} is {highest} in flexod's yarn-site.xml: "
            f"to put jobs in order flexod needs at least {ENOUGH}, there and at the ResourceManager"
        )
    refused = {}
    for each in priorities:
        wanted = each.priority - 1
        try:
            became = set_one(each.job, wanted)
        except ActionRefused as error:
            refused[each.job] = str(error)
        else:
            if became not in (None, wanted):
                refused[each.job] = (
                    f"the priority of {each.job} became {became}, not {wanted}: its queue's limit"
                )
    if refused:
        raise ActionRefused("; ".join(refused.values()), frozenset(refused))
