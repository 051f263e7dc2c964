"""The service for people: everybody on the cluster may read, few may steer a job.

authentication.py has proven the caller before. This module decides what the caller may do. Where the cluster
hides jobs, visibility.py says what the caller may read.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

import flexo
from flexo.clusters.base import Privacy
from flexo.control.explanations import beyond, reasons, satellite_of
from flexo.control.pending import places, planned_start
from flexo.control.scale_overrides import BadScale, Busy, NotSteered
from flexo.control.views import ControllerStatus, JobView, UnknownJob, View
from flexo.controller import Controller
from flexo.event_store.grant_events import GrantChange, change_of
from flexo.event_store.job_owners import JobOwner
from flexo.event_store.search import Search
from flexo.event_store.store import EventStore
from flexo.events import KINDS, Event
from flexo.model.aggregation import AggregationView, PooledJobView
from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.measured import ScalingPoint
from flexo.model.nodes import Node
from flexo.model.queue import JobKey, JobState
from flexo.model.ranges import Range
from flexo.service.authentication import account, caller, principal_of
from flexo.service.budgets import STANDARD, Buckets, Budgets
from flexo.service.leader_registry import LeaderBusy, LeaderRegistry, NoLeader
from flexo.service.loans_reply import lending_view, loans_reply
from flexo.service.logs import LimitedLog
from flexo.service.pending_commands import (
    CheckpointOrder,
    CommandOutcome,
    Order,
    ProfileOrder,
    Progress,
    Result,
)
from flexo.service.visibility import Visibility, privacy_of
from flexo.service.wire import MAX_PATH
from flexo.service.workers import started_pool
from flexo.sharing.hosts import gpus_of
from flexo.sharing.pairs import Pair
from flexo.words import one_line
from flexo_protos.resources import rounded_up, to_message
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:  # grpc's own classes are generic in its stubs only
    from typing import Any

    _Context = grpc.aio.ServicerContext[Any, Any]

EVENTS = 200
"""The most events that one answer holds, if the caller names no number."""
MOST_EVENTS = 1000
"""The most events that one answer holds, however many the caller asks for."""
NAME_LENGTH = 255
"""The most characters of a job's name in an answer."""
WORD_WITHIN_S = 3600.0
"""The time that a leader may take for its next message on a command: a mini-batch, or a checkpoint."""

PAST_LOANS = 10_000
"""The most past loans that one answer holds."""
MOST_SAMPLES = 20_000
"""The most samples of demand that one answer holds: the newest."""
DEMAND_STEP_S = 300.0
"""The step of the history of demand, if the caller names none."""

_NO_WEB_ACCOUNT = "[service] web_steering in flexod's configuration names other accounts, or none"
_UINT32, _UINT64 = (1 << 32) - 1, (1 << 64) - 1

