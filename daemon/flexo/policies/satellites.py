"""The planner for jobs that grow by satellites: it grants and takes back satellites to reach a policy's
targets.

Pending jobs come first, then idle GPUs. The policy decides how many workers a job shall have (`Targets`), and
the planner on which nodes they are. The plan is a pure function of the snapshot. Applied again and again to a
cluster that carries its plans out, the planner comes to rest: while targets stay the same, each step brings
some job nearer to its target and none past it.

The steps: `satellite_exchange` takes satellites for the sake of others, and `satellite_dealing` grants new
ones. `satellite_plan` is the state that the steps share, and `satellite_words` makes the texts for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from flexo.model.elastic import ElasticJob
from flexo.model.nodes import WANTED_EMPTY
from flexo.model.plans import Batch, Grow, Plan, Snapshot
from flexo.model.queue import JobKey
from flexo.policies import satellite_words as words
from flexo.policies.base import Policy, Target, Targets
from flexo.policies.node_capacity import HeldGrant, NodeCapacity
from flexo.policies.pending import settle_claims
from flexo.policies.resize_benefit import batch_of
from flexo.policies.satellite_dealing import deal_idle, grant_dealt
from flexo.policies.satellite_exchange import give_back_excess, rebalance
from flexo.policies.satellite_plan import JobInPlan, PlanInMaking
from flexo.policies.satellite_targets import in_whole_units, targets_of, whole

_EXACT_CAP_UP_TO = 12
"""The most satellites of one job of which every combination is tried when its owner caps it."""


def plan(
    policy: Policy, snapshot: Snapshot, min_resize_interval_s: float, max_satellites: int | None = None
) -> Plan:
    """The changes now, and the reason for every elastic job.

    `min_resize_interval_s`: the least time between two resizes of one job. It delays growing, and giving back
    for other elastic jobs. It does not delay giving back for pending jobs, for a node that is to be empty, or
    for the job's own limits. `max_satellites`: no grant makes more satellites of all jobs together, those
    that are leaving included. Over the limit, fewer jobs grow, each by more workers. None: no limit.
    """
    return _Planner(policy, PlanInMaking(snapshot, min_resize_interval_s, max_satellites)).plan()


class _Planner:
    """Runs the steps, in their order."""

    def __init__(self, policy: Policy, plan: PlanInMaking) -> None:
        self._policy = policy
        self._plan = plan
        self._rooms: Mapping[str, NodeCapacity] = {}
        """The nodes on which some job's satellites pay."""

    def plan(self) -> Plan:
        plan = self._plan
        self._clear_nodes()
        for job in plan.snapshot.elastic:
            self._respect_ceiling(job)
        self._serve_pending()
        plan.settle_jobs()
        self._take_targets()
        if not plan.evenly:
            give_back_excess(plan)
        more = {} if plan.evenly or plan.satellites_are_few else self._more_for_others()
        deal_idle(plan)
        self._deal_more(more)
        grant_dealt(plan)
        rebalance(plan)
        note = words.Words(plan).note
        return Plan(
            actions=tuple(plan.actions),
            batches=tuple(self._batches()),
            notes=tuple(note(job) for job in plan.jobs.values()),
            set_aside=tuple(claim.job.job_id for claim in plan.claims),
        )

    # The steps before any job grows.

    def _clear_nodes(self) -> None:
        """Withdraw satellites from the nodes that an administrator wants empty. They never end by themselves,
        because flexod extends their time limits."""
        for name, room in self._plan.rooms.items():
            for condition in sorted(each.value for each in room.node.conditions & WANTED_EMPTY):
                for standing in tuple(room.standing):
                    room.take_back(standing)
                    self._plan.withdraw(standing, f"{name} is wanted empty ({condition})")

    def _respect_ceiling(self, job: ElasticJob) -> None:
        """Withdraw satellites of a job that has more workers than it may have: those nearest to the excess
        from above."""
        mine = self._plan.satellites_of(job)
        excess = job.base_workers + sum(each.grant.workers for each in mine) - job.ceiling
        if excess <= 0:
            return
        for standing in _fewest_workers(mine, excess):
            self._plan.rooms[standing.grant.node].take_back(standing)
            self._plan.withdraw(standing, words.above_ceiling(job), of_itself=True)

    def _serve_pending(self) -> None:
        plan = self._plan
        plan.claims, plan.rooms = settle_claims(plan.snapshot, plan.rooms)
        for claim in plan.claims:
            for standing in claim.taken_back:
                plan.withdraw(standing, words.for_pending(claim, standing))

    # The targets of the policy.

    def _take_targets(self) -> None:
        """Set the target of each job: the policy's size, within the limits of the job and of the
        satellites."""
        plan = self._plan
        # chosen before targets are known: first targets are too small to say where a larger one would pay
        self._rooms = {name: plan.rooms[name] for name in self._paying_nodes()}
        self._ask_policy()
        growing = [job for job in plan.jobs.values() if plan.takes_part(job)]
        plan.satellites_are_few = len(growing) > plan.satellites_left
        if not plan.satellites_are_few:
            return
        left_out = self._left_out(growing)
        if left_out:
            # the GPUs that these jobs would have had are shared out among the others
            self._ask_policy(left_out)
        for key, job in plan.jobs.items():
            if key in left_out:
                why = words.no_more_satellites(plan.max_satellites)
                job.target = Target(key, job.workers, why, job.target.samples)
            elif job.target.workers < job.workers:
                # the policy would shrink it for others that cannot grow, and would do so again and again
                job.target = replace(job.target, workers=job.workers)

    def _ask_policy(self, left_out: Container[JobKey] = ()) -> None:
        plan = self._plan
        jobs = [job for job in self._as_they_will_be() if job.key not in left_out]
        targets = self._targets(jobs)
        plan.evenly = targets.evenly
        rounded = in_whole_units(plan, targets.jobs)
        if rounded and not plan.evenly:
            # what is less than a unit is for jobs that can use it
            targets = self._targets(jobs, rounded)
        for target in targets.jobs:
            if job := plan.jobs.get(target.job):
                job.target = whole(job.job, target, rounded.get(target.job))

    def _targets(self, jobs: Sequence[ElasticJob], caps: Mapping[JobKey, int] | None = None) -> Targets:
        """The policy's targets, as if the owners of the jobs in `caps` had capped them so."""
        capped = [replace(job, wanted=(caps or {}).get(job.key, job.wanted)) for job in jobs]
        return targets_of(self._policy, self._plan.snapshot, self._rooms, capped)

    def _more_for_others(self) -> Mapping[JobKey, Target]:
        """Larger targets of jobs that could use GPUs which the policy means for jobs that cannot have them.

        A policy knows neither on which nodes a job failed nor which ones it excludes. So it is asked again,
        as if these jobs were to have no more than they find room for.
        """
        plan = self._plan
        due = {key: job.target.workers for key, job in plan.jobs.items() if _may_grow(plan, job)}
        most = {key: self._most(key) for key in due if plan.takes_part(plan.jobs[key])}
        limited = {key: plan.jobs[key].job.whole(most[key]) for key in most if most[key] < due[key]}
        if not limited:
            return {}
        most |= {key: self._most(key) for key in due.keys() - most.keys()}
        others = {key for key in due.keys() - limited.keys() if most[key] > due[key]}
        if not others:
            return {}
        targets = self._targets(self._as_they_will_be(), limited).jobs
        found = [whole(plan.jobs[each.job].job, each) for each in targets if each.job in others]
        return {each.job: each for each in found if each.workers > due[each.job]}

    def _most(self, key: JobKey) -> int:
        """The most workers that the job could have now."""
        job = self._plan.jobs[key]
        return job.workers + self._plan.room_for(job)

    def _deal_more(self, more: Mapping[JobKey, Target]) -> None:
        """Deal what is still idle to these jobs. If they get nothing, their first targets count again."""
        jobs = self._plan.jobs
        first = {key: jobs[key].target for key in more}
        for key, target in more.items():
            jobs[key].target = target
        if more:
            deal_idle(self._plan)
        for key, target in first.items():
            if not jobs[key].dealt:
                jobs[key].target = target

    def _left_out(self, growing: Sequence[JobInPlan]) -> set[JobKey]:
        """The jobs that get no satellite now, because more jobs would grow than satellites are allowed.

        Jobs that would grow by most get theirs first; if jobs share evenly, the poorest. At least one job may
        grow in any case: it can take the place of a satellite that its job needs less.
        """
        plan = self._plan
        without = [job for job in growing if not plan.standing_of(job.job)]

        def rank(job: JobInPlan) -> tuple[int, JobKey]:
            has = job.workers
            return has if plan.evenly else has - job.target.workers, job.job.key

        without.sort(key=rank)
        return {job.job.key for job in without[max(1, int(plan.satellites_left)) :]}

    def _paying_nodes(self) -> Iterator[str]:
        """Nodes on which a satellite of some job gains more than it costs. Of nodes that are alike, one is
        checked."""
        plan = self._plan
        known: dict[tuple[object, ...], bool] = {}
        for name in plan.nodes:
            room = plan.rooms[name]
            node = room.node
            alike = plan.idle_for[name], node.gpu_type, room.idle, node.capacity
            if alike not in known:
                known[alike] = any(plan.pays(job, name) for job in plan.jobs.values())
            if known[alike]:
                yield name

    def _as_they_will_be(self) -> list[ElasticJob]:
        """The jobs that may be resized at all, without the grants that are on their way out.

        A job that rests can use no more than it has. The GPUs that the policy would keep idle for it go to
        others.
        """
        jobs = [
            replace(job.job, grants=self._plan.standing_of(job.job))
            for job in self._plan.jobs.values()
            if job.steady
        ]
        now = self._plan.now
        return [replace(job, wanted=job.granted_workers) if job.rest_until > now else job for job in jobs]

    def _batches(self) -> Iterator[Batch]:
        """The batch of each job, for the workers that it has been granted when this plan is carried out."""
        growth: Counter[JobKey] = Counter()
        for action in self._plan.actions:
            if isinstance(action, Grow):
                growth[action.job] += action.workers
        for key, job in self._plan.jobs.items():
            samples, batch = batch_of(job.job, job.before + growth[key]), job.job.batch
            if samples is not None:
                chosen = batch.clamp(job.target.samples) if batch and job.target.samples else 0
                yield Batch(key, chosen or samples)


