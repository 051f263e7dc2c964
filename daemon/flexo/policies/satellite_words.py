"""The texts on satellites for people: why a job gets a satellite or gives it back, and why it has its
size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice

from flexo.model.elastic import ElasticJob
from flexo.model.plans import Note
from flexo.policies.node_capacity import HeldGrant, NodeCapacity
from flexo.policies.pending import Reservation
from flexo.policies.satellite_plan import JobInPlan, PlanInMaking
from flexo.words import duration

_REASONS = 4
"""The most reasons in a text on why a job has no room: a cluster of thousands of nodes may have thousands."""


# Texts on changes.


def above_ceiling(job: ElasticJob) -> str:
    """The text for a job that gives a satellite back because it may not have this number of workers."""
    who = "its cap" if job.wanted is not None else "its maximum"
    return f"job {job.key} has {job.granted_workers} workers, {who} is {job.ceiling}"


def for_pending(claim: Reservation, standing: HeldGrant) -> str:
    """The text for a satellite that makes room for a pending job."""
    workers = _count(standing.grant.workers, "worker")
    return (
        f"pending job {claim.job.job_id} ({claim.job.user}) can start on {_list(claim.nodes)}"
        f" once these {workers} on {standing.grant.node} have left"
    )


def grows(job: ElasticJob, node: str, workers: int, before: int) -> str:
    """The text for a job that gets a satellite."""
    room = f"{node} has idle GPUs for {_count(workers, 'worker')}"
    return f"{room}; job {job.key} has {before} of {job.ceiling}"


def above_target(job: JobInPlan) -> str:
    """The text for a job that gives a satellite back because its policy has it smaller now."""
    return job.target.why or f"its due is {job.target.workers} workers now"


def for_poorer(poor: JobInPlan, rich: JobInPlan, node: str) -> str:
    """The text for a satellite of one job that makes room for another."""
    return (
        f"job {poor.job.key} has only {poor.workers} of {poor.target.workers} workers,"
        f" job {rich.job.key} has {rich.workers}:"
        f" {node} is shared out anew"
    )


def no_more_satellites(max_satellites: int | None) -> str:
    """The text for a job that gets no satellite because the administrator allows no more of them."""
    return f"as many satellites as there may be ({max_satellites}, max_satellites) run or are on their way"


def _why_unscalable(job: JobInPlan) -> str:
    if not job.job.attached:
        return "no leader of it is connected, so it cannot be resized"
    never_yet = "the script has not begun its training loop yet, so it cannot be resized"
    return job.job.unscalable_why or never_yet


def _device(job: ElasticJob) -> str:
    """What a worker of the job needs most: ``a100``, ``GPU``, or ``CPU``."""
    return job.shape.gpu_type or ("GPU" if job.shape.gpus else "CPU")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _list(names: Sequence[str]) -> str:
    """A list of names, such as ``t1, t2, t3 and 3 more``."""
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


# Texts on the size of a job.


@dataclass(frozen=True, slots=True)
class Why:
    """The reason for a job's size: in a few words, and what follows them in a sentence."""

    brief: str
    more: str = ""
    cause: str = ""
    """See `Note`."""


def _lasting(brief: str) -> Why:
    """A reason whose words stay the same for as long as it stands."""
    return Why(brief, cause=brief)