_T = TypeVar("_T")
_log = structlog.get_logger("flexo.service")


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """See protos/flexo/v1/admin.proto."""

    def __init__(
        self,
        controller: Controller,
        event_store: EventStore,
        registry: LeaderRegistry,
        administrators: tuple[str, ...],
        availability: Callable[[], admin_pb2.Availability | None] = lambda: None,
        budgets: Budgets = STANDARD,
        readers: tuple[str, ...] = (),
        web_accounts: frozenset[int] = frozenset(),
    ) -> None:
        """`availability`: returns the status of several flexods; None if there is only one."""
        self._availability = availability
        self._budgets = budgets
        self._steering = Buckets(budgets.steering_per_s, budgets.steering_burst)
        self._steering_of_a_job = Buckets(budgets.job_steering_per_s, budgets.job_steering_burst)
        self._log = LimitedLog()
        self._readers = started_pool(1, "read")
        self._searchers = started_pool(1, "search")
        """One thread, so that the controller waits for at most one search before it gets the event store."""
        self._replies: dict[str, tuple[View, asyncio.Future[bytes]]] = {}
        self._controller = controller
        self._event_store = event_store
        self._registry = registry
        self.administrators = administrators
        """Users who may steer any job. A reload of the configuration may change them."""
        self.readers = readers
        """Users from whom nothing is hidden, besides administrators. A reload may change them, too."""
        self.web_accounts = web_accounts
        """The uids that may steer for their viewers. A reload may change them, too."""

    async def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: _Context
    ) -> admin_pb2.GetStatusReply:
        """The status of the loop, and its last view."""
        reply = _status(await _in(self._readers, self._controller.status))
        about = self._availability()
        if about is not None:
            reply.availability.CopyFrom(about)
        view = self._controller.view()
        visibility = await self._visibility(view)
        visibility.cut_status(reply, view)
        reply.privacy.CopyFrom(await self._privacy(privacy_of(view), visibility))
        reply.web_steering = caller().uid in self.web_accounts
        return reply

    async def ListJobs(  # type: ignore[override]  # noqa: N802
        self, request: admin_pb2.ListJobsRequest, context: _Context
    ) -> bytes:
        """All elastic jobs whose base runs."""
        return await self._seen("jobs", _jobs)

    async def ExplainJob(  # noqa: N802
        self, request: admin_pb2.ExplainJobRequest, context: _Context
    ) -> admin_pb2.ExplainJobReply:
        """Present reasons and past events. For a job that has ended: the events alone."""
        user = await self._visible_owner(request.job_id, context)
        search = Search(job_id=request.job_id, limit=EVENTS)
        events = (await _in(self._searchers, self._event_store.find, search)).events
        try:
            sentences = await _in(self._readers, self._controller.explain, request.job_id)
            headline = await _in(self._readers, self._controller.headline, request.job_id)
        except UnknownJob as error:
            if not events:
                await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            return await self._explain_ended(error, events, user)
        return admin_pb2.ExplainJobReply(
            user=user,
            headline=headline.text,
            reason=headline.reason,
            satellite_of=satellite_of(request.job_id, self._controller.view()),
            sentences=beyond(headline, sentences),
            events=[event_message(event, number) for number, event in events],
        )

    async def _explain_ended(
        self, error: UnknownJob, events: Sequence[tuple[int, Event]], user: str
    ) -> admin_pb2.ExplainJobReply:
        """The answer for a job that is gone from the queue: its end, if the event store has it."""
        told = [event_message(event, number) for number, event in events]
        number, end = next(((number, event) for number, event in events if event.kind == "end"), (0, None))
        if end is None or end.job is None:
            return admin_pb2.ExplainJobReply(user=user, sentences=(str(error),), events=told)
        facts = await _in(self._searchers, self._event_store.facts_of, (number,))
        known = _end(end.job, facts.get(number, ""))
        return admin_pb2.ExplainJobReply(user=user, sentences=(end.text,), events=told, end=known)

    async def ScaleJob(  # noqa: N802
        self, request: admin_pb2.ScaleJobRequest, context: _Context
    ) -> admin_pb2.ScaleJobReply:
        """Cap a job, for its owner and administrators."""
        key = await self._steered(request.job_id, context)
        by = await _caller_name()
        text = await _or_abort(context, self._controller.scale, key, request.workers or None, by)
        _log.info("job scaled", job=str(key), workers=request.workers, uid=caller().uid)
        return admin_pb2.ScaleJobReply(text=text)

    async def ScaleOut(  # noqa: N802
        self, request: admin_pb2.ScaleOutRequest, context: _Context
    ) -> admin_pb2.ScaleJobReply:
        """Amoeba's scaleOut, for a job's owner and administrators."""
        key = await self._steered(request.job_id, context)
        nodes = _node_names(request.nodes)
        by = await _caller_name()
        text = await _or_abort(context, self._controller.scale_out, key, request.workers, nodes, by)
        _log.info("job scaled out", job=str(key), workers=request.workers, nodes=nodes, uid=caller().uid)
        return admin_pb2.ScaleJobReply(text=text, nodes=nodes)

    async def ScaleIn(  # noqa: N802
        self, request: admin_pb2.ScaleInRequest, context: _Context
    ) -> admin_pb2.ScaleJobReply:
        """Amoeba's scaleIn, for a job's owner and administrators."""
        key = await self._steered(request.job_id, context)
        nodes = _node_names((request.node, *request.nodes))
        if bool(nodes) == bool(request.workers):
            text = "say either how many workers or which nodes: one of them"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        by = await _caller_name()
        text = await _or_abort(context, self._controller.scale_in, key, request.workers, nodes, by)
        _log.info("job scaled in", job=str(key), workers=request.workers, nodes=nodes, uid=caller().uid)
        return admin_pb2.ScaleJobReply(text=text)

    async def ScaleViewersJob(  # noqa: N802
        self, request: admin_pb2.ScaleViewersJobRequest, context: _Context
    ) -> admin_pb2.ScaleJobReply:
        """Cap a job for its owner, who looks at flexo-web's pages. flexo-web says who that is."""
        viewer = request.viewer_uid
        view = await self._steered_for_viewer(request.job_id, viewer, context)
        key, by = view.job.key, f"{view.job.user} on the web page"
        text = await _or_abort(context, self._controller.scale, key, request.workers or None, by)
        said = {"job": str(key), "workers": request.workers, "viewer": viewer, "uid": caller().uid}
        _log.info("job scaled on the web page", **said)
        return admin_pb2.ScaleJobReply(text=text)

    async def ProfileJob(  # noqa: N802
        self, request: admin_pb2.ProfileJobRequest, context: _Context
    ) -> AsyncGenerator[admin_pb2.ProfileJobReply]:
        """Amoeba's profile, for a job's owner and administrators."""
        key = await self._steered(request.job_id, context)
        if not 1 <= request.min <= request.max:
            text = f"{request.min}-{request.max} workers: 1 <= MIN <= MAX is allowed"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        await _or_abort(context, self._controller.resizable, key)
        order = ProfileOrder(Range(request.min, request.max), request.batches)
        _log.info("job is profiled", job=str(key), workers=str(order.workers), uid=caller().uid)
        async with aclosing(self._words(key, order, context)) as words:
            async for word in words:
                done = isinstance(word, CommandOutcome)
                if done:
                    await asyncio.to_thread(self._controller.profiled, key, word.points)
                yield admin_pb2.ProfileJobReply(text=word.text, points=map(_point, word.points), done=done)

    async def CheckpointJob(  # noqa: N802
        self, request: admin_pb2.CheckpointJobRequest, context: _Context
    ) -> admin_pb2.CheckpointJobReply:
        """Amoeba's checkpoint, for a job's owner and administrators."""
        key = await self._steered(request.job_id, context)
        path = request.path
        if not PurePosixPath(path).is_absolute() or len(path) > MAX_PATH or not path.isprintable():
            text = f"'{one_line(path, 200)}' is no absolute path of a file, as /scratch/ada/model.pt is"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        _log.info("job is checkpointed", job=str(key), path=path, uid=caller().uid)
        text = ""
        async with aclosing(self._words(key, CheckpointOrder(path), context)) as words:
            async for word in words:
                text = word.text
        await asyncio.to_thread(self._controller.note, "checkpoint", key, text)
        return admin_pb2.CheckpointJobReply(text=text)

    async def ListLoans(  # noqa: N802
        self, request: admin_pb2.ListLoansRequest, context: _Context
    ) -> admin_pb2.ListLoansReply:
        """Servers on loan, and past loans."""
        past = await _in(self._searchers, self._event_store.past_loans, min(request.past, PAST_LOANS))
        reply = await _in(self._readers, loans_reply, self._controller, past)
        view = self._controller.view()
        (await self._visibility(view)).cut_loans(reply, view)
        return reply

    async def ListDemand(  # noqa: N802
        self, request: admin_pb2.ListDemandRequest, context: _Context
    ) -> admin_pb2.ListDemandReply:
        """The demand of the inference cluster."""
        step_s = request.step_s or DEMAND_STEP_S
        if not (math.isfinite(step_s) and step_s >= 1 and math.isfinite(request.since_at)):
            text = (
                f"since_at {request.since_at:g}, step_s {step_s:g}: numbers, and steps from 1 s, are allowed"
            )
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        found = await _in(self._searchers, self._event_store.demand, request.since_at, step_s)
        return admin_pb2.ListDemandReply(
            samples=[
                admin_pb2.DemandSample(at=d.at, servers=d.servers, source=d.source)
                for d in found[-MOST_SAMPLES:]
            ]
        )

    async def ListEvents(  # type: ignore[override]  # noqa: N802
        self, request: admin_pb2.ListEventsRequest, context: _Context
    ) -> bytes:
        """The entries of the event store."""
        if unknown := sorted(set(request.kinds) - KINDS.keys()):
            text = f"there are no events of kind '{one_line(unknown[0], 40)}'; there are: {', '.join(KINDS)}"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        if not math.isfinite(request.since_at) or max(request.before, request.after) >= 1 << 62:
            text = f"since_at {request.since_at:g}, before {request.before}, after {request.after}: too far"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        visibility = await self._visibility(self._controller.view())
        search = Search(
            owner=visibility.caller if visibility.hidden.jobs else None,
            job_id=request.job_id or None,
            node=request.node,
            kinds=tuple(dict.fromkeys(request.kinds)),
            since=request.since_at,
            before=request.before,
            after=request.after,
            limit=min(request.limit or EVENTS, MOST_EVENTS),
            about_nodes=not visibility.hidden.nodes,
        )
        return await _in(self._searchers, self._found, search)

    def _found(self, search: Search) -> bytes:
        found = self._event_store.find(search)
        events = [event_message(event, number) for number, event in found.events]
        ends = {number: event.job for number, event in found.events if event.kind == "end" and event.job}
        facts = self._event_store.facts_of(tuple(ends)) if ends else {}
        for event in events:
            if known := facts.get(event.number):
                event.end.CopyFrom(_end(ends[event.number], known))
        reply = admin_pb2.ListEventsReply(events=events, before=found.before, newest=found.newest)
        return reply.SerializeToString()

    async def ListNodes(  # type: ignore[override]  # noqa: N802
        self, request: admin_pb2.ListNodesRequest, context: _Context
    ) -> bytes:
        """The nodes as of the last poll, and the order of pending jobs."""
        return await self._seen("nodes", _nodes)

    async def _seen(self, name: str, build: Callable[[View], Message]) -> bytes:
        """The result of `build` for what the caller may see, serialized."""
        view = self._controller.view()
        visibility = await self._visibility(view)
        if visibility.is_whole:
            return await self._once_a_view(name, build)
        return await _in(self._readers, lambda: build(visibility.of(view)).SerializeToString())

    async def _visibility(self, view: View) -> Visibility:
        """What the caller may see."""
        return await self._visibility_of(caller().uid, view)

    async def _visibility_of(self, uid: int, view: View) -> Visibility:
        """What a user may see. It takes a look-up of the user's name only where something is hidden."""
        hidden = privacy_of(view)
        visibility = Visibility(principal_of(uid), hidden)
        if visibility.is_whole or (
            principal_of(uid) not in hidden.readers and not await self._reads_all(uid)
        ):
            return visibility
        return Visibility(principal_of(uid), Privacy())

    async def _reads_all(self, uid: int) -> bool:
        return await self._administers(uid) or await asyncio.to_thread(account, uid) in self.readers

    async def _privacy(self, hidden: Privacy, visibility: Visibility) -> admin_pb2.Privacy:
        """What the cluster hides. Who sees everything is said only to those who do. Where nothing is hidden,
        no name is looked up: a directory that hangs must not keep the status from anybody."""
        reply = admin_pb2.Privacy(jobs=hidden.jobs, nodes=hidden.nodes, restricted=not visibility.is_whole)
        if visibility.is_whole and (hidden.jobs or hidden.nodes):
            uids = (0, os.getuid(), *(int(each) for each in hidden.readers if each.isdecimal()))
            names = await asyncio.to_thread(lambda: [account(uid) for uid in uids])
            reply.readers.extend(sorted({*names, *self.administrators, *self.readers}))
        return reply

    async def _visible_owner(self, job_id: int, context: _Context) -> str:
        """The name of a job's owner, also of a job that has ended; "" if it is not known. A job that the
        caller may not see is answered like one that there is not."""
        view = self._controller.view()
        found = await _in(self._readers, _owner_in_queue, job_id, view)
        if found is None:
            found = await _in(self._searchers, self._event_store.owner_of, job_id)
        owner, user = (None, "") if found is None else (found.owner, found.user)
        if not (await self._visibility(view)).shows_job_of(owner):
            await _abort(context, grpc.StatusCode.NOT_FOUND, f"job {job_id} is not in the queue")
        return user

    async def _once_a_view(self, name: str, build: Callable[[View], Message]) -> bytes:
        """The result of `build` for the present view, serialized. It is built once, for all callers."""
        view = self._controller.view()
        known = self._replies.get(name)
        if known is None or known[0] is not view:
            made = asyncio.ensure_future(_in(self._readers, lambda: build(view).SerializeToString()))
            known = self._replies[name] = (view, made)
        return await asyncio.shield(known[1])

    async def _words(
        self, key: JobKey, order: Order, context: _Context
    ) -> AsyncGenerator[Progress | CommandOutcome]:
        """The messages of the leader of `key` about `order`. The last one says that the order is done. If it
        fails, the call aborts."""
        try:
            connection = self._registry.connection_of(key)
            pending = connection.begin(order)
        except NoLeader as error:
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except LeaderBusy as error:
            await _abort(context, grpc.StatusCode.ABORTED, str(error))
        try:
            while True:
                async with asyncio.timeout(WORD_WITHIN_S):
                    word = await pending.next_word()
                if isinstance(word, CommandOutcome) and word.result is not Result.DONE:
                    failed = word.result is Result.FAILED
                    code = grpc.StatusCode.FAILED_PRECONDITION if failed else grpc.StatusCode.ABORTED
                    await _abort(context, code, f"job {key}: {word.text}")
                yield word
                if isinstance(word, CommandOutcome):
                    return
        except TimeoutError:
            text = f"the leader of job {key} has said nothing for {WORD_WITHIN_S:.0f} s"
            await _abort(context, grpc.StatusCode.ABORTED, text)
        finally:
            connection.give_up(pending)

    async def _steered(self, job_id: int, context: _Context) -> JobKey:
        """The running job of this number, if the caller may steer it; else the call aborts."""
        administers = await self._administers(caller().uid)
        if not administers:  # also for calls that are refused
            await self._refuse_too_many(caller().uid, context)
        view = await self._running(job_id, context)
        if not administers:
            await self._refuse_strangers(view, context)
        await self._refuse_too_many_of_job(view.job.key, administers, context)
        return view.job.key

    async def _running(self, job_id: int, context: _Context) -> JobView:
        view = next((view for view in self._controller.jobs() if view.job.key.job_id == job_id), None)
        if view is None:
            await _abort(context, grpc.StatusCode.NOT_FOUND, _not_running(job_id))
        return view

    async def _steered_for_viewer(self, job_id: int, viewer: int, context: _Context) -> JobView:
        """The running job of this number, if it is the viewer's and the caller may speak for viewers; else
        the call aborts. Neither the caller's own rights count here nor an administrator's, and nobody
        speaks for root. The viewer pays for commands, once the caller is believed."""
        if caller().uid not in self.web_accounts or viewer == 0:
            await self._refuse_too_many(caller().uid, context)
            speaker = "nobody steers for root" if caller().uid in self.web_accounts else _NO_WEB_ACCOUNT
            await self._deny(job_id, f"uid {caller().uid} may not steer for uid {viewer}: {speaker}", context)
        await self._refuse_too_many(viewer, context)
        view = await self._running(job_id, context)
        if principal_of(viewer) != view.owner:
            if not (await self._visibility_of(viewer, self._controller.view())).shows_job_of(view.owner):
                self._log.warning("steering denied", job=job_id, uid=caller().uid, viewer=viewer)
                await _abort(context, grpc.StatusCode.NOT_FOUND, _not_running(job_id))
            text = f"uid {viewer} may not steer job {view.job.key} on the web page: {view.job.user} may"
            await self._deny(job_id, text, context)
        await self._refuse_too_many_of_job(view.job.key, administers=False, context=context)
        return view

    async def _deny(self, job_id: int, text: str, context: _Context) -> NoReturn:
        self._log.warning("steering denied", job=job_id, uid=caller().uid, peer=context.peer(), why=text)
        await _abort(context, grpc.StatusCode.PERMISSION_DENIED, text)

    async def _administers(self, uid: int) -> bool:
        return uid in (0, os.getuid()) or await asyncio.to_thread(account, uid) in self.administrators

    async def _refuse_too_many(self, uid: int, context: _Context) -> None:
        if not self._steering.take(uid):
            await self._deny_for_rate(f"uid {uid}", self._budgets.steering_per_s, context)

    async def _refuse_too_many_of_job(self, key: JobKey, administers: bool, context: _Context) -> None:
        """Refuse the command if the job had too many. Every command is an event, and wakes the controller. An
        owner's commands are counted apart from administrators'."""
        if not self._steering_of_a_job.take((key, administers)):
            await self._deny_for_rate(f"job {key}", self._budgets.job_steering_per_s, context)

    async def _deny_for_rate(self, who: str, rate: float, context: _Context) -> NoReturn:
        text = f"{who}: too many commands, {rate:g} a second are allowed in the long run; try again later"
        self._log.warning("steering denied", uid=caller().uid, peer=context.peer(), why=text)
        await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    async def _refuse_strangers(self, view: JobView, context: _Context) -> None:
        uid = caller().uid
        if principal_of(uid) == view.owner:
            return
        if not (await self._visibility(self._controller.view())).shows_job_of(view.owner):
            why = "the cluster hides others' jobs"
            self._log.warning("steering denied", job=str(view.job.key), uid=uid, peer=context.peer(), why=why)
            await _abort(context, grpc.StatusCode.NOT_FOUND, _not_running(view.job.key.job_id))
        may = dict.fromkeys((view.job.user, "root", account(os.getuid()), *self.administrators))
        text = f"uid {uid} may not steer job {view.job.key}: {', '.join(may)} may"
        await self._deny(view.job.key.job_id, text, context)


