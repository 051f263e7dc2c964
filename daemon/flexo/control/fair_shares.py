"""What users' flexible demand counts for, by their fairshare factors ([controller] fairshare_weight)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, ClusterUnreachable, SharesByUser, UserShares, cannot
from flexo.control.refusals import Refusals
from flexo.events import Event

_EVERY_S: Final = 300.0
"""Between two looks: clusters compute the factors anew every few minutes."""
_LEAST: Final = 0.01
"""Whoever has had far too much still grows into GPUs that nobody else wants."""


class FairShares:
    """The weights by the last look. For the controller's thread alone."""

    def __init__(self, cluster: Cluster, refusals: Refusals, weight: float) -> None:
        """`weight`: 0, everybody counts alike, to 1, in proportion to the factor."""
        self._cluster = cluster
        self._refusals = refusals
        self._weight = weight
        self._looked_at: float | None = None
        self.weights: Mapping[str, float] = {}
        """By user; others count 1."""
        self.cost_s = 0.0
        """What the last look took; 0 where `look` did not need one."""

    def look(self, now: float) -> tuple[Event, ...]:
        """Look, if it is time. While nobody answers, what was known stands."""
        self.cost_s = 0.0
        if not self._weight or (self._looked_at is not None and abs(now - self._looked_at) < _EVERY_S):
            return ()
        self._looked_at = now
        try:
            read = self._read()
        except (ActionRefused, ClusterUnreachable) as error:
            return self._refusals.note(f"fairshare_weight counts nothing: {error}", None, now)
        self.cost_s = read.read_cost_s
        self.weights = {
            each.user: max(_LEAST, 1.0 - self._weight * (1.0 - each.factor)) for each in read.shares
        }
        return ()

    def _read(self) -> UserShares:
        if not isinstance(self._cluster, SharesByUser):
            raise cannot(self._cluster, "tell what users have had")
        return self._cluster.user_shares()
