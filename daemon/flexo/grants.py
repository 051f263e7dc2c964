"""flexod's memory of grants, joined in every cycle with the reports of the cluster and the leaders.

A grant counts if this flexod issued it, if the event store names it, or if its leader shows flexod's
signature. The queue shows which satellites exist and run. For each grant exactly one queued job counts: its
record must match the grant (issued_grants.py). A comment, a report or a job's name alone gives nobody
anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from flexo.events import Event
from flexo.grant_backoffs import NO_FAULT, Backoffs
from flexo.grant_signatures import GrantSigner
from flexo.issued_grants import (
    LONGEST_LIMIT_S,
    UNKNOWN_OWNER,
    IssuedGrant,
    is_left_over,
    is_satellite,
    shape_within,
)
from flexo.model.elastic import (
    AggregatorGrants,
    Cap,
    ElasticJob,
    FailureReason,
    Grant,
    GrantFailure,
    LeaderReport,
    SatelliteReport,
    SatelliteState,
)
from flexo.model.node_filter import NodeFilter
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.words import held_by
from flexo_protos.resources import Resources

START_MARGIN_S: Final = 30.0
"""The time beyond start_within_s for the leader to submit, to cancel, and to report that."""
PENDING_MARGIN_S: Final = 2 * START_MARGIN_S
"""The margin for a pending satellite: its leader counts from the submission, and polls every 20 s."""

JOB_ENDS_WITHIN_S: Final = 60.0
"""The longest time by which a job outlives its satellites when it ends. A job whose leader is gone, and whose
base job runs on for longer, has lost the satellites."""

_ALIVE = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
_SETTLED = frozenset({SatelliteState.WARMING, SatelliteState.TRAINING, SatelliteState.LEAVING})


@dataclass(frozen=True, slots=True)
class ReconciledState:
    """The elastic jobs of one cycle, reconciled with the cluster."""

    jobs: tuple[ElasticJob, ...]
    orphans: tuple[QueuedJob, ...]
    """Satellites whose base is gone from the queue."""
    events: tuple[Event, ...]
    unknown: tuple[QueuedJob, ...] = ()
    """Jobs with a satellite's tag that no grant of flexod's allows. They count as ordinary jobs of their
    users."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings and properties of the cluster that a join uses."""

    start_within_s: float
    time_limit_s: float
    partition_of: Callable[[str], str]
    """Returns the partition to which satellites on a node are submitted."""
    threads_per_core: Mapping[str, int] = field(default_factory=dict)
    """The threads per core of each node; 1 for nodes that are not listed."""

    @property
    def forgotten_after_s(self) -> float:
        """The time for which a grant without a satellite is remembered: longer than any signature of it is
        valid."""
        return 2 * max(self.time_limit_s, LONGEST_LIMIT_S)


_Name = tuple[JobKey, str]
"""A grant's job and id. The id counts only together with the job, because users write the tags of their own
satellites."""
_Satellites = dict[JobKey, list[QueuedJob]]