def _owner_in_queue(job_id: int, view: View) -> JobOwner | None:
    jobs = view.state.jobs if view.state else ()
    return next((JobOwner(job_id, job.owner, job.user) for job in jobs if job.job_id == job_id), None)


def _not_running(job_id: int) -> str:
    return f"there is no running elastic job {job_id}"


async def _in(threads: Executor, work: Callable[..., _T], *arguments: object) -> _T:
    """The result of `work`, done by one of `threads`."""
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)


async def _or_abort(context: _Context, steer: Callable[..., _T], *arguments: object) -> _T:
    """The controller's answer. If the controller refuses, the call aborts."""
    try:
        return await asyncio.to_thread(steer, *arguments)
    except UnknownJob as error:
        await _abort(context, grpc.StatusCode.NOT_FOUND, str(error))
    except BadScale as error:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Busy as error:
        await _abort(context, grpc.StatusCode.ABORTED, str(error))
    except NotSteered as error:
        await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))


async def _abort(context: _Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)


def _status(status: ControllerStatus) -> admin_pb2.GetStatusReply:
    return admin_pb2.GetStatusReply(
        flexod_version=flexo.__version__,
        slurm_version=status.version,
        software=status.software,
        cluster=status.cluster,
        started_at=status.started_at,
        policy=status.policy,
        dry_run=status.dry_run,
        interval_s=status.interval_s,
        last_cycle_at=status.last_cycle_at,
        read_cost_s=status.read_cost_s,
        trouble=status.trouble,
        troubles=status.troubles,
        needs_restart=status.needs_restart,
        nodes=status.nodes,
        gpus=rounded_up(status.gpus, 1),
        gpus_idle=int(status.gpus_idle),
        gpus_in_satellites=rounded_up(status.gpus_in_satellites, 1),
        elastic_jobs=status.elastic_jobs,
        leaders=status.leaders,
        slow_gpus=[
            admin_pb2.SlowGpuView(
                node=gpu.node,
                gpus=gpu.gpus,
                ratio=gpu.ratio,
                job_id=gpu.job.job_id,
                seen_at=gpu.seen_at,
                until_at=gpu.until_at,
            )
            for gpu in status.slow_gpus
        ],
        lending=None if status.loans is None else lending_view(status.loans),
        unknown_satellites=status.unknown_satellites,
        pool=None if status.aggregation is None else _pool(status.aggregation),
        satellite_partitions=status.satellite_partitions,
        sharing_partition=status.sharing_partition,
    )


