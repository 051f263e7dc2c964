"""The page of what elasticity is worth: GPU hours on satellites, idle GPU hours, and a CSV of both."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from flexo_cli.live.picture import Picture
from flexo_cli.output import printable
from flexo_web.explained import Explained
from flexo_web.harvest import DAYS, Harvest, Harvested, Key, Owner, owners_of
from flexo_web.idle import IdleGpus, IdleLedger, Reason, idle_gpus
from flexo_web.privacy import Privacy

_OTHERS: Final = "jobs of other users"
_MINUTE_S: Final = 60.0
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""With these, a spreadsheet takes a text for a formula."""


@dataclass(frozen=True, slots=True)
class IdleSum:
    """The GPU hours that were idle for one reason, since flexo-web began."""

    reason: Reason
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Value:
    """The whole page."""

    days: int
    begins_at: float
    """The oldest event that is counted; 0: there is none."""
    complete: bool
    """False: older events of these days were not read."""
    trouble: str
    harvested: tuple[Harvested, ...]
    total: Harvested
    idle_since_at: float
    """0: idle GPUs were not seen yet."""
    idle: tuple[IdleSum, ...]
    idle_now: tuple[IdleGpus, ...]
    gpus_idle_now: int


def value_page(
    picture: Picture, harvest: Harvest, ledger: IdleLedger, privacy: Privacy, explained: Explained
) -> Value:
    """The page as of `picture`; to the minute, so that it seldom changes."""
    now = picture.at - picture.at % _MINUTE_S
    rows = harvest.by_account(_owner_of(picture, harvest, privacy), now, privacy.viewer)
    sums: defaultdict[Reason, float] = defaultdict(float)
    for each in ledger.hours:
        sums[each.reason] += each.gpu_hours
    return Value(
        days=DAYS,
        begins_at=harvest.begins_at,
        complete=harvest.complete,
        trouble=harvest.trouble,
        harvested=rows,
        total=Harvested(
            "all",
            sum(row.jobs for row in rows),
            sum(row.day for row in rows),
            sum(row.week for row in rows),
            sum(row.month for row in rows),
        ),
        idle_since_at=ledger.since_at,
        idle=tuple(
            IdleSum(reason, round(hours, 1 if hours >= 10 else 2))
            for reason, hours in sorted(sums.items(), key=lambda pair: -pair[1])
        ),
        idle_now=privacy.idle(idle_gpus(picture, explained)),
        gpus_idle_now=picture.status.gpus_idle,
    )


def as_csv(picture: Picture, harvest: Harvest, ledger: IdleLedger, privacy: Privacy) -> str:
    """GPU hours by day: ``harvested`` by account, ``idle`` by reason."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(("day", "what", "name", "gpu_hours"))
    for day, account, hours in harvest.by_day(_owner_of(picture, harvest, privacy), picture.at):
        table.writerow((day, "harvested", _cell(account), f"{hours:.3f}"))
    for each in ledger.hours:
        table.writerow((each.day, "idle", each.reason.value, f"{each.gpu_hours:.3f}"))
    return text.getvalue()


def _owner_of(picture: Picture, harvest: Harvest, privacy: Privacy) -> Callable[[Key], Owner | None]:
    """The owners of jobs, with those that the viewer may not see under one name."""
    running = owners_of(picture.jobs.jobs)

    def owner_of(key: Key) -> Owner | None:
        owner = running.get(key) or harvest.ended(key)
        if owner is None or privacy.owns(owner.user):
            return owner
        return replace(owner, account=_OTHERS)

    return owner_of


def _cell(text: str) -> str:
    """A text that users may have chosen, for a spreadsheet."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
