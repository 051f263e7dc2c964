"""Weights the flexible demand of users by their fairshare factors ([controller] fairshare_weight)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, ClusterUnreachable, SharesByUser, UserShares, cannot
from flexo.control.recent_errors import RecentErrors
from flexo.events import Event

_EVERY_S: Final = 300.0
"""The interval between two reads. Clusters recompute the factors every few minutes."""
_LEAST: Final = 0.01
"""The least weight: a user far above the fair share still grows into GPUs that nobody else needs."""


class FairShares:
    """The weights as of the last read. For the controller's thread alone."""

    def __init__(self, cluster: Cluster, recent_errors: RecentErrors, weight: float) -> None:
        """`weight`: from 0 (all users count alike) to 1 (users count in proportion to their factors)."""
        self._cluster = cluster
        self._recent_errors = recent_errors
        self._weight = weight
        self._looked_at: float | None = None
        self.weights: Mapping[str, float] = {}
        """The weight of each user. Users that are not listed count 1."""
        self.cost_s = 0.0
        """The duration of the last read, in seconds; 0 if `look` did not need to read."""

    def look(self, now: float) -> tuple[Event, ...]:
        """Read the factors if they are due. While the cluster does not answer, the known weights stand."""
        self.cost_s = 0.0
        if not self._weight or (self._looked_at is not None and abs(now - self._looked_at) < _EVERY_S):
            return ()
        self._looked_at = now
        try:
            read = self._read()
        except (ActionRefused, ClusterUnreachable) as error:
            return self._recent_errors.note(f"fairshare_weight counts nothing: {error}", None, now)
        self.cost_s = read.read_cost_s
        self.weights = {
            each.user: max(_LEAST, 1.0 - self._weight * (1.0 - each.factor)) for each in read.shares
        }
        return ()

    def _read(self) -> UserShares:
        if not isinstance(self._cluster, SharesByUser):
            raise cannot(self._cluster, "tell what users have had")
        return self._cluster.user_shares()