def _pool(view: AggregationView) -> admin_pb2.PoolView:
    aggregators = [
        admin_pb2.PoolAggregatorView(
            name=each.name,
            jobs=len(each.jobs),
            use=each.planned_use,
            memory_bytes=each.memory,
            memory_limit_bytes=each.memory_limit,
            flexo_version=each.release,
            cores_used=each.used_cores,
            gradient_bytes=each.gradients,
            job_ids=[key.job_id for key in each.jobs],
            slurm_job_id=each.cluster_job,
            node=each.node,
        )
        for each in view.aggregators
    ]
    return admin_pb2.PoolView(
        aggregators=aggregators, wanted=view.wanted, jobs=len(view.jobs), reverts=view.reverts
    )


def _point(point: ScalingPoint) -> admin_pb2.ScalingPoint:
    return admin_pb2.ScalingPoint(
        workers=point.workers,
        samples_per_s=point.samples_per_s,
        step_s=point.step_s,
        sync_s=point.sync_s,
        efficiency=point.efficiency,
        batches=point.batches,
        measured_at=point.measured_at,
    )


def event_message(event: Event, number: int = 0) -> admin_pb2.Event:
    """The message for an event, whatever the store has of it. A job id that no cluster has, as a user may
    have written one, is left out: the event's text has it."""
    key = event.job or JobKey(0)
    known = 0 <= key.job_id <= _UINT64 and 0 <= key.restart_count <= _UINT32
    change = change_of(event.kind, event.text)
    return admin_pb2.Event(
        at=event.at,
        kind=event.kind,
        text=event.text,
        number=number,
        job_id=key.job_id if known else 0,
        restart_count=key.restart_count if known else 0,
        grant=None if change is None else _grant_change(change),
    )


