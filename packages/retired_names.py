"""make lint: refuses identifiers that standard terms have replaced (docs/reference/glossary.md)."""

from __future__ import annotations

import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

RETIRED: Final = {
    "AtOnce": "InlineExecutor, InlineReader",
    "Band": "ForecastInterval",
    "Borrowing": "SatelliteManager",
    "Campaign": "Candidate",
    "Courier": "TensorTransport",
    "Errand": "PendingCommand",
    "Errands": "PendingCommands",
    "GrantBook": "GrantLedger",
    "Happenings": "Counters",
    "JournalSettings": "EventStoreSettings",
    "Keeper": "Supervisor",
    "KeeperLink": "SupervisorLink",
    "LeaderDesk": "LeaderRegistry",
    "Leases": "TimeLimits (of satellites)",
    "LoanBook": "LoanLedger",
    "Logbook": "StateStore",
    "Mandate": "LeadershipGuard",
    "NoJournal": "NoEventStore",
    "NoKeeper": "NoSupervisor",
    "Occupants": "ResidentJobs",
    "Office": "LeaderContext",
    "Openings": "CapacityIndex",
    "Outlook": "DemandForecast, ProjectedRank",
    "Pace": "PollInterval, ServiceTimeouts",
    "Patience": "StarvationGuard, StarvationLimit",
    "Refusals": "RecentErrors, RefusalLimits",
    "Reign": "HeldLease",
    "RollCall": "StartupBarrier",
    "Seat": "LeaderElector",
    "ShardDesk": "ShardServer",
    "Shelf": "BroadcastStore",
    "Sight": "ReconciledState",
    "Standing": "WorkerStatus, HeldGrant, LendingStatus",
    "Standstill": "Watchdog",
    "Stays": "ResidencyEstimator",
    "Switchboard": "ServiceRouter",
    "Tenure": "LeaseHandle",
    "Turns": "FailoverLoop",
    "Wishes": "ScaleOverrides",
    "courier": "transport",
    "errand": "pending_command",
    "errands": "commands",
    "keeper": "supervisor",
    "mandate": "leadership",
    "occupants": "residents",
    "openings": "capacity_index",
    "sight": "reconciled",
    "switchboard": "router",
    "take_office": "start_serving",
}
"""Retired identifiers, and their successors. Comments and texts may use the English words among them."""
_NO_ENGLISH_WORD: Final = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b|\b[a-z]+(?:_[a-z]+)+\b")
"""Pattern of words that are identifiers even in a comment or a text."""


def retired_in(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each retired identifier in a Python file."""
    with path.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.NAME and token.string in RETIRED:
                yield token.start[0], token.string
            elif token.type in (tokenize.STRING, tokenize.COMMENT) and path != Path(__file__).resolve():
                for found in _NO_ENGLISH_WORD.finditer(token.string):
                    if found[0] in RETIRED:
                        yield token.start[0] + token.string[: found.start()].count("\n"), found[0]


def main() -> int:
    """Report retired names in the project's Python files. Returns 1 if there is one, else 0."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    found = [(path, *each) for path in sorted(paths) for each in retired_in(path)]
    for path, line, name in found:
        print(f"{path.relative_to(ROOT)}:{line}: {name} is retired; use {RETIRED[name]}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
