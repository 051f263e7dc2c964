"""Keeps, from cycle to cycle, which GPUs the jobs hold that share them, and lets granted satellites start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from flexo.clusters.base import ActionRefused, Cluster, ClusterState, SharesGpus
from flexo.control.recent_errors import RecentErrors
from flexo.events import Event
from flexo.model.elastic import ElasticJob, SatelliteState
from flexo.model.queue import JobKey, JobState, QueuedJob, WaitReason
from flexo.sharing.hosts import Gpu, HeldGpus, consents
from flexo.sharing.settings import SharingSettings

ASKED_AT_ONCE: Final = 10
"""The most jobs about whose GPUs one cycle asks. Each takes a command."""
_ASK_AGAIN_S: Final = 300.0


class SharedGpus:
    """The facts about shared GPUs that one poll does not show. For the controller's thread alone."""

    def __init__(self, cluster: Cluster, settings: SharingSettings, errors: RecentErrors) -> None:
        self._cluster = cluster if settings.partition and isinstance(cluster, SharesGpus) else None
        self._errors = errors
        self._held: dict[JobKey, frozenset[Gpu]] = {}
        self._ask_again_at: dict[JobKey, float] = {}
        """The jobs for which the cluster's answer did not agree with its record, each with the next time."""

    def held(self, state: ClusterState, jobs: Iterable[ElasticJob]) -> HeldGpus:
        """The GPUs of each job that shares its own. Raises ClusterUnreachable.

        A job holds the same GPUs until it ends, so the cluster is asked once. Users can forge an answer that
        does not agree with the record, so such a job is asked about again only after a while.
        """
        if self._cluster is None:
            return {}
        queue = {job.key: job for job in state.jobs}
        sharing = {job.key for job in jobs if consents(job)}
        self._held = {key: gpus for key, gpus in self._held.items() if key in sharing}
        self._ask_again_at = {key: at for key, at in self._ask_again_at.items() if key in sharing}
        running = [key for key in sharing - self._held.keys() if queue[key].state is JobState.RUNNING]
        due = sorted((self._ask_again_at.get(key, 0.0), key) for key in running)
        for at, key in due[:ASKED_AT_ONCE]:
            if at > state.at:
                break
            if gpus := self._ask(self._cluster, queue[key]):
                self._held[key] = gpus
            else:
                self._ask_again_at[key] = state.at + _ASK_AGAIN_S
        return self._held

    def _ask(self, cluster: SharesGpus, base: QueuedJob) -> frozenset[Gpu]:
        """The job's GPUs; none if the answer does not agree with the job's record."""
        gpus = cluster.gpus_of(base.identifier, base.nodes)
        return gpus if len(gpus) == base.resources.gpus else frozenset()

    def release(self, state: ClusterState, jobs: Iterable[ElasticJob]) -> Iterator[Event]:
        """Let satellites start that wait, held, for shared GPUs, and that a grant allows."""
        if self._cluster is None:
            return
        held = {job.job_id: job for job in state.jobs if job.wait is WaitReason.HELD}
        for job in jobs:
            for grant in job.grants:
                satellite = held.get(grant.satellite_job_id)
                if satellite is None or not grant.shared_gpus or grant.state is not SatelliteState.PENDING:
                    continue
                try:
                    self._cluster.release(satellite.identifier)
                except ActionRefused as error:
                    yield from self._errors.note(str(error), job.key, state.at)
                    continue
                text = (
                    f"satellite {satellite.job_id} may start on {grant.node}: it is the one that was granted"
                )
                yield Event(state.at, "release", job.key, text)
