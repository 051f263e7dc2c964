"""What a viewer may see where the cluster hides jobs or nodes (PrivateData): flexod tells flexo-web all.

Of others' jobs, the pages show GPUs in use and sums alone. root and readers see everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Final

from flexo.words import needs_restart
from flexo_cli.caller import sees_all
from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2
from flexo_web.idle import IdleGpus
from flexo_web.tokens import Viewer

NOT_A_READER: Final = (
    "the cluster hides jobs, also from the account of flexo-web: add it to [service] readers in flexo.toml"
)
_WHOSE: Final = re.compile(r"(job \d+) \((pending, )?[^()]*\)")
"""A job with its user, as flexod's sentences name a pending job for which nodes are kept."""
_JOB_NUMBER: Final = re.compile(r"\bjob \d+(_\d+)?")
_ORDER: Final = "order"
"""The kind of events that list pending jobs, by their numbers."""
_A_JOB: Final = re.compile(r"\b(?:jobs?|satellite|base|bases) \d")


class Privacy:
    """What one viewer may see of one picture of flexod."""

    def __init__(self, picture: Picture | None, viewer: Viewer) -> None:
        self._whole = picture
        self._user = viewer.name
        hidden = picture.status.privacy if picture else admin_pb2.Privacy(jobs=True)
        self.sees_all = everything = sees_all(hidden, viewer.uid, viewer.name)
        """Whether the viewer is root, or flexod names the viewer as one who sees everything."""
        self.hides = hidden.jobs and not everything
        """Whether others' jobs are hidden from the viewer. Without a picture nobody knows, so they are."""
        self.hides_nodes = hidden.nodes and not everything
        """Whether nodes are hidden from the viewer."""
        self.is_untold = hidden.restricted
        """Whether flexo-web is not told all jobs and nodes: what the viewer may see may be missing."""

    @property
    def viewer(self) -> str:
        """The same for all who see the same: the user if others' jobs are hidden, else ""."""
        return self._user if self.hides else ""

    @cached_property
    def _own(self) -> frozenset[int]:
        """The viewer's jobs that run or wait."""
        if self._whole is None:
            return frozenset()
        run = (job.job_id for job in self._whole.jobs.jobs if job.user == self._user)
        wait = (job.job_id for job in self._whole.jobs.waiting if job.user == self._user)
        return frozenset((*run, *wait))

    def owns(self, user: str) -> bool:
        """Whether jobs of `user` may be shown."""
        return not self.hides or user == self._user

    def of_job(self, job_id: int) -> bool:
        """Whether the job, which runs or waits, may be shown. A job that is in no list may not."""
        return not self.hides or job_id in self._own

    def of_event(self, event: admin_pb2.Event) -> bool:
        """Whether the event may be shown: one of an own job, or one that names no job."""
        if self.hides_nodes and not event.job_id:
            return False
        if not self.hides:
            return True
        if event.job_id:
            return self.of_job(event.job_id) or (event.HasField("end") and self.owns(event.end.user))
        return event.kind != _ORDER and _A_JOB.search(event.text) is None

    def text(self, text: str) -> str:
        """`text` without the users of the jobs that it names."""
        return _WHOSE.sub(r"\1", text) if self.hides else text

    def idle(self, groups: tuple[IdleGpus, ...]) -> tuple[IdleGpus, ...]:
        """Idle GPUs without other users' jobs, and without the sentences about these jobs."""
        if self.hides_nodes:
            return ()
        if not self.hides:
            return groups
        return tuple(
            replace(group, text=self.text(group.text)) if group.job_id in self._own else self._of_node(group)
            for group in groups
        )

    def without_jobs(self, text: str) -> str:
        """`text` without the numbers of jobs, such as why a node is unusable."""
        return _JOB_NUMBER.sub("a job", text) if self.hides else text

    def troubles(self) -> tuple[str, ...]:
        """What is wrong with flexod. Settings that need a restart are for those who see everything."""
        if self._whole is None:
            return ()
        status = self._whole.status
        each = status.troubles or (status.trouble,)  # an older flexod says all in one sentence
        restart = needs_restart(status.needs_restart) if self.sees_all else ""
        return tuple(filter(None, (*map(self.without_jobs, each), restart)))

    def _of_node(self, group: IdleGpus) -> IdleGpus:
        """The group without any job: its text may stay if it is about nodes."""
        text = "" if group.job_id else self.without_jobs(group.text)
        return replace(group, text=text, job_id=0, event=group.event if text and text == group.text else 0)

    def picture(self) -> Picture | None:
        """The picture with nothing that the viewer may not see."""
        whole = self._whole
        if whole is None or not (self.hides or self.hides_nodes):
            return whole
        jobs, nodes, loans = whole.jobs, whole.nodes, admin_pb2.ListLoansReply()
        if self.hides:
            waiting = [job for job in whole.jobs.waiting if self.owns(job.user)]
            jobs = admin_pb2.ListJobsReply(jobs=self._own_running(whole.jobs.jobs), waiting=waiting)
        if self.hides_nodes:
            nodes = admin_pb2.ListNodesReply(order=whole.nodes.order)
        else:
            loans.CopyFrom(whole.loans)
            for loan in loans.loans:
                del loan.bases[:]
        return replace(whole, jobs=jobs, nodes=nodes, loans=loans)

    def _own_running(self, jobs: Iterable[admin_pb2.ElasticJob]) -> list[admin_pb2.ElasticJob]:
        own = []
        for job in jobs:
            if self.owns(job.user):
                shown = admin_pb2.ElasticJob()
                shown.CopyFrom(job)
                shown.reasons[:] = [self.text(reason) for reason in job.reasons]
                own.append(shown)
        return own
