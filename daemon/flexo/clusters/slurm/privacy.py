"""Reads what Slurm hides from its users of each other (PrivateData), and from whom it hides nothing."""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from flexo.clusters.base import ClusterUnreachable, Privacy
from flexo.clusters.slurm.commands import SlurmCommands
from flexo.clusters.slurm.parse_config import setting, words
from flexo.model.queue import Principal

_STAYS_S: Final = 30.0
"""The time for which PrivateData is reused: `scontrol reconfigure` may change it."""
_OPERATORS_STAY_S: Final = 300.0
"""The time for which Operators are reused: slurmdbd is asked for them."""
_SEE_ALL: Final = frozenset({"operator", "administrator"})
"""The levels of `sacctmgr` whose users see everybody's jobs, in small letters."""


class PrivacyReader:
    """Asks Slurm again when an answer is old. For one thread."""

    def __init__(self, commands: SlurmCommands, clock: Callable[[], float] = time.monotonic) -> None:
        self._commands = commands
        self._clock = clock
        self._privacy = Privacy()
        self._read_at = float("-inf")
        self._operators: frozenset[Principal] = frozenset()
        self._operators_read_at = float("-inf")

    def read(self) -> Privacy:
        """What is hidden at present. Raises ClusterUnreachable."""
        if self._clock() - self._read_at >= _STAYS_S:
            config = self._commands.read("scontrol", "show", "config")
            privacy = parse_privacy(config)
            if (privacy.jobs or privacy.nodes) and _has_slurmdbd(config):
                privacy = replace(privacy, readers=privacy.readers | self._known_operators())
            self._privacy, self._read_at = privacy, self._clock()
        return self._privacy

    def _known_operators(self) -> frozenset[Principal]:
        """Operators and administrators. While slurmdbd does not answer, those of its last answer."""
        if self._clock() - self._operators_read_at >= _OPERATORS_STAY_S:
            columns = "format=User,AdminLevel"
            try:
                text = self._commands.read(
                    *("sacctmgr", "--noheader", "--parsable2", "show", "user", columns)
                )
            except ClusterUnreachable:
                return self._operators
            self._operators, self._operators_read_at = _principals(parse_operators(text)), self._clock()
        return self._operators


def parse_privacy(config: str) -> Privacy:
    """What PrivateData hides, of that which flexo shows. From SlurmUser nothing is hidden."""
    hidden = {word.strip().lower() for word in words(setting(config, "PrivateData"))}
    slurm_user = re.search(r"\((\d+)\)", setting(config, "SlurmUser"))
    return Privacy(
        jobs="jobs" in hidden,
        nodes="nodes" in hidden,
        readers=frozenset({Principal(slurm_user[1])} if slurm_user else ()),
    )


def parse_operators(text: str) -> tuple[str, ...]:
    """The users of `sacctmgr -n -P show user format=User,AdminLevel` who see everybody's jobs."""
    rows = (line.strip().split("|") for line in text.splitlines())
    return tuple(row[0] for row in rows if row[0] and len(row) == 2 and row[1].lower() in _SEE_ALL)


def _has_slurmdbd(config: str) -> bool:
    return setting(config, "AccountingStorageType") == "accounting_storage/slurmdbd"


def _principals(users: Iterable[str]) -> frozenset[Principal]:
    """The accounts of these users. One whom this host does not know is left out."""
    found = set()
    for user in users:
        try:
            found.add(Principal(str(pwd.getpwnam(user).pw_uid)))
        except KeyError:
            continue
    return frozenset(found)
