"""The daemon's memory of grants, joined in every cycle with what Slurm and the leaders say.

Slurm's queue says which satellites exist and run; a leader's report says what it has of them; the book itself
only knows the rest: grants said and not yet submitted, grants withdrawn, and what failed lately. So after a
restart of flexod an empty book fills itself from the satellites' tags.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flexo.journal import Event
from flexo.model import (
    ElasticJob,
    FailureReason,
    Grant,
    GrantFailure,
    JobKey,
    JobState,
    LeaderReport,
    SatelliteReport,
    SatelliteState,
    SlurmJob,
    WorkerShape,
)

FIRST_BACKOFF_S: Final = 60.0
"""Also the least time between two tries of one job after a satellite that came to nothing."""
LONGEST_BACKOFF_S: Final = 900.0
START_MARGIN_S: Final = 30.0
"""Beyond start_within_s: for the leader to submit, to cancel, and to say so."""

_ALIVE = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
_SETTLED = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING, SatelliteState.LEAVING})


@dataclass(frozen=True, slots=True)
class _Backoff:
    """After the n-th failure in a row nothing is tried for 60, 120, ... seconds."""

    failures: int = 0
    until: float = 0.0

    def again(self, now: float) -> _Backoff:
        wait = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**self.failures)
        return _Backoff(self.failures + 1, now + wait)


@dataclass(frozen=True, slots=True)
class Sight:
    """What one cycle sees of elastic jobs."""

    jobs: tuple[ElasticJob, ...]
    orphans: tuple[SlurmJob, ...]
    """Satellites whose base is gone from the queue."""
    events: tuple[Event, ...]


_Name = tuple[JobKey, str]
"""A grant's id counts only together with its job: users write the tags of their own satellites."""