def _grant_change(change: GrantChange) -> admin_pb2.GrantChange:
    return admin_pb2.GrantChange(node=change.node, workers=change.workers, begins=change.begins)


def _nodes(view: View) -> admin_pb2.ListNodesReply:
    nodes = view.state.nodes if view.state else ()
    return admin_pb2.ListNodesReply(
        nodes=[node_view(node, view.told.nodes.get(node.name, 0)) for node in nodes],
        order=[key.job_id for key in view.order],
    )


def _node_names(said: Iterable[str]) -> tuple[str, ...]:
    """The nodes that a caller names, without empty names."""
    return tuple(filter(None, (one_line(name, 255) for name in said)))


async def _caller_name() -> str:
    """The caller's account, for people. The look-up may take long."""
    return await asyncio.to_thread(account, caller().uid)


def _jobs(view: View) -> admin_pb2.ListJobsReply:
    why = reasons(view)
    return admin_pb2.ListJobsReply(
        jobs=[_job(each, why.get(each.job.key, ()), view) for each in view.jobs],
        waiting=_waiting(view),
    )


def _waiting(view: View) -> Iterator[admin_pb2.WaitingJob]:
    """The elastic jobs that are pending."""
    if view.state is None:
        return
    place = places(view)
    for job in view.state.jobs:
        if job.state is JobState.PENDING and job.elastic is not None and job.satellite is None:
            yield admin_pb2.WaitingJob(
                job_id=job.job_id,
                restart_count=job.restart_count,
                user=job.user,
                min=job.elastic.workers.min,
                max=job.elastic.workers.max,
                reason=job.reason,
                submitted_at=job.submitted_at,
                starts_at=planned_start(job, view.state.at),
                waits_for=job.wait.value,
                name=one_line(job.name, NAME_LENGTH),
                account=job.account,
                partition=",".join(job.partitions),
                place=place.get(job.key, 0),
                reason_event=view.told.jobs.get(job.key, 0),
            )


