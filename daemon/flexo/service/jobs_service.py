"""The service for leaders: one stream for each elastic job, from its leader.

flexod believes that a leader leads a job if the cluster says that the job runs and belongs to the caller.
Nobody is exempt, neither root nor flexod's account, because a leader always runs as the job's owner. The
cluster's facts on the job (its range, its nodes) take precedence over the leader's report.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

import flexo
from flexo.availability.leadership_guard import ALONE, LeadershipGuard
from flexo.clusters.base import ClusterState
from flexo.control.batch_trials import TrialOrder
from flexo.model.measured import ScriptKey
from flexo.model.queue import JobState, QueuedJob
from flexo.service import wire
from flexo.service.authentication import caller, principal_of
from flexo.service.budgets import STANDARD, Buckets, Budgets, RefusalLimits, TokenBucket
from flexo.service.leader_registry import LeaderConnection, LeaderRegistry, StaleLeader
from flexo.service.logs import LimitedLog
from flexo.service.streams import (
    Refused,
    StreamWriter,
    malformed_is_refused,
    read,
    unless_quiet,
    until_one_ends,
    within,
)
from flexo.words import one_line
from flexo_protos.v1 import jobs_pb2, jobs_pb2_grpc

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    _Context = grpc.aio.ServicerContext[bytes, bytes]

HELLO_WITHIN_S = 10.0
OBSERVED_WITHIN_S = 60.0
"""The time that a leader waits for the controller to poll the cluster once more, to find a new job in it."""
WRITE_WITHIN_S = 30.0
MISSED_REPORTS = 3

_LOGGED_BURST = 100.0
"""The burst of log lines about streams that flexod ended."""

_log = structlog.get_logger("flexo.service")


class Observer(Protocol):
    """The source of the last poll of the cluster: the controller."""

    @property
    def observation(self) -> ClusterState | None:
        """The result of the newest poll; None before the first. Safe from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceTimeouts:
    """The interval of leaders' reports, and flexod's time-outs. Seconds."""

    report_interval_s: float = 5.0
    hello_within_s: float = HELLO_WITHIN_S
    observed_within_s: float = OBSERVED_WITHIN_S

    @property
    def quiet_s(self) -> float:
        """A leader that has sent nothing for this time counts as gone."""
        return MISSED_REPORTS * self.report_interval_s


def no_trials(script: ScriptKey) -> TrialOrder:
    """No job tries batches."""
    return TrialOrder()


