"""Reads users' fairshare factors with sshare, which asks slurmctld and not the database.

It prints one line for each association. A user with several accounts counts with the best of them.
"""

from __future__ import annotations

import math

from flexo.clusters.base import ActionRefused, UserShare
from flexo.clusters.slurm.commands import SlurmCommands

_COLUMNS = "User,FairShare"


def read_shares(commands: SlurmCommands) -> tuple[UserShare, ...]:
    """The shares of all users, by name. Raises ClusterUnreachable, and ActionRefused if this cluster keeps no
    shares."""
    argv = ("sshare", "--all", "--parsable2", "--noheader", f"--format={_COLUMNS}")
    return parse_shares(commands.act(*argv))


def parse_shares(text: str) -> tuple[UserShare, ...]:
    """Parse the output of `sshare -P -n -o User,FairShare`. Raises ActionRefused if it has no factor."""
    factors: dict[str, float] = {}
    for line in text.splitlines():
        user, _, word = line.strip().partition("|")
        factor = _factor(word)
        if user and factor is not None:
            factors[user] = max(factor, factors.get(user, 0.0))
    if not factors:
        needs = "that takes slurmdbd and PriorityType=priority/multifactor"
        raise ActionRefused(f"`sshare` knows no user's fairshare factor: {needs}")
    return tuple(UserShare(user, factor) for user, factor in sorted(factors.items()))


def _factor(word: str) -> float | None:
    try:
        factor = float(word)
    except ValueError:
        return None
    return min(1.0, max(0.0, factor)) if math.isfinite(factor) else None