class GrantLedger:
    """The book of grants that stand. For the controller's thread alone."""

    def __init__(self, signer: GrantSigner, issued: Iterable[IssuedGrant] = (), now: float = 0.0) -> None:
        """`issued`: the remembered grants of an earlier flexod, or of this one before it forgot its temporary
        state."""
        self._signer = signer
        self._issued: dict[_Name, IssuedGrant] = {}
        """Every grant that is remembered."""
        self._unnamed: dict[tuple[JobKey, str], IssuedGrant] = {}
        """Grants of an older release that did not record their ids, by job and node."""
        self._changed: set[_Name] = set()
        self._forgotten: list[IssuedGrant] = []
        self._seen_at: dict[_Name, float] = {}
        """The time when each grant last had a satellite, or was about to have one."""
        self._signed: dict[_Name, tuple[bytes, float]] = {}
        """The last signature of each grant, and until when it is valid."""
        self._leaderless_since: dict[JobKey, float] = {}
        """Jobs that run without a leader, and since when they were seen so."""
        self._bases: Mapping[JobKey, QueuedJob] = {}
        self._shapes: dict[JobKey, Resources] = {}
        """The resources of one worker of each running job, as of the last join."""
        self._known: dict[_Name, Grant] = {}
        """Grants in their last known state."""
        self._said: dict[JobKey, set[str]] = {}
        """The known grants, by job, that its leader was told and that have had no satellite yet."""
        self._started: set[_Name] = set()
        """The known grants whose satellite was there in the last cycle, and not pending."""
        self._ran: set[_Name] = set()
        """The known grants with a satellite that the cluster has shown running, in any cycle."""
        self._trained: set[_Name] = set()
        """The known grants whose satellite trained according to the leader, in any cycle."""
        self._unasked: dict[_Name, tuple[Grant, float]] = {}
        """Grants whose satellites have ended unasked, and since when, until the reason is known."""
        self._failed: set[_Name] = set()
        self._given_back: set[_Name] = set()
        """The grants that their leaders or owners gave back."""
        self._backoffs = Backoffs()
        self._aggregator_backoffs = Backoffs()
        """Of grants without workers: a job whose Aggregators fail may get workers, and vice versa."""
        self._resized_at: dict[JobKey, float] = {}
        self._aggregators_changed_at: dict[JobKey, float] = {}
        for each in issued:
            self._remember(each, now)

    def _remember(self, issued: IssuedGrant, now: float) -> None:
        if not issued.grant_id:
            self._unnamed[issued.job, issued.node] = issued
            return
        name = issued.job, issued.grant_id
        if issued.satellite_job_id:
            # its leader may not have heard that it was withdrawn, and no other job can be its satellite
            issued = replace(issued, ended_at=None)
        self._issued[name], self._seen_at[name] = issued, now
        if not issued.satellite_job_id and issued.ended_at is None:
            self._await(issued, now)

    def _await(self, issued: IssuedGrant, now: float) -> None:
        """Expect the leader to submit the satellite of `issued`."""
        grant = Grant(
            *(issued.grant_id, issued.job, issued.node, issued.workers, issued.partition, now),
            shared_gpus=issued.shared_gpus,
        )
        self._known[issued.job, issued.grant_id] = grant
        self._said.setdefault(issued.job, set()).add(issued.grant_id)

    # For the event store.

    @property
    def issued(self) -> tuple[IssuedGrant, ...]:
        """All grants that are remembered."""
        return (*self._issued.values(), *self._unnamed.values())

    @property
    def changes(self) -> tuple[tuple[IssuedGrant, ...], tuple[IssuedGrant, ...]]:
        """The grants issued or changed since the last call of `written`, and the forgotten ones."""
        changed = tuple(self._issued[name] for name in sorted(self._changed) if name in self._issued)
        return changed, tuple(self._forgotten)

    def written(self) -> None:
        """Note that the event store has all changes."""
        self._changed.clear()
        self._forgotten.clear()

    def signature(self, key: JobKey, grant_id: str, time_limit_s: float, now: float) -> bytes:
        """The signature of a grant, for its leader. It is renewed when half of its validity is over."""
        token, good_until = self._signed.get((key, grant_id), (b"", 0.0))
        if good_until - now >= time_limit_s / 2:
            return token
        issued = self._issued.get((key, grant_id))
        if issued is None or issued.resources is None:
            return b""
        token = self._signer.sign(issued, now + time_limit_s)
        self._signed[key, grant_id] = token, now + time_limit_s
        return token

    # Changes by the controller.

    def say(self, grant: Grant) -> None:
        """Add a new grant, of a job that the last join saw."""
        owner, shape = self._bases[grant.job].owner, self._shapes[grant.job]
        self._issue(IssuedGrant.of(grant, owner, shape))
        self._seen_at[grant.job, grant.grant_id] = grant.since_at
        self._await(self._issued[grant.job, grant.grant_id], grant.since_at)
        self._resized(grant, grant.since_at)

    def _resized(self, grant: Grant | IssuedGrant | None, now: float) -> None:
        """Note that the job of `grant` gets or loses workers, or an Aggregator."""
        if grant is not None:
            changed_at = self._resized_at if grant.workers else self._aggregators_changed_at
            changed_at[grant.job] = now

    def _backoffs_of(self, grant: Grant) -> Backoffs:
        return self._backoffs if grant.workers else self._aggregator_backoffs

    def _issue(self, issued: IssuedGrant) -> None:
        self._issued[issued.job, issued.grant_id] = issued
        self._changed.add((issued.job, issued.grant_id))

    def withdraw(self, key: JobKey, grant_id: str, now: float, *, of_itself: bool = False) -> None:
        """End a grant. Its satellite, if there is one, counts as leaving until it is gone.

        `of_itself`: the job itself or its owner has asked for that.
        """
        if of_itself:
            self._given_back.add((key, grant_id))
        self._end(key, grant_id, now)
        self._resized(self._issued.get((key, grant_id)), now)

    def _end(self, key: JobKey, grant_id: str, now: float) -> None:
        issued = self._issued.get((key, grant_id))
        if issued is not None and issued.ended_at is None:
            self._issue(replace(issued, ended_at=now))
        self._no_longer_said(key, grant_id)

    def _stands(self, name: _Name) -> bool:
        issued = self._issued.get(name)
        return issued is not None and issued.ended_at is None

    def fail(self, failure: GrantFailure, now: float) -> Event | None:
        """Note that a leader gives a grant back. Returns the event; None if the grant is not known or was
        given back before."""
        name = failure.job, failure.grant_id
        grant = self._known.get(name)
        if grant is None or name in self._failed:
            return None
        self._failed.add(name)
        self._given_back.add(name)
        self._end(*name, now)
        ran = name in self._ran
        self._backoffs_of(grant).failed(grant, failure.reason, ran=ran, now=now)
        if ran and failure.reason in NO_FAULT:
            self._resized(grant, now)
        where = f"{held_by(grant.workers)} on {grant.node}"
        return Event(now, "failure", grant.job, f"{where}: {failure.reason.value}: {failure.message}")

    def _no_longer_said(self, key: JobKey, grant_id: str) -> None:
        self._said.get(key, set()).discard(grant_id)

    # Queries by the controller.

    @property
    def given_back(self) -> Set[tuple[JobKey, str]]:
        """The grants that their own leaders or owners ended."""
        return self._given_back

    @property
    def running(self) -> Mapping[JobKey, QueuedJob]:
        """All jobs that ran at the last join and are no satellites."""
        return self._bases

    def after(self, job: ElasticJob) -> ElasticJob:
        """`job`, with all changes of its grants since the job was joined."""
        before = [
            grant if self._stands((job.key, grant.grant_id)) else replace(grant, state=SatelliteState.LEAVING)
            for grant in job.all_grants
        ]
        listed = {grant.grant_id for grant in job.all_grants}
        said = [
            self._known[job.key, grant_id]
            for grant_id in sorted(self._said.get(job.key, ()))
            if grant_id not in listed
        ]
        return job.with_grants((*before, *said))

    def join(
        self,
        jobs: Sequence[QueuedJob],
        reports: Mapping[JobKey, LeaderReport],
        caps: Mapping[JobKey, Cap],
        rules: Rules,
        now: float,
    ) -> ReconciledState:
        """Join the grants with the queue and with the leaders' reports. Returns all elastic jobs whose base
        runs, with their grants.

        The caller takes `reports` before it reads `jobs`: a satellite that was reported and is not in the
        queue has then ended.
        """
        bases = {job.key: job for job in jobs if job.satellite is None and job.state in _ALIVE}
        reports = {
            key: report
            for key, report in reports.items()
            if key in bases and report.owner == bases[key].owner
        }
        queue = {job.job_id for job in jobs if job.satellite is not None}
        for key, heard in reports.items():
            self._hear_of_grants(bases[key], heard, queue, rules, now)
        satellites, orphans, unknown = self._sort(jobs, bases, reports, rules, now)
        events = self._note_gone(satellites, bases, reports, now)
        elastic: list[ElasticJob] = []
        for key, base in sorted(bases.items()):
            if base.elastic is None or base.state is JobState.COMPLETING:
                continue
            report = reports.get(key)
            grants = [
                grant
                for satellite in satellites.get(key, ())
                if (grant := self._grant_of(satellite, report, rules, now, events)) is not None
            ]
            grants.extend(self._still_said(key, rules.start_within_s, now, events))
            if not self._said.get(key):  # not while it has other grants that it does not use
                self._backoffs.relieve(key)
                self._aggregator_backoffs.relieve(key)
            elastic.append(self._job_of(base, report, tuple(grants), caps.get(key), now))
        self._forget_jobs_not_in(bases, rules, now)
        return ReconciledState(tuple(elastic), orphans, tuple(events), unknown)

    # Find the grants, and the queued jobs that are their satellites.

    def _hear_of_grants(
        self, base: QueuedJob, report: LeaderReport, queue: Container[int], rules: Rules, now: float
    ) -> None:
        """Learn grants of an earlier flexod, if its signature or the event store proves what the leader
        reports.

        `queue`: ids of the jobs with a satellite's tag.
        """
        if base.elastic is None:
            return
        workers = base.elastic.workers
        if all((base.key, told.grant_id) in self._issued for told in report.satellites):
            return
        room = workers.max - base.elastic.base_workers
        room -= sum(
            each.workers
            for each in self._issued.values()
            if each.job == base.key
            and (each.satellite_job_id in queue if each.satellite_job_id else each.ended_at is None)
        )
        news = (told for told in report.satellites if (base.key, told.grant_id) not in self._issued)
        aggregators = report.aggregation.satellites if report.aggregation else 0
        for told in islice(news, workers.max - base.elastic.base_workers + aggregators):
            issued = self._of_earlier_flexod(base, told, rules, now)
            if issued is None or issued.owner not in (base.owner, UNKNOWN_OWNER):
                continue
            if told.workers > room:
                continue
            room -= told.workers
            self._name(replace(issued, grant_id=told.grant_id, satellite_job_id=told.satellite_job_id), now)
            if not told.satellite_job_id:
                self._await(self._issued[base.key, told.grant_id], now)

    def _of_earlier_flexod(
        self, base: QueuedJob, told: SatelliteReport, rules: Rules, now: float
    ) -> IssuedGrant | None:
        if told.signature:
            longest_s = max(rules.time_limit_s, LONGEST_LIMIT_S)
            return self._signer.verify(base.key, told, now, longest_s)
        unnamed = self._unnamed.get((base.key, told.node))
        if told.satellite_job_id or unnamed is None or unnamed.satellite_job_id:
            return None  # a satellite that was submitted is found by its tag
        if unnamed.workers != told.workers:
            return None
        return replace(unnamed, partition=rules.partition_of(told.node))

    def _name(self, issued: IssuedGrant, now: float) -> None:
        """Remember `issued` under its id, instead of the grant without an id of its job and node."""
        if unnamed := self._unnamed.pop((issued.job, issued.node), None):
            self._forgotten.append(unnamed)
        self._issue(issued)
        self._seen_at[issued.job, issued.grant_id] = now

    def _sort(
        self,
        jobs: Sequence[QueuedJob],
        bases: Mapping[JobKey, QueuedJob],
        reports: Mapping[JobKey, LeaderReport],
        rules: Rules,
        now: float,
    ) -> tuple[_Satellites, tuple[QueuedJob, ...], tuple[QueuedJob, ...]]:
        """Sort the jobs with a tag: satellites of running base jobs, orphans, and jobs that only claim to be
        satellites."""
        reported = {told.satellite_job_id for report in reports.values() for told in report.satellites}
        satellites: _Satellites = defaultdict(list)
        orphans: list[QueuedJob] = []
        unknown: list[QueuedJob] = []
        tagged = [job for job in jobs if job.satellite is not None]
        # if several jobs claim one grant, the job that its leader has submitted comes first
        for job in sorted(tagged, key=lambda job: (job.job_id not in reported, job.job_id)):
            assert job.satellite is not None
            base = bases.get(job.satellite.base)
            if not self._counts(job, base, rules, now):
                unknown.append(job)
            elif base is None:
                orphans.append(job)
            else:
                satellites[base.key].append(job)
        return satellites, tuple(orphans), tuple(unknown)

    def _counts(self, job: QueuedJob, base: QueuedJob | None, rules: Rules, now: float) -> bool:
        """Whether `job` is the one satellite of a grant. If it is, it remains the one from then on."""
        issued = self._named_by(job)
        if issued is None or job.state is JobState.OTHER:
            return False
        if issued.satellite_job_id not in (0, job.job_id):
            return False
        # the leader may have submitted it just before it heard that the grant was withdrawn
        late = issued.ended_at is not None and now > issued.ended_at + rules.start_within_s + START_MARGIN_S
        if late and not issued.satellite_job_id:
            return False
        if base is None:
            matches = is_left_over(job, issued)
        elif job.state is JobState.COMPLETING and issued.satellite_job_id:
            matches = True  # the cluster changes the record of a job that ends
        else:
            threads = rules.threads_per_core.get(issued.node, 1)
            matches = is_satellite(job, issued, base, threads, rules.time_limit_s, now)
        if not matches:
            return False
        if issued.satellite_job_id != job.job_id or (issued.job, issued.grant_id) not in self._issued:
            self._name(issued.seen_as(job), now)
        self._seen_at[issued.job, issued.grant_id] = now
        return True

    def _named_by(self, job: QueuedJob) -> IssuedGrant | None:
        """The grant that the tag of `job` names."""
        tag = job.satellite
        assert tag is not None
        issued = self._issued.get((tag.base, tag.grant_id))
        if issued is not None:
            return issued
        where = job.nodes or tuple(job.required_nodes)
        unnamed = self._unnamed.get((tag.base, where[0])) if len(where) == 1 else None
        if unnamed is None or unnamed.workers != tag.workers:
            return None
        if unnamed.satellite_job_id and job.state is JobState.PENDING:
            return None  # an older release took over whatever had a tag
        return replace(unnamed, grant_id=tag.grant_id, partition=job.partitions[0])

    def _note_gone(
        self,
        satellites: Mapping[JobKey, Sequence[QueuedJob]],
        bases: Mapping[JobKey, QueuedJob],
        reports: Mapping[JobKey, LeaderReport],
        now: float,
    ) -> list[Event]:
        """Events for satellites that ran in the last cycle and have ended since.

        If no leader says why a satellite ended, the next polls show it: the satellites of a job that ends end
        before the job.
        """
        started = {
            (key, satellite.satellite.grant_id)
            for key, found in satellites.items()
            for satellite in found
            if satellite.satellite is not None and satellite.state is not JobState.PENDING
        }
        events: list[Event] = []
        for name in sorted(self._started - started):
            grant = self._known[name]
            if _has_ended(grant.job, bases):
                continue
            if grant.state is SatelliteState.LEAVING or not self._stands(name):
                events.append(Event(now, "left", grant.job, _left(grant)))
            else:
                self._resized(grant, now)
                self._unasked[name] = grant, now
        self._started = started
        self._ran |= started
        return [*events, *self._explain_unasked(bases, reports, now)]

    def _explain_unasked(
        self, bases: Mapping[JobKey, QueuedJob], reports: Mapping[JobKey, LeaderReport], now: float
    ) -> list[Event]:
        """Events for satellites that nobody told to leave: either their job has ended, or they are lost."""
        events: list[Event] = []
        for name, (grant, since) in sorted(self._unasked.items()):
            if _has_ended(grant.job, bases):
                events.append(Event(now, "left", grant.job, f"{_left(grant)}: its job ends"))
            elif grant.job in reports or not 0 <= now - since < JOB_ENDS_WITHIN_S:
                events.append(Event(now, "lost", grant.job, f"{_left(grant)}, unasked"))
            else:
                continue
            del self._unasked[name]
        return events

    # The state of each grant.

    def _grant_of(
        self,
        satellite: QueuedJob,
        report: LeaderReport | None,
        rules: Rules,
        now: float,
        events: list[Event],
    ) -> Grant | None:
        """The grant of a satellite. None if the satellite is pending and its grant is withdrawn, or is given
        up now."""
        tag = satellite.satellite
        assert tag is not None
        name = tag.base, tag.grant_id
        issued, known = self._issued[name], self._known.get(name)
        told = report.about(satellite.job_id) if report else None
        grant = Grant(
            grant_id=tag.grant_id,
            job=tag.base,
            node=issued.node,
            workers=issued.workers,
            partition=satellite.partitions[0],
            since_at=known.since_at if known else _since(satellite, now),
            state=self._state_of(satellite, known, told),
            satellite_job_id=satellite.job_id,
            shared_gpus=issued.shared_gpus,
        )
        if known is None:
            text = f"satellite {satellite.job_id} with {held_by(grant.workers)} on {grant.node} is taken over"
            events.append(Event(now, "adopt", tag.base, text))
        if grant.state is SatelliteState.TRAINING and name not in self._trained:
            self._trained.add(name)
            self._backoffs_of(grant).trains(grant)
        self._known[name] = grant
        self._no_longer_said(*name)
        if satellite.state is not JobState.PENDING:
            return grant
        if self._stands(name) and now > grant.since_at + rules.start_within_s + PENDING_MARGIN_S:
            events.extend(self._give_up(grant, f"satellite {satellite.job_id} still waits", now))
        return grant if self._stands(name) else None

    def _state_of(
        self, satellite: QueuedJob, known: Grant | None, told: SatelliteReport | None
    ) -> SatelliteState:
        tag = satellite.satellite
        assert tag is not None
        if satellite.state is JobState.COMPLETING or not self._stands((tag.base, tag.grant_id)):
            return SatelliteState.LEAVING
        if satellite.state is JobState.PENDING:
            return SatelliteState.PENDING
        if told is not None and told.state in _SETTLED:
            return told.state
        if told is None and known is not None and known.state in _SETTLED:
            return known.state
        return SatelliteState.WARMING

    def _still_said(self, key: JobKey, start_within_s: float, now: float, events: list[Event]) -> list[Grant]:
        """The grants of `key` that have no satellite yet. Grants that have waited too long are given up."""
        still: list[Grant] = []
        for grant in [self._known[key, grant_id] for grant_id in sorted(self._said.get(key, ()))]:
            if now <= grant.since_at + start_within_s + START_MARGIN_S:
                self._seen_at[key, grant.grant_id] = now
                still.append(grant)
            else:
                events.extend(self._give_up(grant, "its leader said nothing of it", now))
        return still

    def _give_up(self, grant: Grant, why: str, now: float) -> list[Event]:
        """Fail a grant that its leader should have given back. Returns the events."""
        event = self.fail(GrantFailure(grant.job, grant.grant_id, FailureReason.NOT_STARTED, why), now)
        return [event] if event else []

    def _job_of(
        self,
        base: QueuedJob,
        report: LeaderReport | None,
        grants: tuple[Grant, ...],
        cap: Cap | None,
        now: float,
    ) -> ElasticJob:
        assert base.elastic is not None
        newest = max((grant.since_at for grant in grants if grant.workers), default=0.0)
        running = base.state is JobState.RUNNING
        shape = shape_within(base, report.shape if report else None)
        self._shapes[base.key] = shape
        return ElasticJob(
            key=base.key,
            user=base.user,
            workers=base.elastic.workers,
            shape=shape.of_any_type() if base.elastic.heterogeneous else shape,
            base_nodes=base.nodes,
            base_workers=base.elastic.base_workers,
            training_workers=report.training_workers if report else 0,
            scalable=report is not None and report.scalable and running,
            wanted=cap.workers if cap else None,
            capped_by=cap.by if cap else "",
            last_resize_at=self._resized_at.get(base.key, newest),
            retry_at=self._backoffs.nodes_until(base.key, now),
            rest_until=self._backoffs.job_until(base.key),
            batch=base.elastic.batch,
            changing=report is not None and report.changing,
            pending_command=report.pending_command if report else "",
            unscalable_why=report.unscalable_why if report else "",
            heterogeneous=base.elastic.heterogeneous,
            suspended=base.state is JobState.SUSPENDED,
            unit=report.unit if report else 1,
            opportunistic=base.elastic.opportunistic,
            auto=base.elastic.auto,
            cohost=base.elastic.cohost,
            account=base.account,
            attached=report is not None,
            leaderless_since=self._without_leader(base.key, report, now),
            gpu_uses=report.gpu_uses if report else (),
            paused=report is not None and report.paused,
            aggregation=report.aggregation if report else None,
            resizes=report.resizes if report else 0,
            paused_s=report.paused_s if report else 0.0,
            tried_worker_s=report.tried.worker_s if report and report.tried else 0.0,
            aggregators=AggregatorGrants(
                retry_at=self._aggregator_backoffs.nodes_until(base.key, now),
                rest_until=self._aggregator_backoffs.job_until(base.key),
                last_change_at=self._aggregators_changed_at.get(base.key, 0.0),
            ),
            node_filter=NodeFilter(
                base.features, base.excluded_nodes, only=cap.nodes if cap else frozenset()
            ),
        ).with_grants(grants)

    def _without_leader(self, key: JobKey, report: LeaderReport | None, now: float) -> float:
        """Since when the job has been seen without a leader; 0: it has one."""
        if report is None:
            return self._leaderless_since.setdefault(key, now)
        self._leaderless_since.pop(key, None)
        return 0.0

    def _forget_jobs_not_in(self, running: Mapping[JobKey, QueuedJob], rules: Rules, now: float) -> None:
        """Forget the jobs that run no longer.

        Grants outlive their jobs for a while: a cluster that restarts may show an empty queue once.
        """
        self._bases = running
        self._said = {key: said for key, said in self._said.items() if key in running and said}
        self._shapes = {key: shape for key, shape in self._shapes.items() if key in running}
        since = self._leaderless_since
        self._leaderless_since = {key: at for key, at in since.items() if key in running}
        self._backoffs.keep(running)
        self._aggregator_backoffs.keep(running)
        for changed_at in (self._resized_at, self._aggregators_changed_at):
            for key in changed_at.keys() - running.keys():
                del changed_at[key]
        for name, seen_at in list(self._seen_at.items()):
            if now - seen_at > rules.forgotten_after_s:
                self._forget(name)
        for place, unnamed in list(self._unnamed.items()):
            if now - unnamed.issued_at > rules.forgotten_after_s and unnamed.job not in running:
                self._forgotten.append(self._unnamed.pop(place))
        for names in (self._started, self._ran, self._trained, self._failed, self._given_back):
            names.intersection_update(self._known)

    def _forget(self, name: _Name) -> None:
        self._forgotten.append(self._issued.pop(name))
        del self._seen_at[name]
        self._changed.discard(name)
        self._known.pop(name, None)
        self._signed.pop(name, None)


def _since(satellite: QueuedJob, now: float) -> float:
    """The start of a grant that is taken over; never in the future, because the clock may have been set."""
    return now if satellite.state is JobState.PENDING else min(satellite.submitted_at, now)


def _has_ended(key: JobKey, bases: Mapping[JobKey, QueuedJob]) -> bool:
    return key not in bases or bases[key].state is JobState.COMPLETING


def _left(grant: Grant) -> str:
    return f"satellite {grant.satellite_job_id} with {held_by(grant.workers)} has left {grant.node}"
