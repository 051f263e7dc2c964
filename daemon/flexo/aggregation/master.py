"""pMaster: decides which pool Aggregators sum which jobs' gradients (AutoPS, sections 3.3.1 to 3.3.3). Pure.

Every call of `tick` gets all that is attached now, and returns all assignments. So a new flexod with an empty
memory learns everything again. It adopts the assignments that jobs report, and moves nobody for its restart.

A job comes in steps. It waits on its own Aggregators. Then it has temporary Aggregators to itself, and is
profiled there. If no Aggregator is idle, its time on its own Aggregators and an estimate of the CPU time take
the profile's place. Then it shares Aggregators, if no limit forbids it. If a job loses too much by a change,
the change is undone; a job that arrived goes back to its own Aggregators, and rests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, Literal

from flexo.aggregation.assignment import TaskTooLarge, assign
from flexo.aggregation.congestion import congested_among, move_away
from flexo.aggregation.demand import Capacity, JobDemand
from flexo.aggregation.pool import Aggregator, AggregatorPool, AssignmentLimits, moves_between
from flexo.aggregation.pool_state import KnownAggregator, PoolState
from flexo.aggregation.pooled_job import (
    NOT_EXCUSED,
    RATE_S,
    PoolClient,
    PooledJob,
    Stage,
    dealt,
    demand_of,
    estimated_ns,
)
from flexo.aggregation.profiling import WARM_UP
from flexo.aggregation.scaling import Change, recycle, undo_for
from flexo.aggregation.settings import AggregationSettings
from flexo.aggregation.upkeep import PoolUpkeep
from flexo.model.aggregation import AggregationView, Eviction, PoolAggregator, UsedAggregator
from flexo.model.queue import JobKey
from flexo_protos.aggregation_token import MOST_QUOTA

GONE_AFTER_S: Final = 10.0
"""The time that an Aggregator may be away before its jobs are assigned anew: a broken connection to flexod
stops no sums."""
ADOPTED_WITHIN_S: Final = 30.0
"""The time that a job keeps an assignment whose Aggregators are not attached, as after flexod's restart."""
ADOPTS_FOR_S: Final = 60.0
"""The time after flexod's start, or after an Aggregator has come, for which jobs are adopted there. Leaders
that have lost flexod try again every 30 s. Later, a job's report of an assignment is a mere claim."""
TAKEN_OVER_WITHIN_S: Final = 600.0
"""The time within which a job takes an assignment over. A job that cannot reach its Aggregators does not."""
PROFILED_WITHIN_S: Final = 3600.0
"""The longest time that a job may take up temporary Aggregators, or share some without being measured."""
BREACH_ITERATIONS: Final = 20
"""Iterations for which a breach of the loss limit must last."""
MEASURED_FROM: Final = 40
"""The latest iterations whose median a leader reports (leader/assigned_sums.py of the job), and"""
MEASURED_FROM_S: Final = 6.0
"""the least time that they are from."""
UNDONE_WITHIN_S: Final = 60.0
"""The longest time for which a job bears its loss while another one leaves its Aggregators."""
GREEDY: Final = 1.5
"""A job is greedy from this multiple of its profile's CPU time on, and"""
GREEDY_CORES: Final = 0.05
"""if that is at least this part of a core more."""
TOO_SLOW: Final = 1.5
"""A job whose iterations take this multiple of their time on its own Aggregators does not stay in the pool,
even if no other job is there: a link or a machine of the pool is too slow for it."""
OWN_MEASURED_WITHIN_S: Final = 60.0
"""The longest time that a job waits for a measurement of its iterations on its own Aggregators."""
_GREEDY_RATES: Final = 2
"""A job that is greedy in so many measurements of CPU time goes back, even if nobody loses by that."""
_MIB: Final = 1 << 20
LEAST_QUOTA: Final = 64 * (1 << 20)
"""The least gradients that a token allows, in bytes. A script may exchange a little more, later."""


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """An entry for the event store."""

    kind: Literal["aggregator", "assign", "revert"]
    text: str
    job: JobKey | None = None