class _Seen:
    """One poll of the cluster, indexed once: each of many streams asks for one job of it."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.nodes = frozenset(node.name for node in state.nodes)
        self.jobs = {job.job_id: job for job in state.jobs if job.state is not JobState.PENDING}
        self.elastic = Counter(job.owner for job in self.jobs.values() if job.elastic is not None)
        """The number of running elastic jobs of each user."""


class JobService(jobs_pb2_grpc.JobServiceServicer):
    """See protos/flexo/v1/jobs.proto."""

    def __init__(
        self,
        registry: LeaderRegistry,
        observer: Observer,
        timeouts: ServiceTimeouts,
        leadership: LeadershipGuard = ALONE,
        budgets: Budgets = STANDARD,
        trials: Callable[[ScriptKey], TrialOrder] = no_trials,
    ) -> None:
        """`leadership`: checked before a leader is told anything. `trials`: which jobs try batches."""
        self._registry = registry
        self._budgets = budgets
        self._trials = trials
        self._observer = observer
        self._leadership = leadership
        self._timeouts = timeouts
        self._closing = asyncio.Event()
        self._unattached: Counter[int] = Counter()
        self._refusals = RefusalLimits(budgets)
        self._attached = Buckets(budgets.attached_per_s, budgets.attached_burst)
        self._logged = Buckets(budgets.attached_logged_per_s, budgets.attached_logged_burst)
        self._log = LimitedLog(_LOGGED_BURST)
        self._last_seen: _Seen | None = None

    def close(self) -> None:
        """End every stream: flexod stops."""
        self._closing.set()

    async def Attach(self, request_iterator: object, context: _Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one leader, from its Hello to its end."""
        uid = caller().uid
        try:
            with self._not_attached_yet(uid):
                if wait_s := self._refusals.wait_s(uid):
                    await asyncio.sleep(wait_s)
                connection, introduced, trials = await self._greet(uid, context)
                if wait_s := self._attached.owe(introduced.key):
                    await asyncio.sleep(wait_s)
            await self._converse(connection, introduced, trials, context)
        except Refused as refusal:
            if refusal.code is not grpc.StatusCode.UNAVAILABLE:  # else it is flexod that cannot go on
                self._refusals.note(uid)
            self._log.warning("leader's stream closed", uid=uid, peer=context.peer(), why=str(refusal))
            await context.abort(refusal.code, str(refusal))
        except asyncio.CancelledError:
            # The connection has broken, and _converse has tidied up. Passed on, gRPC would print a traceback.
            return

    @contextmanager
    def _not_attached_yet(self, uid: int) -> Iterator[None]:
        """Count a stream of `uid` that leads no job yet. One such stream for each running job may come at any
        time."""
        seen = self._seen()
        running = seen.elastic[principal_of(uid)] if seen else self._budgets.leases
        limit = self._budgets.unattached + running
        if self._unattached[uid] >= limit:
            text = (
                f"uid {uid} has {limit} streams that lead no job yet: at most {limit} are allowed,"
                f" {self._budgets.unattached} and one for each running elastic job; close some of them"
            )
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._unattached[uid] += 1
        try:
            yield
        finally:
            self._unattached[uid] -= 1
            if not self._unattached[uid]:
                del self._unattached[uid]

    async def _greet(
        self, uid: int, context: _Context
    ) -> tuple[LeaderConnection, wire.Introduction, TrialOrder]:
        raw = await within(self._timeouts.hello_within_s, "Hello", read(context))
        message = None if raw is None else _parsed(raw)
        if message is None or message.WhichOneof("body") != "hello":
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a leader is Hello")
        with malformed_is_refused():
            said = wire.introduction(message.hello)
        job = await self._job_of(said, uid)
        introduced = self._as_the_cluster_has_it(said, job)
        with malformed_is_refused():
            report = wire.leader_report(introduced, principal_of(uid), message.hello.report, self._nodes())
        trials = self._trials(ScriptKey(job.user, introduced.script, introduced.shape.gpu_type))
        return LeaderConnection(report, context.peer(), introduced.fence), introduced, trials

    async def _converse(
        self,
        connection: LeaderConnection,
        introduced: wire.Introduction,
        trials: TrialOrder,
        context: _Context,
    ) -> None:
        writer = StreamWriter(context)
        try:
            self._registry.attach(connection)
        except StaleLeader as error:
            raise Refused(grpc.StatusCode.ABORTED, str(error)) from error
        if logged := self._logged.take(introduced.key):
            _log.info(
                "leader attached",
                job=str(introduced.key),
                owner=connection.report.owner,
                peer=connection.peer,
                release=introduced.release or "unknown",
            )
        try:
            await until_one_ends(
                self._hear(connection, introduced, context),
                self._tell(connection, trials, writer),
                self._until_replaced(connection),
                self._until_closed(),
            )
        finally:
            self._registry.detach(connection)
            await writer.finish()
            if logged:
                _log.info("leader detached", job=str(introduced.key), peer=connection.peer)

    async def _hear(
        self, connection: LeaderConnection, introduced: wire.Introduction, context: _Context
    ) -> None:
        """Process the leader's messages until it says goodbye or closes the stream."""
        budgets = self._budgets
        messages = TokenBucket(budgets.messages_per_s, budgets.messages_burst)
        data = TokenBucket(budgets.bytes_per_s, budgets.bytes_burst)
        while True:
            raw = await self._unless_quiet(read(context))
            if raw is None:
                return
            if not messages.take():
                text = f"more than {budgets.messages_per_s:.0f} messages a second from one leader"
                raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            if wait_s := data.owe(len(raw)):
                await asyncio.sleep(wait_s)  # the connection holds its messages meanwhile
            if connection.replaced_by:
                return
            message = _parsed(raw)
            if message.WhichOneof("body") == "goodbye":
                if self._logged.take(introduced.key):
                    why = one_line(message.goodbye.reason)
                    _log.info("leader says goodbye", job=str(introduced.key), why=why)
                return
            with malformed_is_refused():
                self._heed(message, connection, introduced)

    async def _unless_quiet(self, reading: Awaitable[bytes | None]) -> bytes | None:
        """The leader's next message. Raises Refused if the leader sends nothing for `quiet_s`."""
        return await unless_quiet(reading, "report", self._timeouts.report_interval_s, MISSED_REPORTS)

    def _heed(
        self, message: jobs_pb2.FromLeader, connection: LeaderConnection, introduced: wire.Introduction
    ) -> None:
        """Process one message. Raises wire.Malformed."""
        match body := message.WhichOneof("body"):
            case "report":
                said = wire.leader_report(introduced, connection.report.owner, message.report, self._nodes())
                self._registry.update(connection, said)
            case "grant_failed":
                self._registry.give_back(wire.grant_failure(introduced.key, message.grant_failed))
            case "slow_gpu":
                slow = wire.slow_gpu(introduced.key, message.slow_gpu, self._nodes())
                self._registry.note_slow_gpu(slow)
            case "workers_failed":
                failed = wire.failed_workers(introduced.key, message.workers_failed, self._nodes())
                self._registry.note_failed_workers(failed)
            case "command_progress":
                said_of_it = wire.progress(message.command_progress, time.time())
                connection.hear(message.command_progress.id, said_of_it)
            case "command_done":
                connection.hear(message.command_done.id, wire.outcome(message.command_done, time.time()))
            case None:
                # a newer leader sends a message that this flexod does not know
                _log.debug("message skipped", job=str(introduced.key), release=introduced.release)
            case _:
                raise wire.Malformed(f"{body} after Hello")

    async def _tell(self, connection: LeaderConnection, trials: TrialOrder, writer: StreamWriter) -> None:
        """Send Welcome, then the orders whenever they change, and each command."""
        welcome = jobs_pb2.Welcome(
            report_interval_s=max(1, round(self._timeouts.report_interval_s)),
            flexod_version=flexo.__version__,
            try_batches=trials.wanted,
            known_weights=trials.known_weights,
        )
        message = jobs_pb2.ToLeader(welcome=welcome)
        while True:
            if not self._leadership.holds():
                raise Refused(grpc.StatusCode.UNAVAILABLE, "this flexod is not the active one any more")
            message.epoch = self._leadership.epoch
            await writer.say_within(WRITE_WITHIN_S, message, "leader")
            message = wire.to_leader(await connection.next_to_tell())

    async def _until_replaced(self, connection: LeaderConnection) -> None:
        await connection.until_replaced()
        report, other = connection.report, connection.replaced_by
        text = f"replaced: another leader of job {report.key} has attached from {other}"
        raise Refused(grpc.StatusCode.ABORTED, text)

    async def _until_closed(self) -> None:
        await self._closing.wait()
        raise Refused(grpc.StatusCode.UNAVAILABLE, "flexod stops; the grants stand")

    async def _job_of(self, said: wire.Introduction, uid: int) -> QueuedJob:
        """The running job that the leader names, which must be the caller's own."""
        job = await self._observed(said.key.job_id)
        if job is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"the cluster has no job {said.key.job_id} in its queue")
        if job.owner != principal_of(uid):
            text = f"job {job.job_id} is not of uid {uid}: only its owner's leader may attach"
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, text)
        if job.restart_count != said.key.restart_count:
            text = (
                f"job {job.job_id} is in its restart {job.restart_count},"
                f" the leader says {said.key.restart_count}"
            )
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, text)
        if job.satellite is not None:
            text = f"job {job.job_id} is a satellite of job {job.satellite.base}: it has no leader"
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, text)
        return job

    async def _observed(self, job_id: int) -> QueuedJob | None:
        """The job as the cluster shows it running; None if a poll that began after this call lacks it."""
        since, deadline = time.time(), time.monotonic() + self._timeouts.observed_within_s
        while True:
            seen = self._seen()
            if seen is not None:
                if job := seen.jobs.get(job_id):
                    return job
                if seen.state.at > since:
                    return None
            if time.monotonic() > deadline:
                text = (
                    f"flexod has not seen the cluster for {self._timeouts.observed_within_s:.0f} s; try again"
                )
                raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, text)  # not UNAVAILABLE: a flexod is there
            self._registry.wake.set()
            await asyncio.sleep(0.2)

    def _as_the_cluster_has_it(self, said: wire.Introduction, job: QueuedJob) -> wire.Introduction:
        """`said`, corrected by the cluster: the range that was submitted, the nodes of the job."""
        if job.elastic is None:
            text = f"job {job.job_id} has no range in its AdminComment: it was submitted without --elastic"
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, text)
        unknown = set(said.base_nodes) - self._nodes()
        if unknown:
            text = f"the cluster has no node {', '.join(sorted(unknown)[:10])}"
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, text)
        recorded = job.elastic.workers
        if recorded != said.workers:
            self._log.warning(
                "leader's range overruled by AdminComment",
                job=str(said.key),
                said=str(said.workers),
                recorded=str(recorded),
            )
        return replace(said, workers=recorded, base_nodes=job.nodes or said.base_nodes)

    def _nodes(self) -> frozenset[str]:
        """The names of all nodes in the last poll."""
        seen = self._seen()
        return seen.nodes if seen else frozenset()

    def _seen(self) -> _Seen | None:
        """The last poll; None before the first."""
        state = self._observer.observation
        if state is not None and (self._last_seen is None or self._last_seen.state is not state):
            self._last_seen = _Seen(state)
        return self._last_seen


def _parsed(raw: bytes) -> jobs_pb2.FromLeader:
    try:
        return jobs_pb2.FromLeader.FromString(raw)
    except DecodeError as error:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