def _may_grow(plan: PlanInMaking, job: JobInPlan) -> bool:
    """Whether the job could get workers now if it were due more and there were room."""
    rests = job.may_grow_at > plan.now or job.job.key in plan.resting
    return job.steady and not rests and job.workers < job.job.ceiling


def _fewest_workers(mine: Sequence[HeldGrant], excess: int) -> tuple[HeldGrant, ...]:
    """Satellites that have at least `excess` workers together, as few as possible; the youngest among
    equals."""
    if len(mine) > _EXACT_CAP_UP_TO:
        return _smallest_first(mine, excess)
    enough = (
        some
        for size in range(1, len(mine) + 1)
        for some in combinations(mine, size)
        if sum(each.grant.workers for each in some) >= excess
    )
    return min(
        enough,
        key=lambda some: (
            sum(each.grant.workers for each in some),
            len(some),
            -min(each.started_at for each in some),
        ),
        default=tuple(mine),
    )


def _smallest_first(mine: Sequence[HeldGrant], excess: int) -> tuple[HeldGrant, ...]:
    chosen: list[HeldGrant] = []
    for standing in sorted(mine, key=lambda each: (each.grant.workers, -each.started_at)):
        if excess <= 0:
            break
        chosen.append(standing)
        excess -= standing.grant.workers
    return tuple(chosen)