@dataclass(frozen=True, slots=True)
class PoolAssignment:
    """The Aggregators of one job; no shares: its own."""

    job: JobKey
    user: str
    version: int
    shares: tuple[UsedAggregator, ...]
    quota: int
    """The most bytes of memory that its sums may take at each of them."""


@dataclass(frozen=True, slots=True)
class PoolDecisions:
    """The result of one tick."""

    assignments: tuple[PoolAssignment, ...] = ()
    """All that jobs are to be told, changed or not."""
    evictions: tuple[Eviction, ...] = ()
    drains: tuple[str, ...] = ()
    """The names of Aggregators that are to end."""
    events: tuple[PoolEvent, ...] = ()
    view: AggregationView = field(default_factory=AggregationView)


class PoolMaster:
    """See the module. Mutable, for one thread."""

    def __init__(self, settings: AggregationSettings, now: float) -> None:
        self._settings = settings
        self._limits = AssignmentLimits(
            Fraction(str(settings.loss_limit)),
            Fraction(str(settings.network_share)),
            settings.undo_iterations,
        )
        self._state = PoolState(self._limits, AggregatorPool(Capacity(1, settings.memory_mib * _MIB)))
        self._first_seen: dict[JobKey, float] = {}
        """Jobs whose reported assignment is not adopted yet."""
        self._upkeep = PoolUpkeep(self._state, settings.drain_after_s)
        self._began_at = now
        self._period_at = now + settings.period_s
        self._changes = 0
        self._events: list[PoolEvent] = []
        self._now = now

    def tick(
        self,
        now: float,
        aggregators: Iterable[PoolAggregator],
        clients: Iterable[PoolClient],
        running: Collection[JobKey],
    ) -> PoolDecisions:
        """Decide once. `clients`: jobs with an attached leader. `running`: all jobs that have not ended."""
        self._state.running = frozenset(map(str, running))
        self._events, self._now = [], now
        self._see_aggregators(now, aggregators)
        self._see_jobs(now, clients, running)
        self._rate(now)
        for job in list(self._state.jobs.values()):
            self._measure(job, now)
        self._watch(now)
        for job in sorted(self._state.jobs.values(), key=lambda each: each.key):
            self._advance(job, now)
        if now >= self._period_at:
            self._period_at = now + self._settings.period_s
            self._recycle()
        drains = self._upkeep.drains(now)
        self._events += [PoolEvent("aggregator", self._upkeep.why_drained(name)) for name in drains]
        return PoolDecisions(
            tuple(self._assignment(job) for job in self._state.jobs.values() if job.attached and job.version),
            self._upkeep.evictions(now),
            drains,
            tuple(self._events),
            self._state.view(),
        )

    # --- who is there ---------------------------------------------------------------------------

    def _see_aggregators(self, now: float, aggregators: Iterable[PoolAggregator]) -> None:
        for each in aggregators:
            known = self._state.known.get(each.name)
            if known is not None and (each.leaving or known.attached.key != each.key):
                self._lose(known, "has to end" if each.leaving else "was started again")
                known = None
            if known is not None:
                known.attached, known.seen_at = each, now
            elif not each.leaving:
                self._accept(each, now)
        for known in list(self._state.known.values()):
            if now > known.seen_at + GONE_AFTER_S:
                self._lose(known, f"is not attached any more for {GONE_AFTER_S:.0f} s")

    def _accept(self, each: PoolAggregator, now: float) -> None:
        number = self._state.pool.allocated + 1
        memory = min(each.memory, self._settings.memory_mib * _MIB)
        added = Aggregator(number, Capacity(each.network, memory))
        self._state.pool = replace(
            self._state.pool.with_aggregators([added]), allocated=number, new=added.capacity
        )
        self._state.known[each.name] = KnownAggregator(number, each, now, now, now)
        where = f" in Slurm job {each.slurm_job_id}" if each.slurm_job_id else ""
        self._events.append(PoolEvent("aggregator", f"pool Aggregator {each.name} has come{where}"))

    def _lose(self, known: KnownAggregator, why: str) -> None:
        """Drop an Aggregator, and take its jobs off it. `_advance` assigns them again in the same tick."""
        name, number = known.attached.name, known.number
        self._events.append(PoolEvent("aggregator", f"pool Aggregator {name} {why}"))
        displaced = [job for job in self._state.jobs.values() if number in self._state.numbers(job)]
        for job in displaced:
            self._to_own(job, f"pool Aggregator {name} {why}")
        del self._state.known[name]
        self._state.pool = self._state.pool.dropping({number})

    def _see_jobs(self, now: float, clients: Iterable[PoolClient], running: Collection[JobKey]) -> None:
        for job in self._state.jobs.values():
            job.attached = False
        for client in clients:
            known = self._state.jobs.get(client.key)
            if known is not None:
                self._update(known, client)
            elif client.use.wants_pool:
                self._meet(client, now)
        for job in list(self._state.jobs.values()):
            if job.key not in running:
                self._take_off(job)
                del self._state.jobs[job.key]
        self._first_seen = {key: at for key, at in self._first_seen.items() if key in running}

    def _update(self, job: PooledJob, client: PoolClient) -> None:
        is_greedy = client.use.nodes == job.use.nodes and job.exceeds(client.use.size, GREEDY)
        shape = client.use.nodes, client.use.size  # unknown while its agents are silent for a moment
        resized = all(shape) and shape != job.shape and not is_greedy
        job.shape = shape if all(shape) else job.shape
        job.client, job.attached, job.most_nodes = client, True, max(job.most_nodes, client.nodes)
        if client.use.wants_pool and client.use.version > job.version:
            job.version = client.use.version + 1  # another flexod has assigned it meanwhile
        if not resized:
            return
        # CPU time and iterations change with the size, so they are measured again where the job is
        job.mark = job.breach_from = None
        job.own_iteration_s = 0.0
        if job.stage is Stage.SHARED:
            job.provisional, job.unmeasured_from = True, self._now
        else:
            job.demand = None

    def _meet(self, client: PoolClient, now: float) -> None:
        """Take a job up that is new, or new to this flexod."""
        job = PooledJob(client, self._tenant(client), now, version=client.use.version)
        job.shape, job.most_nodes = (client.use.nodes, client.use.size), client.nodes
        if not client.use.used:
            self._state.jobs[client.key] = job
            return
        since = self._first_seen.setdefault(client.key, now)
        if self._adopt(job):
            self._state.jobs[client.key] = job
            job.why = "it had this assignment before flexod was started"
        elif now > since + ADOPTED_WITHIN_S:
            self._state.jobs[client.key] = job
            self._to_own(job, "the assignment that it reports cannot be kept")

    def _adopt(self, job: PooledJob) -> bool:
        """Keep a job where it says that it is, if its Aggregators say so, too, soon after a start.

        A report alone is the word of a user, who could claim the whole pool. The loads are estimated until
        they are measured. An Aggregator that seems to be overloaded meanwhile gets no further job.
        """
        used, known = job.use.used, self._state.known
        if not job.knows_itself or not all(each.name in known and each.share > 0 for each in used):
            return False
        if not all(self._keeps(known[each.name], job) for each in used):
            return False
        demand = demand_of(job, job.use.iteration_s, estimated_ns(job.use))
        numbers = {each.name: known[each.name].number for each in used}
        tasks = {
            number: [demand.tasks[index] for index in parts] for number, parts in dealt(used, numbers).items()
        }
        self._state.pool = self._state.pool.hosting(demand, tasks)
        job.stage, job.demand, job.provisional = Stage.SHARED, demand, True
        job.assigned_at = job.unmeasured_from = self._now
        return True

    def _keeps(self, known: KnownAggregator, job: PooledJob) -> bool:
        """Whether a job may have been assigned to an Aggregator that serves it, before flexod knew of it."""
        is_new = self._now <= max(self._began_at, known.came_at) + ADOPTS_FOR_S
        serves = known.attached.sums_of(job.name) is not None
        return is_new and serves and self._state.of_tenant(known.number, job)

    def _tenant(self, client: PoolClient) -> str:
        match self._settings.share:
            case "user":
                return client.user
            case "account":
                return client.account or client.user
            case _:
                return ""

    # --- what jobs measure ----------------------------------------------------------------------

    def _rate(self, now: float) -> None:
        """Note how many CPU cores Aggregators and jobs use."""
        for job in self._state.jobs.values():
            if job.rate(now, self._state.cpu_s(job)):
                settled = job.since_change > self._settings.undo_iterations
                judged = job.stage is Stage.SHARED and settled and not job.provisional
                job.greedy_rates = job.greedy_rates + 1 if judged and _excess(job) > 0 else 0
        for each in self._state.known.values():
            if now >= each.cores_mark[0] + RATE_S:
                spent = each.attached.cpu_s
                each.used_cores, each.cores_mark = _cores(each.cores_mark, now, spent), (now, spent)
                self._state.note_link(each, now)

    def _measure(self, job: PooledJob, now: float) -> None:
        """Complete the profile of a job on temporary Aggregators, or measure an estimated one again.

        A job that is not measured in time goes back: nobody can judge what it does to others.
        """
        job.note_own_time()
        if job.stage is not Stage.PROFILED and not (job.stage is Stage.SHARED and job.provisional):
            return
        demand = job.measured(self._state.cpu_s(job))
        if demand is None:
            if job.attached and job.provisional and now > job.unmeasured_from + PROFILED_WITHIN_S:
                self._revert(job, f"it was not measured within {PROFILED_WITHIN_S:.0f} s", now)
            return
        job.provisional, job.breach_from = False, None
        if job.stage is not Stage.PROFILED:
            self._correct(job, demand)
        elif 0 < TOO_SLOW * job.own_iteration_s < job.use.iteration_s:
            times = f"{job.use.iteration_s:.3g} s there, and {job.own_iteration_s:.3g} s on its own"
            self._revert(job, f"the pool's Aggregators are too slow for it: an iteration takes {times}", now)
        else:
            job.demand = demand

    def _correct(self, job: PooledJob, demand: JobDemand) -> None:
        """Note a job's measured load where the job is, and take the job off if that breaks a limit."""
        job.demand = demand
        places, by_key = self._state.pool.places(job.name), {task.key: task for task in demand.tasks}
        tasks = {
            number: [by_key[key] for key, place in places.items() if place == number]
            for number in set(places.values())
        }
        self._state.pool = self._state.pool.without(job.name, self._limits).hosting(demand, tasks)
        if broken := [
            why for n in tasks if (why := self._state.pool.aggregators[n].broken_limit(self._limits))
        ]:
            self._to_own(job, f"by its new measurements, it breaks a limit: {broken[0]}")

    def _watch(self, now: float) -> None:
        """Undo a change for each job that loses too much for long enough."""
        for job in list(self._state.jobs.values()):
            if job.stage is not Stage.SHARED or not job.current or job.provisional:
                continue
            if job.greedy_rates >= _GREEDY_RATES and self._state.beside(job):
                self._excuse(job, job)
                self._revert(job, f"it uses {_use(job)}, beside other jobs", now)
            elif self._is_excused(job, now) or job.loss < self._settings.loss_limit:
                job.breach_from = None
            elif job.breach_from is None or job.breach_from > job.use.iterations:
                job.breach_from = job.use.iterations
            elif job.use.iterations >= job.breach_from + BREACH_ITERATIONS:
                self._undo(job, now)

    def _is_excused(self, job: PooledJob, now: float) -> bool:
        """Whether the job's duration is from its first iterations, or from beside a job that has left."""
        if job.since_change < WARM_UP + MEASURED_FROM:
            return True
        if job.blames is not None:
            blamed = self._state.jobs.get(job.blames)
            if blamed is not None and not blamed.current and now < blamed.assigned_at + UNDONE_WITHIN_S:
                return True
            job.blames = None
            job.excused_until = job.use.iterations + MEASURED_FROM, now + MEASURED_FROM_S
        iterations, at = job.excused_until
        return job.use.iterations < iterations or now < at

    def _undo(self, loser: PooledJob, now: float) -> None:
        lost = (
            f"job {loser.key} loses {loser.loss:.1%} of its speed ({self._settings.loss_limit:.0%} allowed)"
        )
        if self._move_away(loser, lost):
            return
        near = self._state.beside(loser)
        recent = [
            each
            for each in (*near, loser)
            if each.attached and each.since_change <= self._settings.undo_iterations
        ]
        latest = max(recent, key=lambda each: each.changed, default=None)
        greedy = max(near, key=_suspected, default=None)
        if latest is not None:
            self._excuse(latest, loser)
            if latest.before and self._move_back(loser, latest, lost):
                return
            what = "moved last" if latest.before else "came last"
            self._revert(latest, f"{lost}, and job {latest.key} {what}", now)
        elif greedy is not None and _suspected(greedy) > 0:
            self._excuse(greedy, loser)
            what = f"uses {_use(greedy)}" if _excess(greedy) > 0 else f"sends {_sends(greedy)}"
            self._revert(greedy, f"{lost}, and job {greedy.key} {what}", now)
        else:
            self._excuse(loser, loser)
            self._revert(loser, f"{lost}, and no recent change explains it", now)

    def _move_away(self, loser: PooledJob, lost: str) -> bool:
        """Move a job's tasks off Aggregators whose links others use, if there is room elsewhere (appendix D).

        A job that has moved lately stays: its loss may come from that.
        """
        if loser.since_change < self._limits.probation:
            return False
        pool = self._state.pool
        congested = congested_among(pool, self._state.available())
        mine = {*pool.hosts(loser.name), *self._state.open_to(loser)}
        part = pool.dropping(pool.aggregators.keys() - mine)
        after = move_away(part, loser.name, Fraction(loser.loss), congested, self._limits)
        if after is None:
            return False
        before = {move.task: move.source for move in moves_between(part, after)}
        names = {known.number: name for name, known in self._state.known.items()}
        links = ", ".join(sorted(names[number] for number in set(before.values())))
        why = f"it moves away from {links}, where other programs use the network: {lost}"
        self._settle(loser, pool.with_aggregators(after.aggregators.values()), before, why)
        return True

    def _excuse(self, leaving: PooledJob, loser: PooledJob) -> None:
        """Judge nobody beside these two jobs by durations from before the first one has left."""
        for each in (loser, *self._state.beside(loser), *self._state.beside(leaving)):
            each.breach_from = None
            if each is not leaving:
                each.blames = leaving.key

    def _move_back(self, loser: PooledJob, moved: PooledJob, lost: str) -> bool:
        """Put tasks back that the last change moved, if their former Aggregators are still there."""
        change = Change(moved.name, moved.since_change, moved.before)
        try:
            undone = undo_for(self._state.pool, loser.name, (change,), self._limits)
        except TaskTooLarge:  # its former place is taken, and the present ones have shrunk
            return False
        if undone is None or not set(undone.hosts(moved.name)) <= self._state.open_to(moved):
            return False
        self._state.reverts += 1
        self._settle(moved, undone, {}, f"it moves back: {lost}, and this job moved last", "revert")
        return True

    def _revert(self, job: PooledJob, why: str, now: float) -> None:
        """Send a job back to its own Aggregators, and let it rest."""
        self._state.reverts += 1
        rests = f"it rests for {self._settings.rest_s:.0f} s"
        self._to_own(job, f"{why}; {rests}", "revert")
        job.stage, job.rests_until, job.demand = Stage.RESTING, now + self._settings.rest_s, None

    # --- assignments ----------------------------------------------------------------------------

    def _advance(self, job: PooledJob, now: float) -> None:
        """Take a job one step on, if there is room."""
        if job.stage is Stage.RESTING and now >= job.rests_until:
            job.stage, job.why = Stage.WAITING, "its rest is over"
        if not job.attached or (job.stage is Stage.RESTING and job.use.wants_pool):
            return
        since_s = now - job.assigned_at
        if not job.use.wants_pool:
            self._to_own(job, "it asks for its own Aggregators")
            self._forget_if_gone(job)
        elif job.stage is not Stage.WAITING and not job.current and since_s > TAKEN_OVER_WITHIN_S:
            within = f"within {TAKEN_OVER_WITHIN_S:.0f} s"
            self._revert(job, f"it has not taken its pool Aggregators over {within}", now)
        elif job.stage is Stage.SHARED:
            return
        elif job.use.size > self._settings.quota_mib * _MIB:
            said = f"{job.use.size / _MIB:.0f} MiB of gradients"
            job.why = f"it has {said}, and quota_mib allows {self._settings.quota_mib}"
        elif job.demand is not None:
            self._place(job)
        elif job.stage is Stage.WAITING:
            self._profile(job)
        elif since_s > PROFILED_WITHIN_S:
            self._revert(job, f"it was not profiled within {PROFILED_WITHIN_S:.0f} s", now)

    def _forget_if_gone(self, job: PooledJob) -> None:
        """Forget a job that asks for no pool, once it uses its own Aggregators.

        Its leader may assign others from then on, in its satellites, and counts the versions on.
        """
        is_at_home = job.current and not job.use.used
        if is_at_home or job.use.version > job.version:
            del self._state.jobs[job.key]

    def _profile(self, job: PooledJob) -> None:
        """Give a job temporary Aggregators; if none is or becomes idle, take an estimate for its profile."""
        idle = self._state.idle(self._state.open_to(job))
        if idle and not job.own_iteration_s and self._now < job.met_at + OWN_MEASURED_WITHIN_S:
            job.why = "its iterations are measured on its own Aggregators, before a pool Aggregator is tried"
        elif idle and job.use.size:
            idle.sort(key=lambda number: -self._state.pool.aggregators[number].capacity.network)
            job.stage, job.temporary = Stage.PROFILED, tuple(idle[: job.servers])
            self._changed(job, {}, "it is profiled on Aggregators of the pool that no other job uses")
        elif not self._state.one_may_become_idle and (demand := job.estimated()) is not None:
            job.demand, job.provisional, job.unmeasured_from = demand, True, self._now
            self._place(job)
        else:
            job.why = "it waits for an idle pool Aggregator, to be profiled there"

    def _place(self, job: PooledJob) -> None:
        """Assign a profiled job to Aggregators of its tenant, and to as few idle ones as possible."""
        assert job.demand is not None
        numbers = self._state.open_to(job)
        idle = [*job.temporary, *self._state.idle(numbers)]
        busy = numbers - set(idle)
        for count in range(min(len(idle), 2 * job.servers) + 1):
            among = {*busy, *idle[:count]}
            placed = assign(self._state.pool, job.demand, self._limits, among=among, most_new=0)
            if placed is not None:
                self._settle(job, placed, {}, _why_there(placed, job))
                return
        others = (each for each in self._state.jobs.values() if each is not job)
        if job.stage is Stage.PROFILED and any(each.is_being_profiled for each in others):
            job.why = "it is profiled, and waits for Aggregators on which another job is profiled"
        elif job.stage is Stage.PROFILED:
            self._to_own(job, "it is profiled, and no pool Aggregator has room for it")
        else:
            job.why = "no pool Aggregator has room for it"

    def _settle(
        self,
        job: PooledJob,
        pool: AggregatorPool,
        before: Mapping[str, int],
        why: str,
        kind: Literal["assign", "revert"] = "assign",
    ) -> None:
        """Take over a pool in which the job is placed."""
        former = self._state.shares(job)
        self._state.pool, job.stage, job.temporary = pool, Stage.SHARED, ()
        if self._state.shares(job) == former:
            job.why, job.before = why, before
            self._changes += 1
            job.changed = self._changes
        else:
            self._changed(job, before, why, kind)

    def _to_own(self, job: PooledJob, why: str, kind: Literal["assign", "revert"] = "assign") -> None:
        """Send a job back to its own Aggregators. Its profile stays."""
        had = bool(self._state.shares(job)) or (job.current and bool(job.use.used))
        self._take_off(job)
        job.stage = Stage.WAITING
        if had:
            self._changed(job, {}, why, kind)
        job.why = why

    def _take_off(self, job: PooledJob) -> None:
        self._state.pool = self._state.pool.without(job.name, self._limits)
        job.temporary = ()

    def _changed(
        self,
        job: PooledJob,
        before: Mapping[str, int],
        why: str,
        kind: Literal["assign", "revert"] = "assign",
    ) -> None:
        self._changes += 1
        job.version += 1
        job.assigned_at = self._now
        job.changed, job.before, job.why = self._changes, before, why
        job.mark = job.breach_from = job.blames = None
        job.greedy_rates = 0
        job.excused_until = NOT_EXCUSED
        shares = ", ".join(f"{each.name} x{each.share}" for each in self._state.shares(job))
        where = shares or "its own Aggregators"
        self._events.append(PoolEvent(kind, f"its gradients are summed by {where}: {why}", job.key))

    def _recycle(self) -> None:
        """Serve the jobs of each tenant with fewer Aggregators, if that is possible."""
        for tenant in sorted({job.tenant for job in self._state.jobs.values() if job.stage is Stage.SHARED}):
            jobs = [each for each in self._state.jobs.values() if each.tenant == tenant]
            mine = {n for each in jobs for n in self._state.pool.hosts(each.name)}
            if any(self._state.is_held(number) for number in mine):
                continue
            resting = {
                each.name
                for each in jobs
                if each.provisional or not each.current or each.since_change < self._limits.probation
            }
            part = self._state.pool.dropping(self._state.pool.aggregators.keys() - mine)
            fewer = recycle(part, self._limits, resting)
            emptied = [
                Aggregator(n, self._state.pool.aggregators[n].capacity)
                for n in mine - fewer.aggregators.keys()
            ]
            after = self._state.pool.with_aggregators([*fewer.aggregators.values(), *emptied])
            self._move(jobs, after)

    def _move(self, jobs: Iterable[PooledJob], after: AggregatorPool) -> None:
        moves = moves_between(self._state.pool, after)
        self._state.pool = after
        for job in jobs:
            before = {move.task: move.source for move in moves if move.job == job.name}
            if before:
                self._changed(job, before, "fewer Aggregators serve the same jobs")

    def _assignment(self, job: PooledJob) -> PoolAssignment:
        return PoolAssignment(
            job.key, job.client.user, job.version, self._state.shares(job), self._quota(job)
        )

    def _quota(self, job: PooledJob) -> int:
        """The memory for a job's sums: of each node, and the result. The gradients of two generations may be
        there at once, each of them on as many nodes as the job has ever had."""
        gradients = min(max(LEAST_QUOTA, 2 * job.use.size), self._settings.quota_mib * _MIB)
        return min((job.most_nodes + 1) * gradients, MOST_QUOTA)


