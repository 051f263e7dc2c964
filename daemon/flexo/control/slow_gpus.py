"""Remembers the GPUs that leaders have found slow, so that their nodes get no satellites for a while."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from flexo.control.state_store import StateStore
from flexo.events import Event
from flexo.model.elastic import ElasticJob
from flexo.model.measured import SlowGpu, SlowGpuReport
from flexo.model.queue import JobKey
from flexo.words import duration

AGAIN_AFTER_S = 300.0
"""A leader's repeated report of the same GPUs within this time is ignored."""
MOST_OF_A_JOB = 64
"""The most slow workers that flexod accepts from one job. Leaders can report anything, and flexod would
remember all of it."""


class SlowGpus:
    """The slow GPUs that are remembered. The controller's thread changes them; other threads may read
    `known`."""

    def __init__(self, event_store: StateStore, lasts_s: float, now: float) -> None:
        self._event_store = event_store
        self._lasts_s = lasts_s
        self._known = event_store.slow_gpus(now)
        self._heard: dict[JobKey, dict[tuple[str, tuple[int, ...]], float]] = {}
        """The time of each leader's last report, by job and by GPUs."""

    @property
    def known(self) -> tuple[SlowGpu, ...]:
        """The slow GPUs that the last cycle remembered."""
        return self._known

    def take(
        self,
        reports: Iterable[SlowGpuReport],
        held: Mapping[JobKey, Container[str]],
        users: Mapping[JobKey, str],
        now: float,
    ) -> list[Event]:
        """Accept leaders' reports of GPUs that their own jobs have, or had a moment ago (`held`: nodes of
        jobs).

        The report of one user keeps that user's jobs off a node. A report of another user makes it count for
        everybody. Returns the events.
        """
        self._heard = {job: heard for job, heard in self._heard.items() if job in held}
        events = []
        lasting = {(gpu.node, gpu.gpus, gpu.user): gpu for gpu in self._known if gpu.until_at > now}
        for report in reports:
            if not self._is_news(report, now):
                continue
            if report.node not in held.get(report.job, ()):
                text = (
                    f"its leader says that {report.node} has a slow GPU, where the job has nothing: ignored"
                )
                events.append(Event(now, "slow", report.job, text))
                continue
            user, until = users.get(report.job, ""), now + self._lasts_s
            gpu = SlowGpu(report.node, report.gpus, report.ratio, report.job, now, until, user)
            events.append(
                Event(
                    now, "slow", report.job, f"{gpu}: no satellite of {user} is put there{self._how_long()}"
                )
            )
            if self._lasts_s > 0:
                lasting[gpu.node, gpu.gpus, gpu.user] = gpu
                self._event_store.set_slow_gpu(gpu)
        self._known = tuple(lasting[name] for name in sorted(lasting))
        return events

    def _is_news(self, report: SlowGpuReport, now: float) -> bool:
        heard = self._heard.setdefault(report.job, {})
        what = report.node, report.gpus
        if (
            now - heard.get(what, -AGAIN_AFTER_S) < AGAIN_AFTER_S
            or len(heard.keys() | {what}) > MOST_OF_A_JOB
        ):
            return False
        heard[what] = now
        return True

    def _how_long(self) -> str:
        if self._lasts_s > 0:
            return f" for {duration(self._lasts_s)}"
        return " only where [controller] slow_gpu_s says so"


def nodes_of(job: ElasticJob) -> frozenset[str]:
    """The nodes on which a job has, or is to have, workers."""
    return frozenset(job.base_nodes) | {grant.node for grant in job.grants}