class GrantBook:
    """Which grants stand. For the controller's thread alone."""

    def __init__(self) -> None:
        self._known: dict[_Name, Grant] = {}
        """Every grant of a job that runs, in its last known state."""
        self._said: dict[JobKey, set[str]] = {}
        """Of those, by job: said to its leader, and no satellite seen yet."""
        self._started: set[_Name] = set()
        """Of those: the satellite was there in the last cycle, and not waiting."""
        self._withdrawn: set[_Name] = set()
        self._failed: set[_Name] = set()
        self._nodes: dict[tuple[JobKey, str], _Backoff] = {}
        self._jobs: dict[JobKey, _Backoff] = {}
        self._resized_at: dict[JobKey, float] = {}

    # What the controller does.

    def say(self, grant: Grant) -> None:
        """A new grant stands."""
        self._known[grant.job, grant.grant_id] = grant
        self._said.setdefault(grant.job, set()).add(grant.grant_id)
        self._resized_at[grant.job] = grant.since_at

    def withdraw(self, key: JobKey, grant_id: str, now: float) -> None:
        """A grant stands no longer; its satellite is on its way out for as long as it is there."""
        self._withdrawn.add((key, grant_id))
        self._no_longer_said(key, grant_id)
        self._resized_at[key] = now

    def fail(self, failure: GrantFailure, now: float) -> Event | None:
        """A leader gives a grant back; None if it never had it, or has given it back before."""
        name = failure.job, failure.grant_id
        grant = self._known.get(name)
        if grant is None or name in self._failed:
            return None
        self._failed.add(name)
        self._withdrawn.add(name)
        self._no_longer_said(*name)
        self._back_off(grant, failure.reason, now)
        where = f"{grant.workers} workers on {grant.node}"
        return Event(now, "failure", grant.job, f"{where}: {failure.reason.value}: {failure.message}")

    def _no_longer_said(self, key: JobKey, grant_id: str) -> None:
        self._said.get(key, set()).discard(grant_id)

    def _back_off(self, grant: Grant, reason: FailureReason, now: float) -> None:
        if reason in (FailureReason.PREEMPTED, FailureReason.SLOW_GPU):
            # preempted: no fault of the node's, but it is left to the job that it was taken for;
            # slow: the GPU itself is remembered for longer, and for every job
            here = self._nodes.get((grant.job, grant.node), _Backoff())
            until = max(here.until, now + FIRST_BACKOFF_S)
            self._nodes[grant.job, grant.node] = _Backoff(here.failures, until)
            self._resized_at[grant.job] = now
            return
        job = self._jobs.get(grant.job, _Backoff())
        if reason is FailureReason.REFUSED:
            self._jobs[grant.job] = job.again(now)
            return
        node = self._nodes.get((grant.job, grant.node), _Backoff())
        self._nodes[grant.job, grant.node] = node.again(now)
        until = max(job.until, grant.since_at + FIRST_BACKOFF_S)
        self._jobs[grant.job] = _Backoff(job.failures, until)

    # What the controller asks.

    def after(self, job: ElasticJob) -> tuple[Grant, ...]:
        """The grants of `job` with what has been said and withdrawn since it was joined."""
        before = [
            replace(grant, state=SatelliteState.LEAVING)
            if (job.key, grant.grant_id) in self._withdrawn
            else grant
            for grant in job.grants
        ]
        listed = {grant.grant_id for grant in job.grants}
        said = [
            self._known[job.key, grant_id]
            for grant_id in sorted(self._said.get(job.key, ()))
            if grant_id not in listed
        ]
        return (*before, *said)

    def join(
        self,
        jobs: Sequence[SlurmJob],
        reports: Mapping[JobKey, LeaderReport],
        caps: Mapping[JobKey, int],
        partition_of: Callable[[str], str],
        start_within_s: float,
        now: float,
    ) -> Sight:
        """All elastic jobs whose base runs, with their grants.

        `partition_of`: where satellites on a node are submitted. `reports` must have been taken before `jobs`
        were read: a satellite that was reported and is not in the queue has then ended.
        """
        bases = {job.key: job for job in jobs if job.satellite is None and job.state in _ALIVE}
        satellites, orphans = _by_base(jobs, bases)
        events = self._note_gone(satellites, bases, now)
        elastic: list[ElasticJob] = []
        for key, base in sorted(bases.items()):
            if base.elastic is None or base.state is JobState.COMPLETING:
                continue
            report = reports.get(key)
            if report is not None and report.user_id != base.user_id:
                report = None
            grants = [
                grant
                for satellite in satellites.get(key, ())
                if (grant := self._grant_of(satellite, report, now, events)) is not None
            ]
            grants.extend(self._still_said(key, start_within_s, now, events))
            grants.extend(self._adopt_unsubmitted(base, report, grants, partition_of, now))
            elastic.append(self._job_of(base, report, tuple(grants), caps.get(key), now))
        self._forget_jobs_not_in(bases.keys())
        return Sight(tuple(elastic), orphans, tuple(events))

    def _note_gone(
        self,
        satellites: Mapping[JobKey, Sequence[SlurmJob]],
        bases: Mapping[JobKey, SlurmJob],
        now: float,
    ) -> list[Event]:
        """Satellites that ran in the last cycle and have ended since, though their base still runs."""
        started = {
            (key, satellite.satellite.grant_id)
            for key, found in satellites.items()
            for satellite in found
            if satellite.satellite is not None and satellite.state is not JobState.PENDING
        }
        events: list[Event] = []
        for name in sorted(self._started - started):
            grant = self._known[name]
            if grant.job not in bases or bases[grant.job].state is JobState.COMPLETING:
                continue
            text = f"satellite {grant.satellite_job_id} with {grant.workers} workers has left {grant.node}"
            if grant.state is SatelliteState.LEAVING or name in self._withdrawn:
                events.append(Event(now, "left", grant.job, text))
            else:
                self._resized_at[grant.job] = now
                events.append(Event(now, "lost", grant.job, f"{text}, unasked"))
        self._started = started
        return events

    def _grant_of(
        self, satellite: SlurmJob, report: LeaderReport | None, now: float, events: list[Event]
    ) -> Grant | None:
        """The grant that a satellite is; None if it was withdrawn before it started and so holds nothing."""
        tag = satellite.satellite
        assert tag is not None
        name = tag.base, tag.grant_id
        known = self._known.get(name)
        told = _report_of(satellite, report)
        node = satellite.nodes[0] if satellite.nodes else _node_wanted(satellite, known, told)
        grant = Grant(
            grant_id=tag.grant_id,
            job=tag.base,
            node=node,
            workers=tag.workers,
            partition=satellite.partitions[0],
            # a clock that was set back must not have it resized in the future
            since_at=known.since_at if known else min(satellite.submitted_at, now),
            state=self._state_of(satellite, known, told),
            satellite_job_id=satellite.job_id,
        )
        if known is None:
            text = f"satellite {satellite.job_id} with {tag.workers} workers on {node} is taken over"
            events.append(Event(now, "adopt", tag.base, text))
        if grant.state is SatelliteState.TRAINING and (known is None or known.state is not grant.state):
            self._nodes.pop((grant.job, grant.node), None)
            self._jobs.pop(grant.job, None)
        self._known[name] = grant
        self._no_longer_said(*name)
        waits = satellite.state is JobState.PENDING
        return None if waits and grant.state is SatelliteState.LEAVING else grant

    def _state_of(
        self, satellite: SlurmJob, known: Grant | None, told: SatelliteReport | None
    ) -> SatelliteState:
        tag = satellite.satellite
        assert tag is not None
        if satellite.state is JobState.COMPLETING or (tag.base, tag.grant_id) in self._withdrawn:
            return SatelliteState.LEAVING
        if satellite.state is JobState.PENDING:
            return SatelliteState.PENDING
        if told is not None and told.state in _SETTLED:
            return told.state
        if told is None and known is not None and known.state in _SETTLED:
            return known.state
        return SatelliteState.WARMING

    def _still_said(self, key: JobKey, start_within_s: float, now: float, events: list[Event]) -> list[Grant]:
        """Grants of `key` that no satellite has come of yet; those that waited too long are forgotten."""
        still: list[Grant] = []
        for grant in [self._known[key, grant_id] for grant_id in sorted(self._said.get(key, ()))]:
            if now <= grant.since_at + start_within_s + START_MARGIN_S:
                still.append(grant)
                continue
            silence = "its leader said nothing of it"
            event = self.fail(GrantFailure(key, grant.grant_id, FailureReason.NOT_STARTED, silence), now)
            events.extend([event] if event else [])
        return still

    def _adopt_unsubmitted(
        self,
        base: SlurmJob,
        report: LeaderReport | None,
        grants: Sequence[Grant],
        partition_of: Callable[[str], str],
        now: float,
    ) -> list[Grant]:
        """Grants of a flexod before us that the leader is about to submit: it must not drop them."""
        if report is None or base.elastic is None:
            return []
        workers = base.elastic.workers
        room = workers.max - workers.min - sum(grant.workers for grant in grants)
        adopted: list[Grant] = []
        for told in report.satellites:
            name = base.key, told.grant_id
            if told.satellite_job_id or name in self._known or told.workers > room:
                continue
            room -= told.workers
            grant = Grant(told.grant_id, base.key, told.node, told.workers, partition_of(told.node), now)
            self._known[name] = grant
            self._said.setdefault(base.key, set()).add(told.grant_id)
            adopted.append(grant)
        return adopted

    def _job_of(
        self,
        base: SlurmJob,
        report: LeaderReport | None,
        grants: tuple[Grant, ...],
        cap: int | None,
        now: float,
    ) -> ElasticJob:
        assert base.elastic is not None
        newest = max((grant.since_at for grant in grants), default=0.0)
        running = base.state is JobState.RUNNING
        shape = report.shape if report else _shape_of(base, base.elastic.workers.min)
        return ElasticJob(
            key=base.key,
            user=base.user,
            workers=base.elastic.workers,
            shape=replace(shape, gpu_type="") if base.elastic.heterogeneous else shape,
            base_nodes=base.nodes,
            base_workers=base.elastic.workers.min,
            grants=grants,
            training_workers=report.training_workers if report else 0,
            scalable=report is not None and report.scalable and running,
            wanted=cap,
            last_resize_at=self._resized_at.get(base.key, newest),
            retry_at={
                node: backoff.until
                for (key, node), backoff in self._nodes.items()
                if key == base.key and backoff.until > now
            },
            rest_until=self._jobs.get(base.key, _Backoff()).until,
            batch=base.elastic.batch,
            changing=report is not None and report.changing,
            errand=report.errand if report else "",
            unscalable_why=report.unscalable_why if report else "",
            heterogeneous=base.elastic.heterogeneous,
        )

    def _forget_jobs_not_in(self, running: Iterable[JobKey]) -> None:
        alive = set(running)
        self._known = {name: grant for name, grant in self._known.items() if grant.job in alive}
        self._said = {key: said for key, said in self._said.items() if key in alive and said}
        for names in (self._started, self._withdrawn, self._failed):
            names.intersection_update(self._known)
        self._nodes = {place: backoff for place, backoff in self._nodes.items() if place[0] in alive}
        self._jobs = {key: backoff for key, backoff in self._jobs.items() if key in alive}
        self._resized_at = {key: at for key, at in self._resized_at.items() if key in alive}


