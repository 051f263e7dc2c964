"""Remembers the GPUs that leaders have found slow, so that their nodes get no satellites for a while."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from flexo.control.logbook import Logbook
from flexo.events import Event
from flexo.model.elastic import ElasticJob
from flexo.model.measured import SlowGpu, SlowGpuReport
from flexo.model.queue import JobKey

AGAIN_AFTER_S = 300.0
"""A leader that says the same again sooner says nothing new."""
MOST_OF_A_JOB = 64
"""Slow workers that one job is believed to have: leaders can say anything, and it would all be remembered."""


class SlowGpus:
    """The controller's thread changes it; others may ask."""

    def __init__(self, journal: Logbook, lasts_s: float, now: float) -> None:
        self._journal = journal
        self._lasts_s = lasts_s
        self._known = journal.slow_gpus(now)
        self._heard: dict[JobKey, dict[tuple[str, tuple[int, ...]], float]] = {}
        """When each job's leader last said so of which GPUs."""

    @property
    def known(self) -> tuple[SlowGpu, ...]:
        """Those remembered in the last cycle."""
        return self._known

    def take(
        self,
        reports: Iterable[SlowGpuReport],
        held: Mapping[JobKey, Container[str]],
        users: Mapping[JobKey, str],
        now: float,
    ) -> list[Event]:
        """Believe what leaders say of GPUs that their own jobs have, or had a moment ago (`held`: nodes).

        One user's word keeps that user's jobs off a node. Another user's makes it count for everybody.
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
                self._journal.set_slow_gpu(gpu)
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
            return f" for {self._lasts_s:.0f} s"
        return " only where [controller] slow_gpu_s says so"


def nodes_of(job: ElasticJob) -> frozenset[str]:
    """Where a job has, or is to have, workers."""
    return frozenset(job.base_nodes) | {grant.node for grant in job.grants}