class Words:
    """Makes the note on each job once the plan is made."""

    def __init__(self, plan: PlanInMaking) -> None:
        self._plan = plan

    def note(self, job: JobInPlan) -> Note:
        """The number of workers that the job has, and why it has no more."""
        why = self._why(job)
        # Not all of them train while a satellite starts, which other texts say beside this one.
        granted = " granted" if any(grant.starting for grant in job.job.grants) else ""
        text = f"{job.before} of {job.job.ceiling} workers{granted}: {why.brief}{why.more}"
        return Note(job.job.key, text, why.brief, why.cause)

    def _why(self, job: JobInPlan) -> Why:
        now = self._plan.now
        rests = job.steady and job.job.rest_until > now and job.before < job.job.ceiling
        if job.before >= job.target.workers and not rests:
            return self._why_no_more(job)
        return self._why_not_yet(job) or self._no_room(job)

    def _why_not_yet(self, job: JobInPlan) -> Why | None:
        """The reason of a job that is due more workers: how it changes, or what keeps it. None: no room
        does."""
        if not job.job.scalable:
            return _lasting(_why_unscalable(job))
        command = job.job.pending_command
        if command and job.job.key not in self._plan.resting:
            return _lasting(f"is not resized while a {command} is under way")
        change = self._change(job)
        return Why(change) if change else None

    def _change(self, job: JobInPlan) -> str:
        """How the job changes, or rests after a change. An event has each of these reasons."""
        now = self._plan.now
        if job.job.key in self._plan.resting:
            return "gives workers back now"
        if job.dealt and job.may_grow_at <= now and not any(self._plan.may_begin(job)):
            grants = sum(grant.workers for grant in job.job.grants)
            leaving = grants + job.job.base_workers - job.before
            return f"grows when its {_count(leaving, 'worker')} on the way out have left"
        if job.dealt and job.may_grow_at <= now:
            granted = ", ".join(f"{workers} more on {node}" for node, workers in job.dealt.items())
            return f"is granted {granted}"
        if job.job.rest_until > now:
            return f"waits {duration(job.job.rest_until - now)}, because its last grant came to nothing"
        if job.may_grow_at > now:
            kept = f"; {_count(sum(job.dealt.values()), 'worker')} kept for it" if job.dealt else ""
            return f"waits {duration(job.may_grow_at - now)} before its next resize{kept}"
        return ""

    def _why_no_more(self, job: JobInPlan) -> Why:
        if job.target.workers < job.job.ceiling:
            if job.before > job.target.workers:
                return self._why_not_fewer(job)
            why = job.target.why
            return Why(why, cause="the policy") if why else self._why_not_due(job)
        if job.job.wanted is not None and job.job.ceiling < job.job.workers.max:
            by = f" by {job.job.capped_by}" if job.job.capped_by else ""
            return Why(f"capped at {job.job.wanted}{by}", f"; the maximum is {job.job.workers.max}")
        # Of a job that has grown to it, the events say how.
        return Why("all that it can use", cause="" if job.job.grants else "the maximum")

    def _why_not_fewer(self, job: JobInPlan) -> Why:
        """The text for a job that has more than its policy leaves it: satellites leave as a whole, and only
        for jobs that find room in their place."""
        if job.job.key in self._plan.resting:
            return Why("gives workers back now")
        keeps = f"keeps {_count(job.before, 'worker')}"
        due = f" and not the {job.target.workers} that are due to it"
        if not job.steady:
            return Why(keeps, f"{due}: it cannot be resized now", cause="not steady")
        if job.rested_at > self._plan.now:
            wait = duration(job.rested_at - self._plan.now)
            return Why(f"waits {wait} before its next resize", f": {job.target.workers} are due to it")
        satellites = self._plan.satellites_of(job.job)
        sizes = [each.grant.workers for each in satellites if self._plan.may_give(job, each)]
        if not sizes:
            return Why(keeps, f"{due}: none of its satellites can be taken yet", cause="none can be taken")
        if min(sizes) > job.before - job.target.workers:
            smallest = f"its smallest one has {_count(min(sizes), 'worker')}"
            return Why(keeps, f"{due}: a satellite leaves as a whole, and {smallest}", cause="as a whole")
        return Why(keeps, f"{due}: no other job could use what it would give back", cause="nobody needs it")

    def _why_not_due(self, job: JobInPlan) -> Why:
        """The text for a job whose policy leaves it as it is: there is no room, or others have more use for
        it."""
        if not job.job.scalable:
            return _lasting(_why_unscalable(job))
        if self._plan.room_for(job):
            return _lasting(f"the policy gives it {job.target.workers} for now")
        return self._no_room(job)

    def _no_room(self, job: JobInPlan) -> Why:
        partition = self._plan.snapshot.satellite_partition
        if not self._plan.nodes and not self._plan.slow:
            return _lasting(f"partition {partition} has no nodes that are up")
        if not self._plan.satellites_left and self._plan.room_for(job):
            return _lasting(no_more_satellites(self._plan.max_satellites))
        reasons = chain(
            self._kept_for_pending(job),
            self._closed_nodes(job),
            self._slow_nodes(job),
            self._wanted_back_soon(job),
            self._not_permitted(job),
            self._of_another_type(job),
            self._gpus_without_cpus(job),
        )
        said = list(islice(reasons, _REASONS))
        if not said:
            on_loan = " or on loan" if self._plan.lent else ""
            brief = f"no idle {_device(job.job)}"
            return Why(brief, f" on any node of partition {partition}{on_loan}", cause=brief)
        more = [*(why.brief for why in said[1:]), *(["and so on"] if any(True for _ in reasons) else [])]
        return replace(said[0], more="".join(f"; {each}" for each in more))

    def _kept_for_pending(self, job: JobInPlan) -> Iterator[Why]:
        for claim in self._plan.claims:
            if any(name in self._plan.idle_for and name not in job.closed for name in claim.nodes):
                who = f"job {claim.job.job_id} (pending, {claim.job.user})"
                yield Why(f"{who} is about to start on {_list(claim.nodes)}", cause=f"kept for {who}")

    def _closed_nodes(self, job: JobInPlan) -> Iterator[Why]:
        now = self._plan.now
        slow = self._plan.slow_of.get(job.job.user, {}).keys()
        for name in sorted((job.closed & self._plan.idle_for.keys()) - slow):
            room = self._plan.rooms[name]
            if not room.idle.holds(job.job.shape):
                continue
            retry_at = job.job.retry_at.get(name, 0.0)
            if retry_at > now:
                yield Why(f"{name} failed it and is tried again in {duration(retry_at - now)}")
            else:
                beside = "has idle GPUs beside the job's own satellite there, which keeps its size"
                yield Why(f"{name} {beside}", cause=beside)

    def _slow_nodes(self, job: JobInPlan) -> Iterator[Why]:
        of_user = self._plan.slow_of.get(job.job.user, {})
        for name in sorted(self._plan.rooms.keys() & {*self._plan.left_alone, *of_user}):
            room, slow = self._plan.rooms[name], self._plan.slow.get(name) or of_user[name]
            if room.idle.holds(job.job.shape):
                left_s = slow.until_at - self._plan.now
                yield Why(f"{name} is left alone for {duration(left_s)} more: {slow}", cause="slow GPUs")

    def _wanted_back_soon(self, job: JobInPlan) -> Iterator[Why]:
        pays = partial(self._plan.pays_with, job)
        for name in self._plan.index.not_paying(self._plan.kind(job.job), pays):
            stay = f"about {duration(self._plan.idle_for[name])}"
            text = f"{name} has idle GPUs, but they are likely to stay for {stay}: too short to pay"
            yield Why(text, cause="too short to pay")

    def _not_permitted(self, job: JobInPlan) -> Iterator[Why]:
        for room in self._with_idle_gpus:
            why_not = job.job.node_filter.why_not(room.node)
            if why_not and room.idle.gpus >= job.job.shape.gpus:
                yield Why(f"{room.node.name} has idle GPUs, but {why_not}", cause="not permitted")

    def _of_another_type(self, job: JobInPlan) -> Iterator[Why]:
        for room in self._with_idle_gpus:
            name, permitted = room.node.name, job.job.node_filter.permits(room.node)
            if permitted and room.idle.gpus >= job.job.shape.gpus > 0 and not self._plan.suits(job.job, name):
                which = f"{name}, on loan," if name in self._plan.lent else name
                kind = room.node.gpu_type or "of another type"
                text = f"{which} has idle GPUs, but they are {kind} and the job runs on another type"
                yield Why(text, cause="of another type")

    def _gpus_without_cpus(self, job: JobInPlan) -> Iterator[Why]:
        shape = job.job.shape
        for room in self._with_idle_gpus:
            if not shape.gpus or room.idle.gpus < shape.gpus or room.idle.holds(shape):
                continue
            if shape.gpu_type and shape.gpu_type != room.node.gpu_type:
                text = f"the idle GPUs of {room.node.name} are not of type {shape.gpu_type}"
                yield Why(text, cause="of another type")
            else:
                text = f"{room.node.name} has idle GPUs but not the CPUs or memory of a worker"
                yield Why(text, cause="not the CPUs or memory")

    @cached_property
    def _with_idle_gpus(self) -> list[NodeCapacity]:
        """Nodes that have idle GPUs left after dealing."""
        return [room for name in self._plan.nodes if (room := self._plan.rooms[name]).idle.gpus]
