"""Owners' limits for their jobs: caps on workers, nodes for growth, and satellites to give up.

Resizes of one job are sequential (Amoeba, section 5.2), so a request may have to wait for the one before.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final

from flexo.control.state_store import StateStore
from flexo.control.views import JobView
from flexo.model.elastic import Cap, ElasticJob
from flexo.model.nodes import Node
from flexo.model.queue import JobKey
from flexo.words import workers as workers_of

_CAP_OUTLIVES_JOB_S: Final = 600.0
"""The time that a cap outlives its job in the queue. A job that one poll does not show may be there in the
next, as when the cluster's controller restarts."""


class BadScale(ValueError):
    """A request outside of what the job can have; the message says what is allowed."""


class Busy(Exception):
    """The job is being resized or profiled. Such operations are sequential: try again later."""


class NotSteered(Exception):
    """The job cannot be resized now, and a retry soon will not help; the message says why."""


class ScaleOverrides:
    """The requests of owners that stand. May be used from any thread but for `take_given_up` and
    `forget_old`."""

    def __init__(self, event_store: StateStore, started_at: float) -> None:
        self._event_store = event_store
        self._started_at = started_at
        self._steering = threading.Lock()
        """Held by one owner's request from its checks until its cap is in the event store."""
        self._lock = threading.Lock()
        """Held for a moment, also by the loop, which waits for no disk here."""
        self._caps = event_store.caps()
        self._given_up: dict[JobKey, tuple[str, ...]] = {}
        """Grants that their owners give back (`scale_in` with nodes), until the loop takes them."""
        self._capped_at: dict[JobKey, float] = {}
        """The time when each capped job was last in the queue."""

    # Requests of owners.

    def scale(self, job: ElasticJob, workers: int | None, by: str = "") -> str:
        """Cap `job` at `workers`; None: remove the cap. `by`: who asked for it, and where, as in the requests
        below. Returns what happens now. Raises BadScale."""
        if workers is not None and job.workers.clamp(workers) != workers:
            raise BadScale(f"job {job.key} can have {job.workers} workers, not {workers}")
        with self._steering:
            self._cap(job.key, None if workers is None else Cap(workers, by=by))
        return _scaled(job, workers)

    def scale_out(self, view: JobView, workers: int, nodes: Sequence[Node] = (), by: str = "") -> str:
        """Give the job `workers` more, on `nodes` if they are named. Returns what happens now. Raises
        BadScale, Busy, NotSteered.

        If two requests come at the same time or in a row, the second raises Busy, so that none is lost.
        """
        with self._steering:
            self.check_resizable(view)
            job = view.job
            have, most = job.granted_workers, job.workers.max
            if workers < 1 or have + workers > most:
                name = f"job {job.key} has {have} workers"
                text = f"{name} and can have {most}: 1 to {most - have} more are allowed"
                raise BadScale(text if have < most else f"{name}, which is its maximum")
            _check_growth(job, nodes)
            self._cap(job.key, Cap(have + workers, frozenset(node.name for node in nodes), by))
        return _scaled(job, have + workers) + (f", on {_names(nodes)} only" if nodes else "")

    def scale_in(self, view: JobView, workers: int, nodes: Sequence[str], by: str = "") -> str:
        """Take `workers` from the job or, with `nodes`, its satellites there: all of them or, if one is
        missing, none. Returns and raises as `scale_out`."""
        with self._steering:
            self.check_resizable(view)
            job = view.job
            if nodes:
                return self._give_up(job, tuple(dict.fromkeys(nodes)), by)
            have, least = job.granted_workers, job.base_workers
            if workers < 1 or have - workers < least:
                name = f"job {job.key} has"
                text = f"{name} {have} workers, {least} in its base: 1 to {have - least} fewer are allowed"
                raise BadScale(text if have > least else f"{name} only its base of {workers_of(least)}")
            self._cap(job.key, Cap(have - workers, by=by))
        return _scaled(job, have - workers)

    def _give_up(self, job: ElasticJob, nodes: tuple[str, ...], by: str) -> str:
        by_node = {grant.node: grant for grant in job.grants}
        missing = next((node for node in nodes if node not in by_node), None)
        if missing is not None:
            raise BadScale(f"job {job.key} has no satellite on '{missing}': {_where(job)}")
        grants = [by_node[node] for node in nodes]
        workers = sum(grant.workers for grant in grants)
        with self._lock:
            self._given_up[job.key] = tuple(grant.grant_id for grant in grants)
        self._cap(job.key, Cap(job.granted_workers - workers, by=by))
        return f"job {job.key} gives back its {workers_of(workers)} on {', '.join(nodes)}"

    def cap_of(self, key: JobKey) -> Cap | None:
        """The owner's cap; None: there is none."""
        with self._lock:
            return self._caps.get(key)

    def _cap(self, key: JobKey, cap: Cap | None) -> None:
        with self._lock:
            if self._caps.get(key) == cap:
                return
            if cap is None:
                self._caps.pop(key, None)
            else:
                self._caps[key] = cap
        self._event_store.set_cap(key, cap)

    def check_resizable(self, view: JobView) -> None:
        """Check that the job may be resized now. Raises Busy, NotSteered."""
        job = view.job
        if job.workers.min == job.workers.max:
            only = workers_of(job.workers.min)
            raise NotSteered(f"job {job.key} has {only} and keeps them: its range is {job.workers}")
        if job.suspended:
            raise NotSteered(f"job {job.key} is suspended: it can be steered again once it is resumed")
        if not view.attached:
            raise NotSteered(f"job {job.key} has no leader attached to flexod, which could resize it")
        if not job.scalable:
            why = job.unscalable_why or "the script has not begun its training loop yet"
            raise NotSteered(f"job {job.key}: {why}")
        with self._lock:
            cap = self._caps.get(job.key)
            asked = (cap.workers if cap else None) != job.wanted
        moving = [
            f"{grant.workers} on {grant.node} {grant.state.value}" for grant in job.grants if grant.moving
        ]
        if asked or moving or job.changing:
            text = ", ".join(moving) or "it has only just begun"
            raise Busy(f"job {job.key} is being resized ({text}): try again later")
        if job.pending_command:
            raise Busy(
                f"job {job.key} is not resized while a {job.pending_command} is under way: try again later"
            )

    # Methods for the loop.

    def caps(self) -> Mapping[JobKey, Cap]:
        """All caps that stand."""
        with self._lock:
            return dict(self._caps)

    def take_given_up(self) -> Mapping[JobKey, tuple[str, ...]]:
        """The grants that owners have given back since the last call."""
        with self._lock:
            given_up, self._given_up = self._given_up, {}
        return given_up

    def forget_old(self, queued: Container[JobKey], now: float) -> None:
        """Forget the caps of jobs that have not been in the queue for long."""
        self._capped_at = {
            key: now if key in queued else self._capped_at.get(key, self._started_at) for key in self.caps()
        }
        for key, seen_at in self._capped_at.items():
            if now - seen_at > _CAP_OUTLIVES_JOB_S:
                with self._steering:
                    self._cap(key, None)


def _check_growth(job: ElasticJob, nodes: Sequence[Node]) -> None:
    """Check that the job's own request permits each of the nodes that its owner names. Raises BadScale."""
    own = replace(job.node_filter, only=frozenset())
    for node in nodes:
        if why_not := own.why_not(node):
            raise BadScale(f"job {job.key} cannot grow on {node.name}: {why_not}")


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes)


def _where(job: ElasticJob) -> str:
    return ", ".join(grant.node for grant in job.grants) or "it has only its base"


def _scaled(job: ElasticJob, workers: int | None) -> str:
    if workers is None:
        return f"job {job.key} may have all of {job.workers} workers again"
    now = job.granted_workers
    has = f"job {job.key} has {workers_of(now)}"
    if now > workers:
        return f"{has} and gives back whole satellites until it has at most {workers}"
    return f"{has} and grows to at most {workers}"