def _end(key: JobKey, facts: str) -> admin_pb2.JobEnd:
    """The end of a job, from the facts that control/ended.py wrote beside the event."""
    fields = admin_pb2.JobEnd.DESCRIPTOR.fields_by_name
    known = {name: value for name, value in json.loads(facts or "{}").items() if value and name in fields}
    return admin_pb2.JobEnd(restart_count=key.restart_count, **known)


def node_view(node: Node, idle_event: int) -> admin_pb2.NodeView:
    """A node, as `flexo status` and its JSON show it. `idle_event`: why its idle GPUs stay idle; 0: none."""
    return admin_pb2.NodeView(
        name=node.name,
        gpus=rounded_up(node.gpus, 1),
        gpus_allocated=rounded_up(node.allocated.gpus, 1),
        gpu_type=node.gpu_type,
        unusable=node.unusable,
        partitions=sorted(node.partitions),
        capacity=to_message(node.capacity),
        allocated=to_message(node.allocated),
        idle_event=idle_event,
    )


def _job(view: JobView, reasons: Sequence[str], all_of_it: View) -> admin_pb2.ElasticJob:
    job = view.job
    return admin_pb2.ElasticJob(
        job_id=job.key.job_id,
        restart_count=job.key.restart_count,
        user=job.user,
        min=job.workers.min,
        max=job.workers.max,
        workers=job.training_workers,
        granted=job.granted_workers,
        gpus_per_worker=rounded_up(job.shape.gpus, 1),
        worker=to_message(job.shape),
        wanted=job.wanted or 0,
        attached=view.attached,
        scalable=job.scalable,
        batches_committed=view.batches_committed,
        base_nodes=job.base_nodes,
        grants=map(_grant, job.grants),
        scaling=map(_point, view.scaling),
        pending_command=job.pending_command,
        batch=view.batch,
        progress=view.progress,
        left_s=view.left.seconds if view.left else 0.0,
        left_by=view.left.source.value if view.left else "",
        reasons=reasons,
        suspended=job.suspended,
        opportunistic=job.opportunistic,
        paused=job.paused,
        shared_gpus=[_shared_gpu(pair) for pair in all_of_it.pairs if job.key in (pair.holder, pair.guest)],
        aggregation=_aggregation(job, all_of_it.pooled(job.key)),
        name=one_line(view.name, NAME_LENGTH),
        account=job.account,
        partition=view.partition,
        started_at=view.started_at,
        resizes=job.resizes,
        paused_s=job.paused_s,
        tried_worker_s=job.tried_worker_s,
        reason_event=all_of_it.told.jobs.get(job.key, 0),
        silent_since_at=view.silent_since,
        silent_event=all_of_it.told.silent.get(job.key, 0),
    )