def _by_base(
    jobs: Sequence[SlurmJob], bases: Mapping[JobKey, SlurmJob]
) -> tuple[dict[JobKey, list[SlurmJob]], tuple[SlurmJob, ...]]:
    """Satellites by the base that runs, and those that have none. A foreign user's tag counts for nothing."""
    by_base: dict[JobKey, list[SlurmJob]] = defaultdict(list)
    orphans: list[SlurmJob] = []
    for job in jobs:
        if job.satellite is None or job.state is JobState.OTHER:
            continue
        base = bases.get(job.satellite.base)
        if base is None:
            orphans.append(job)
        elif base.user_id == job.user_id:
            by_base[base.key].append(job)
    return by_base, tuple(orphans)


def _report_of(satellite: SlurmJob, report: LeaderReport | None) -> SatelliteReport | None:
    if report is None:
        return None
    return next((told for told in report.satellites if told.satellite_job_id == satellite.job_id), None)


def _node_wanted(satellite: SlurmJob, known: Grant | None, told: SatelliteReport | None) -> str:
    """Where a satellite that waits is going to run."""
    if known is not None:
        return known.node
    if told is not None:
        return told.node
    return min(satellite.required_nodes, default="")


def _shape_of(base: SlurmJob, workers: int) -> WorkerShape:
    """What one worker takes, from the base's own request: the base is `workers` of them."""
    return WorkerShape(
        gpus=base.gpus // workers,
        cpus=max(1, base.cpus // workers),
        memory_mib=0,
        gpu_type=base.gpu_type,
    )