def _why_there(pool: AggregatorPool, job: PooledJob) -> str:
    names = {name for number in pool.hosts(job.name) for name in pool.aggregators[number].hosted}
    others = ", ".join(sorted(names - {job.name}))
    return f"it shares Aggregators with job {others}" if others else "it is the first job there"


def _cores(mark: tuple[float, float], now: float, spent: float) -> float:
    """CPU cores used since `mark`: its time, and the CPU seconds until then."""
    at, before = mark
    return max(0.0, spent - before) / (now - at)


def _use(job: PooledJob) -> str:
    return f"{job.used_cores:.2f} cores where its profile says {job.planned_cores:.2f}"


def _sends(job: PooledJob) -> str:
    return f"{job.use.size / _MIB:.0f} MiB where its profile says {job.planned_bytes / _MIB:.0f}"


def _excess(job: PooledJob) -> float:
    """Cores that the job uses beyond what a job may use that is not greedy; 0: it is not greedy."""
    return max(0.0, job.used_cores - _allowed(job))


def _suspected(job: PooledJob) -> float:
    """As `_excess`, where another job loses: the bytes that it has registered count before CPU time does."""
    by_bytes = (
        job.planned_cores * job.use.size / job.planned_bytes if job.exceeds(job.use.size, GREEDY) else 0.0
    )
    return max(_excess(job), by_bytes - _allowed(job))


def _allowed(job: PooledJob) -> float:
    return max(job.planned_cores * GREEDY, job.planned_cores + GREEDY_CORES)