def _grant(grant: Grant) -> admin_pb2.GrantView:
    return admin_pb2.GrantView(
        grant_id=grant.grant_id,
        node=grant.node,
        workers=grant.workers,
        state=grant.state.value,
        slurm_job_id=grant.satellite_job_id,
        since_at=grant.since_at,
        shared_gpus=[gpu for _, gpu in gpus_of(grant)],
    )


def _aggregation(job: ElasticJob, pooled: PooledJobView | None) -> admin_pb2.JobAggregation | None:
    """Who sums a job's gradients. `pooled`: what flexod assigns; None: nothing."""
    use = job.aggregation
    if use is None:
        return None
    if pooled is None:
        grants = job.aggregators.grants
        sums = sum(grant.state is SatelliteState.TRAINING for grant in grants)
        return admin_pb2.JobAggregation(
            wants_pool=use.wants_pool, satellites=sums, grants=map(_grant, grants), auto=use.auto
        )
    shares = [admin_pb2.JobAggregator(name=each.name, share=each.share) for each in pooled.aggregators]
    return admin_pb2.JobAggregation(
        wants_pool=use.wants_pool,
        state=pooled.state,
        aggregators=shares,
        alone_s=pooled.alone_s,
        now_s=pooled.now_s,
        loss=pooled.loss,
        auto=use.auto,
    )


def _shared_gpu(pair: Pair) -> admin_pb2.SharedGpuView:
    return admin_pb2.SharedGpuView(
        node=pair.use.node,
        gpu=pair.use.gpu,
        holder=pair.holder.job_id,
        guest=pair.guest.job_id if pair.guest else 0,
        utilization=pair.use.utilization,
        slowdown=pair.use.slowdown,
        opportunistic_share=pair.use.opportunistic_share,
    )
