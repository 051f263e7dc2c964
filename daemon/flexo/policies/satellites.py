"""Satellites granted and taken back, so that elastic jobs on Slurm get the sizes that are their due.

Pending jobs come first, then idle GPUs. What is a job's due a policy says (`Sizing`); without one all
share evenly. A pure function of the snapshot. Applied again and again to a cluster that carries its plans
out it comes to rest: while the dues stay the same, each step brings some job nearer to its due and none
past it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, combinations, islice

from flexo.model import (
    Action,
    Batch,
    ElasticJob,
    Grant,
    Grow,
    JobKey,
    Note,
    Plan,
    SatelliteState,
    Shrink,
    SlowGpu,
    Snapshot,
)
from flexo.policies.batches import batch_of
from flexo.policies.demand import rate
from flexo.policies.openings import Kind, Openings
from flexo.policies.payoff import PAUSE_S, START_S, pays
from flexo.policies.pending import Claim, settle_claims
from flexo.policies.rooms import (
    Resources,
    Room,
    Standing,
    build_rooms,
    lent_nodes,
    satellite_nodes,
    satellite_partition,
)
from flexo.policies.stays import stays

_REBALANCE_GAIN = 0.25
"""A satellite is taken for a poorer job only if that job gets at least this part of its workers."""
_WANTED_EMPTY = frozenset({"DRAIN", "DRAINING", "MAINT", "RESERVED", "REBOOT_REQUESTED"})
"""Slurm's flags of a node that satellites leave."""
_EXACT_CAP_UP_TO = 12
"""Satellites of one job of which every combination is tried when its owner caps it."""
_REASONS = 4
"""Of why a job has no room that are said: a cluster of thousands of nodes may have thousands."""


@dataclass(frozen=True, slots=True)
class Due:
    """What a policy wants an elastic job to have."""

    workers: int
    samples: int = 0
    """The aggregate batch; 0: in proportion to the workers, where the job accepts several."""
    why: str = ""


Sizing = Callable[[Mapping[str, Room], Sequence[ElasticJob]], Mapping[JobKey, Due]]
"""What is left on each node that satellites may use, and the jobs as they will be once what was taken back in
this plan has left; the dues of those that the policy has a word for."""


@dataclass(slots=True)
class _Share:
    """One elastic job while idle GPUs are dealt out."""

    job: ElasticJob
    workers: int
    """What it has and has been dealt."""
    rested_at: float
    """It neither grows nor gives back for others before: its last resize was not long ago."""
    may_grow_at: float
    closed: frozenset[str]
    """Nodes that it may not be given now."""
    due: Due
    """At most its ceiling."""
    open_node: str = ""
    dealt: dict[str, int] = field(default_factory=dict)


def plan(
    snapshot: Snapshot,
    min_resize_interval_s: float,
    sizing: Sizing | None = None,
    max_satellites: int | None = None,
) -> Plan:
    """What to change now, and why for every elastic job.

    `min_resize_interval_s` is the least between two resizes of one job: it delays growing, giving back never
    waits. No grant makes more than `max_satellites` of all jobs together, those that are leaving among them:
    where more jobs would grow, fewer do, each by more. None: however many.
    """
    return _Planner(snapshot, min_resize_interval_s, sizing, max_satellites).plan()


class _Planner:
    """One plan in the making; `rooms` hold what each step left to the next."""

    def __init__(
        self,
        snapshot: Snapshot,
        min_resize_interval_s: float,
        sizing: Sizing | None,
        max_satellites: int | None,
    ) -> None:
        self._snapshot = snapshot
        self._min_resize_interval_s = min_resize_interval_s
        self._sizing = sizing
        self._max_satellites = max_satellites
        self._satellites_left = _left(max_satellites, snapshot.elastic)
        """How many more there may be."""
        self._satellites_are_few = False
        """Fewer than the jobs that would grow."""
        self._rooms = build_rooms(snapshot)
        self._slow, self._slow_of = _slow_nodes(snapshot.slow_gpus)
        """By node, for everybody; and by user and node."""
        self._lent = lent_nodes(snapshot)
        places = satellite_nodes(snapshot) & self._rooms.keys()
        self._nodes = sorted(places - self._slow.keys())
        self._left_alone = sorted(places & self._slow.keys())
        self._stays = stays(snapshot, self._nodes)
        self._openings: Openings
        """In the rooms as they are when pending jobs have theirs."""
        self._known = {job.key: job for job in snapshot.training}
        self._actions: list[Action] = []
        self._withdrawn: set[str] = set()
        self._resting: set[JobKey] = set()
        """Jobs that give something back in this plan, so that they do not grow in it."""
        self._claims: list[Claim] = []
        self._shares: dict[JobKey, _Share] = {}

    def plan(self) -> Plan:
        self._clear_nodes()
        for job in self._snapshot.elastic:
            self._respect_ceiling(job)
        self._serve_pending()
        self._openings = Openings(self._rooms, self._nodes, self._stays)
        self._shares = {job.key: self._share_of(job) for job in self._snapshot.elastic}
        self._take_dues()
        self._give_back_excess()
        self._deal_idle()
        self._rebalance()
        return Plan(
            actions=tuple(self._actions),
            batches=tuple(self._batches()),
            notes=tuple(Note(share.job.key, self._sentence(share)) for share in self._shares.values()),
            set_aside=tuple(claim.job.job_id for claim in self._claims),
        )

    def _batches(self) -> Iterator[Batch]:
        """For what each job has been granted when this plan is carried out."""
        growth: Counter[JobKey] = Counter()
        for action in self._actions:
            if isinstance(action, Grow):
                growth[action.job] += action.workers
        for share in self._shares.values():
            samples = batch_of(share.job, self._before(share) + growth[share.job.key])
            if samples is not None:
                chosen = (
                    share.job.batch.clamp(share.due.samples) if share.job.batch and share.due.samples else 0
                )
                yield Batch(share.job.key, chosen or samples)

    # Giving back.

    def _withdraw(self, standing: Standing, why: str, *, of_itself: bool = False) -> None:
        self._withdrawn.add(standing.grant.grant_id)
        self._resting.add(standing.job.key)
        self._actions.append(Shrink(standing.job.key, standing.grant.grant_id, why, of_itself))

    def _clear_nodes(self) -> None:
        """Off the nodes that an administrator wants empty: extended leases would never end by themselves."""
        for name, room in self._rooms.items():
            for flag in sorted(room.node.flags & _WANTED_EMPTY):
                for standing in tuple(room.standing):
                    room.take_back(standing)
                    self._withdraw(standing, f"{name} is wanted empty ({flag})")

    def _respect_ceiling(self, job: ElasticJob) -> None:
        """More workers than the job may have: the satellites that come closest from above go."""
        mine = self._satellites_of(job)
        excess = job.base_workers + sum(each.grant.workers for each in mine) - job.ceiling
        if excess <= 0:
            return
        who = "its owner's cap" if job.wanted is not None else "its maximum"
        for standing in _fewest_workers(mine, excess):
            self._rooms[standing.grant.node].take_back(standing)
            why = f"job {job.key} has {job.granted_workers} workers, {who} is {job.ceiling}"
            self._withdraw(standing, why, of_itself=True)

    def _satellites_of(self, job: ElasticJob) -> list[Standing]:
        """Those that stand, node by node."""
        nodes = sorted({grant.node for grant in job.grants} & self._rooms.keys())
        return [each for node in nodes for each in self._rooms[node].standing if each.job.key == job.key]

    def _serve_pending(self) -> None:
        self._claims, self._rooms = settle_claims(self._snapshot, self._rooms)
        for claim in self._claims:
            for standing in claim.taken_back:
                workers = _count(standing.grant.workers, "worker")
                self._withdraw(
                    standing,
                    f"pending job {claim.job.job_id} ({claim.job.user}) can start on {_list(claim.nodes)}"
                    f" once these {workers} on {standing.grant.node} have left",
                )

    # Growing.

    def _share_of(self, job: ElasticJob) -> _Share:
        now = self._snapshot.at
        rested_at = job.last_resize_at + self._min_resize_interval_s if job.last_resize_at else 0.0
        if job.key in self._resting:
            rested_at = now + self._min_resize_interval_s
        held_back = {node for node, at in job.retry_at.items() if at > now}
        # also the nodes of satellites that are leaving: one satellite a node
        own = {grant.node for grant in job.grants} | self._slow_of.get(job.user, {}).keys()
        workers = job.granted_workers - sum(
            grant.workers for grant in job.grants if grant.grant_id in self._withdrawn
        )
        due = Due(job.ceiling)
        may_grow_at = max(rested_at, job.rest_until)
        return _Share(job, workers, rested_at, may_grow_at, frozenset(held_back | own), due)

    def _take_dues(self) -> None:
        """What the policy wants each job to have, within what the job may have and the satellites allow."""
        # before dues are known: those of the first answer are too small to say where a larger one would pay
        rooms = {} if self._sizing is None else {name: self._rooms[name] for name in self._paying_nodes()}
        self._ask_policy(rooms)
        growing = [share for share in self._shares.values() if self._takes_part(share)]
        self._satellites_are_few = len(growing) > self._satellites_left
        if not self._satellites_are_few:
            return
        left_out = self._left_out(growing)
        if left_out:
            # what they would have had is shared out among the others
            self._ask_policy(rooms, left_out)
        for share in self._shares.values():
            if share.job.key in left_out:
                share.due = Due(share.workers, share.due.samples, self._why_no_more_satellites())
            elif share.due.workers < share.workers:
                # the policy would have others grow that cannot: it would be asked for this again and again
                share.due = replace(share.due, workers=share.workers)

    def _ask_policy(self, rooms: Mapping[str, Room], left_out: Container[JobKey] = ()) -> None:
        if self._sizing is None:
            return
        jobs = [job for job in self._as_they_will_be() if job.key not in left_out]
        for key, due in self._sizing(rooms, jobs).items():
            share = self._shares.get(key)
            if share is not None:
                workers = max(share.job.base_workers, min(due.workers, share.job.ceiling))
                share.due = Due(workers, due.samples, due.why)

    def _left_out(self, growing: Sequence[_Share]) -> set[JobKey]:
        """Of more jobs that would grow than there may be satellites, those that shall have none now.

        Those that would grow by most go first; without a policy's word the poorest. One is always among those
        that may: it can take the place of a satellite that its job needs less.
        """
        without = [share for share in growing if not self._standing_of(share.job)]

        def rank(share: _Share) -> tuple[int, JobKey]:
            has, due = share.workers, share.due.workers
            return has if self._sizing is None else has - due, share.job.key

        without.sort(key=rank)
        return {share.job.key for share in without[max(1, int(self._satellites_left)) :]}

    def _why_no_more_satellites(self) -> str:
        most = f"{self._max_satellites}, max_satellites"
        return f"as many satellites as there may be ({most}) run or are on their way"

    def _paying_nodes(self) -> Iterator[str]:
        """Where a satellite of some job does more than it costs. Nodes that are alike are asked once."""
        known: dict[tuple[object, ...], bool] = {}
        for name in self._nodes:
            room = self._rooms[name]
            node = room.node
            alike = self._stays[name], node.gpu_type, room.idle, node.gpus, node.cpus, node.memory_mib
            if alike not in known:
                known[alike] = any(self._pays(share, name) for share in self._shares.values())
            if known[alike]:
                yield name

    def _as_they_will_be(self) -> list[ElasticJob]:
        """The jobs that may be resized at all, without the grants that are on their way out.

        A job that rests can use no more than it has: what the policy would keep idle for it goes to others.
        """
        jobs = [
            replace(share.job, grants=self._standing_of(share.job))
            for share in self._shares.values()
            if share.job.scalable and not share.job.errand
        ]
        now = self._snapshot.at
        return [replace(job, wanted=job.granted_workers) if job.rest_until > now else job for job in jobs]

    def _standing_of(self, job: ElasticJob) -> tuple[Grant, ...]:
        return tuple(
            grant
            for grant in job.grants
            if grant.state is not SatelliteState.LEAVING and grant.grant_id not in self._withdrawn
        )

    def _give_back_excess(self) -> None:
        """Satellites that lie wholly above their job's due: what is left of it is no less than the due.

        Where others are short of their dues, only those that make room for one of them: a policy counts GPUs,
        wherever they are, and would have back a minute later what is given up in vain.
        """
        if self._sizing is None:
            return
        short = [share for share in self._shares.values() if self._takes_part(share)]
        roomy = self._roomy(self._spare(self._rooms, every=True), short) if short else self._rooms.keys()
        spare = self._spare(roomy)
        if short:
            roomy = self._roomy(spare, short)
            spare = [standing for standing in spare if standing.grant.node in roomy]
        for standing in spare:
            share = self._shares[standing.job.key]
            share.workers -= standing.grant.workers
            self._rooms[standing.grant.node].take_back(standing)
            self._withdraw(standing, share.due.why or f"its due is {share.due.workers} workers now")

    def _spare(self, nodes: Container[str], *, every: bool = False) -> list[Standing]:
        """Satellites on `nodes` that jobs above their dues can do without, `every` one of them or at once."""
        now = self._snapshot.at
        found = []
        for share in self._shares.values():
            excess = share.workers - share.due.workers
            if excess <= 0 or share.rested_at > now:
                continue
            largest_first = sorted(
                self._satellites_of(share.job), key=lambda each: (-each.grant.workers, -each.started_at)
            )
            for standing in largest_first:
                wanted = standing.grant.workers <= excess and standing.grant.node in nodes
                if wanted and self._may_give(share, standing):
                    excess -= 0 if every else standing.grant.workers
                    found.append(standing)
        return found

    def _roomy(self, spare: Sequence[Standing], short: Sequence[_Share]) -> Set[str]:
        """The nodes on which one of those that are `short` finds room once `spare` satellites have left."""
        leaving: dict[str, Resources] = {}
        for standing in spare:
            name = standing.grant.node
            leaving[name] = leaving.get(name, Resources()) + standing.resources
        return {name for name in leaving if self._makes_room(self._rooms[name], leaving[name], short)}

    def _makes_room(self, room: Room, leaving: Resources, short: Sequence[_Share]) -> bool:
        free = room.idle + room.coming
        gains = {
            shape: room.fits(shape, free + leaving) > room.fits(shape, free)
            for shape in {share.job.shape for share in short}
        }
        name = room.node.name
        return name in self._stays and any(
            gains[share.job.shape] and self._may_open(share, name) for share in short
        )

    def _deal_idle(self) -> None:
        """One worker at a time to the job with the fewest, until nobody can be given one.

        A job that may not grow yet takes part, so that what is its due is kept for it; it gets no grant.
        """
        expected = self._expected()
        queue = [(share.workers, key) for key, share in self._shares.items() if self._takes_part(share)]
        heapq.heapify(queue)
        while queue:
            _, key = heapq.heappop(queue)
            share = self._shares[key]
            if self._deal_one(share, expected.get(key, share.workers)):
                heapq.heappush(queue, (share.workers, key))
        now = self._snapshot.at
        for share in self._shares.values():
            if share.may_grow_at <= now:
                self._actions.extend(self._growth(share))

    def _takes_part(self, share: _Share) -> bool:
        return share.job.scalable and not share.job.errand and self._kept(share)

    def _kept(self, share: _Share) -> bool:
        """Whether idle GPUs are dealt to the job: not while the cluster refuses it satellites."""
        return share.workers < share.due.workers and share.job.rest_until <= self._snapshot.at

    def _deal_one(self, share: _Share, expected: int) -> bool:
        """One worker more for the job, on the node that it has opened or on a new one; False: no room.

        Where satellites are few, all that the job is expected to get on a new one: others could not open
        another for what they would take of it.
        """
        if share.workers >= share.due.workers:
            return False
        shape, workers = share.job.shape, 1
        room = self._rooms.get(share.open_node)
        if room is None or not room.fits(shape, room.idle):
            wanted = max(1, expected - share.workers)
            room = self._best_room(share, wanted) if self._satellites_left else None
            if room is None:
                return False
            self._satellites_left -= 1
            if self._satellites_are_few:
                workers = min(wanted, room.fits(shape, room.idle), share.due.workers - share.workers)
        room.take(Resources.of_workers(shape, workers))
        self._openings.changed(room.node.name)
        share.open_node = room.node.name
        share.dealt[room.node.name] = share.dealt.get(room.node.name, 0) + workers
        share.workers += workers
        return True

    def _best_room(self, share: _Share, wanted: int) -> Room | None:
        """The tightest node that holds all `wanted`, else the roomiest; the base's own node last."""
        own: str | None = None
        pays_there = partial(self._pays_with, share)
        for name in self._openings.tightest_first(self._kind(share.job), wanted, pays_there):
            if name in share.closed or name in share.dealt:
                continue
            if name not in share.job.base_nodes:
                return self._rooms[name]
            own = own or name
        return None if own is None else self._rooms[own]

    def _room_for(self, share: _Share) -> int:
        """Workers that the job could be given more on all nodes that it may open."""
        kind = self._kind(share.job)
        held = {name: self._openings.holds(kind, name) for name in share.closed | share.dealt.keys()}
        closed = sum(fits for name, fits in held.items() if fits and self._pays(share, name))
        return self._openings.total(kind, partial(self._pays_with, share)) - closed

    def _may_open(self, share: _Share, node: str) -> bool:
        free = node not in share.closed and node not in share.dealt
        return free and self._suits(share.job, node) and self._pays(share, node)

    def _kind(self, job: ElasticJob) -> Kind:
        """Which nodes suit: of the GPU type that its base is on, or all if it may be on several at once.

        Where a job names a type, it does not fit anywhere else; where it uses no GPUs, none matters.
        """
        if job.heterogeneous or job.shape.gpu_type or not job.shape.gpus:
            return Kind(job.shape)
        types = (self._rooms[name].node.gpu_type for name in job.base_nodes if name in self._rooms)
        return Kind(job.shape, frozenset(types))

    def _suits(self, job: ElasticJob, node: str) -> bool:
        types = self._kind(job).gpu_types
        return types is None or self._rooms[node].node.gpu_type in types

    def _pays(self, share: _Share, node: str) -> bool:
        """Whether a satellite there does more than it costs until its GPUs are likely to be wanted back."""
        room, shape = self._rooms[node], share.job.shape
        fits = room.fits(shape, room.idle) or room.fits(shape, Resources.of_node(room.node))
        return self._pays_with(share, fits, self._stays[node])

    def _pays_with(self, share: _Share, fits: int, stay_s: float) -> bool:
        """Likewise, where so many workers fit and GPUs stay for so long.

        While it starts, the job trains as before. Of a job of which nothing is known it is taken to.
        """
        job, known = share.job, self._known.get(share.job.key)
        if known is None or stay_s == math.inf:
            return True
        grown = min(share.due.workers, share.workers + fits)
        nodes = len(job.base_nodes) + len(job.grants)
        rates = rate(known, self._before(share), nodes), rate(known, grown, nodes + 1)
        return pays(*rates, max(0.0, stay_s - START_S), PAUSE_S)

    def _expected(self) -> dict[JobKey, int]:
        """About how many workers each job will end up with: idle GPUs as if they lay on one node.

        It only guides which node is opened, so that a job's workers lie on few nodes.
        """
        sizes = {key: share.workers for key, share in self._shares.items() if self._takes_part(share)}
        left = {key: self._room_for(self._shares[key]) for key in sizes}
        total = max(left.values(), default=0)
        queue = [(workers, key) for key, workers in sizes.items()]
        heapq.heapify(queue)
        while queue and total > 0:
            workers, key = heapq.heappop(queue)
            if workers < self._shares[key].due.workers and left[key] > 0:
                sizes[key], left[key], total = workers + 1, left[key] - 1, total - 1
                heapq.heappush(queue, (workers + 1, key))
        return sizes

    def _growth(self, share: _Share) -> Iterator[Grow]:
        """What was dealt, unless satellites on their way out still hold GPUs up to the job's ceiling."""
        job = share.job
        before = self._before(share)
        left = job.ceiling - job.base_workers - sum(grant.workers for grant in job.grants)
        for node, workers in share.dealt.items():
            if workers > left:
                continue
            left -= workers
            room = f"{node} has idle GPUs for {_count(workers, 'worker')}"
            why = f"{room}; job {job.key} has {before} of {job.ceiling}"
            yield Grow(job.key, node, workers, satellite_partition(self._snapshot, node), why)

    # Rebalancing.

    def _rebalance(self) -> None:
        """One satellite of another job for the poorest without room, if both end up nearer their dues."""
        now = self._snapshot.at
        poor = sorted(
            (
                share
                for share in self._shares.values()
                if share.may_grow_at <= now and self._takes_part(share)
            ),
            key=lambda share: (share.workers, share.job.key),
        )
        donors = self._donors() if poor else []
        soon: dict[Kind, list[str]] = {}
        for share in poor:
            kind = self._kind(share.job)
            if kind not in soon:
                soon[kind] = [name for name in self._nodes if self._fits_soon(kind, self._rooms[name])]
            if any(self._may_open(share, name) for name in soon[kind]):
                continue  # something on its way out will do
            least_loss = self._best_donation if self._sizing is None else self._least_needed
            donation = least_loss(share, donors)
            if donation is not None:
                self._withdraw(
                    donation,
                    f"job {share.job.key} has only {share.workers} of {share.due.workers} workers,"
                    f" job {donation.job.key} has {self._shares[donation.job.key].workers}:"
                    f" {donation.grant.node} is shared out anew",
                )
                return

    def _donors(self) -> list[tuple[_Share, Standing]]:
        """Satellites that may be given away, of the largest jobs first."""
        standing = (
            each for name in self._nodes if self._rooms[name].usable for each in self._rooms[name].standing
        )
        found = [(self._shares[each.job.key], each) for each in standing if each.job.key in self._shares]
        able = [(rich, each) for rich, each in found if self._may_donate(rich, each)]
        if self._sizing is not None:
            able = [(rich, each) for rich, each in able if rich.workers > rich.due.workers]
        return sorted(able, key=lambda donor: -donor[0].workers)

    @staticmethod
    def _fits_soon(kind: Kind, room: Room) -> bool:
        return room.fits(kind.shape, room.idle + room.coming) > 0

    def _least_needed(self, poor: _Share, donors: Sequence[tuple[_Share, Standing]]) -> Standing | None:
        """The satellite whose job falls least below its due without it, by less than `poor` gains."""
        best: tuple[tuple[int, float, str], Standing] | None = None
        for rich, standing in donors:
            name = standing.grant.node
            if rich is poor or not self._may_open(poor, name):
                continue
            room = self._rooms[name]
            free = room.idle + room.coming + standing.resources
            gain = min(poor.due.workers - poor.workers, room.fits(poor.job.shape, free))
            lost = standing.grant.workers - (rich.workers - rich.due.workers)
            rank = lost, standing.started_at, standing.grant.grant_id
            if gain > max(0, lost) and (best is None or rank < best[0]):
                best = rank, standing
        return best[1] if best else None

    def _best_donation(self, poor: _Share, donors: Sequence[tuple[_Share, Standing]]) -> Standing | None:
        best: tuple[tuple[int, int, float, str], Standing] | None = None
        for rich, standing in donors:
            if rich.workers < poor.workers + 2:
                break  # nor are the others larger
            if rich is poor or not self._may_open(poor, standing.grant.node):
                continue
            worst = self._worst_after(poor, rich, standing)
            if worst is None:
                continue
            rank = (-worst, standing.grant.workers, standing.started_at, standing.grant.grant_id)
            if best is None or rank < best[0]:
                best = rank, standing
        return best[1] if best else None

    def _worst_after(self, poor: _Share, rich: _Share, standing: Standing) -> int | None:
        """The smaller of both sizes once `standing` has been shared out anew; None if not worth it."""
        room, lost = self._rooms[standing.grant.node], standing.grant.workers
        free = room.idle + room.coming + standing.resources
        alone = not self._satellites_left  # otherwise there would be two satellites instead of one
        poor_size, rich_size = _share_out(free, room, poor, rich, rich.workers - lost, alone=alone)
        gain = poor_size - poor.workers
        worst = min(poor_size, rich_size)
        return worst if worst > poor.workers and gain >= _REBALANCE_GAIN * lost else None

    def _may_donate(self, rich: _Share, standing: Standing) -> bool:
        rested = rich.rested_at <= self._snapshot.at and not rich.dealt
        return rested and self._may_give(rich, standing)

    def _may_give(self, share: _Share, standing: Standing) -> bool:
        settled = standing.grant.state in (SatelliteState.WARMING, SatelliteState.TRAINING)
        steady = share.job.scalable and not share.job.errand
        return settled and steady and standing.grant.grant_id not in self._withdrawn

    # Saying why.

    def _sentence(self, share: _Share) -> str:
        job = share.job
        now = self._snapshot.at
        have = self._before(share)
        size = f"{have} of {job.ceiling} workers"
        rests = job.scalable and not job.errand and job.rest_until > now and have < job.ceiling
        if have >= share.due.workers and not rests:
            return f"{size}: {self._why_no_more(share)}"
        if not job.scalable and job.unscalable_why:
            return f"{size}: {job.unscalable_why}"
        if not job.scalable:
            return f"{size}: the script has not entered hvd.elastic.run yet, so it cannot be resized"
        if job.key in self._resting:
            return f"{size}: gives workers back now"
        if job.errand:
            return f"{size}: is not resized while a {job.errand} is under way"
        if share.dealt and share.may_grow_at <= now and not any(self._growth(share)):
            leaving = sum(grant.workers for grant in job.grants) + job.base_workers - have
            return f"{size}: grows when its {_count(leaving, 'worker')} on the way out have left"
        if share.dealt and share.may_grow_at <= now:
            granted = ", ".join(f"{workers} more on {node}" for node, workers in share.dealt.items())
            return f"{size}: is granted {granted}"
        if job.rest_until > now:
            return f"{size}: waits {job.rest_until - now:.0f} s, because its last grant came to nothing"
        if share.may_grow_at > now:
            kept = f"; {_count(sum(share.dealt.values()), 'worker')} kept for it" if share.dealt else ""
            return f"{size}: waits {share.may_grow_at - now:.0f} s before its next resize{kept}"
        return f"{size}: {self._no_room(share)}"

    def _why_no_more(self, share: _Share) -> str:
        job = share.job
        if share.due.workers < job.ceiling:
            return share.due.why or self._why_not_due(share)
        if job.wanted is not None and job.ceiling < job.workers.max:
            return f"capped by its owner, the maximum is {job.workers.max}"
        return "all"

    def _why_not_due(self, share: _Share) -> str:
        """The policy leaves the job as it is: there is no room, or others have more use for it."""
        return f"{share.due.workers} are its due now" if self._room_for(share) else self._no_room(share)

    @staticmethod
    def _before(share: _Share) -> int:
        """What the job has, without what it is dealt in this plan."""
        return share.workers - sum(share.dealt.values())

    def _no_room(self, share: _Share) -> str:
        partition = self._snapshot.satellite_partition
        if not self._nodes and not self._slow:
            return f"partition {partition} has no nodes that are up"
        if not self._satellites_left and self._room_for(share):
            return self._why_no_more_satellites()
        reasons = chain(
            self._kept_for_pending(share),
            self._closed_nodes(share),
            self._slow_nodes(share),
            self._wanted_back_soon(share),
            self._of_another_type(share),
            self._gpus_without_cpus(share),
        )
        said = list(islice(reasons, _REASONS))
        if not said:
            return f"no idle GPU on any node of partition {partition}{' or on loan' if self._lent else ''}"
        return "; ".join([*said, *(["and so on"] if any(True for _ in reasons) else [])])

    def _kept_for_pending(self, share: _Share) -> Iterator[str]:
        for claim in self._claims:
            if any(name in self._stays and name not in share.closed for name in claim.nodes):
                job = claim.job
                yield f"job {job.job_id} (pending, {job.user}) is about to start on {_list(claim.nodes)}"

    def _closed_nodes(self, share: _Share) -> Iterator[str]:
        now = self._snapshot.at
        slow = self._slow_of.get(share.job.user, {}).keys()
        for name in sorted((share.closed & self._stays.keys()) - slow):
            room = self._rooms[name]
            if not room.fits(share.job.shape, room.idle):
                continue
            retry_at = share.job.retry_at.get(name, 0.0)
            if retry_at > now:
                yield f"{name} failed it and is tried again in {retry_at - now:.0f} s"
            else:
                yield f"{name} has idle GPUs beside the job's own satellite there, which keeps its size"

    def _slow_nodes(self, share: _Share) -> Iterator[str]:
        of_user = self._slow_of.get(share.job.user, {})
        for name in sorted(self._rooms.keys() & {*self._left_alone, *of_user}):
            room, slow = self._rooms[name], self._slow.get(name) or of_user[name]
            if room.fits(share.job.shape, room.idle):
                left_s = slow.until_at - self._snapshot.at
                yield f"{name} is left alone for {left_s:.0f} s more: {slow}"

    def _wanted_back_soon(self, share: _Share) -> Iterator[str]:
        too_short = self._openings.not_paying(Kind(share.job.shape), partial(self._pays_with, share))
        for name in too_short:
            stay = f"about {self._stays[name]:.0f} s"
            yield f"{name} has idle GPUs, but they are likely to stay for {stay}: too short to pay"

    def _of_another_type(self, share: _Share) -> Iterator[str]:
        for name in self._with_idle_gpus:
            room = self._rooms[name]
            if room.idle.gpus >= share.job.shape.gpus > 0 and not self._suits(share.job, name):
                which = f"{name}, on loan," if name in self._lent else name
                kind = room.node.gpu_type or "of another type"
                yield f"{which} has idle GPUs, but they are {kind} and the job runs on another type"

    def _gpus_without_cpus(self, share: _Share) -> Iterator[str]:
        shape = share.job.shape
        for name in self._with_idle_gpus:
            room = self._rooms[name]
            if not shape.gpus or room.idle.gpus < shape.gpus or room.fits(shape, room.idle):
                continue
            if shape.gpu_type and shape.gpu_type != room.node.gpu_type:
                yield f"the idle GPUs of {name} are not of type {shape.gpu_type}"
            else:
                yield f"{name} has idle GPUs but not the CPUs or memory of a worker"

    @cached_property
    def _with_idle_gpus(self) -> list[str]:
        """Nodes that have some left when all that can be dealt has been."""
        return [name for name in self._nodes if self._rooms[name].idle.gpus]


def _slow_nodes(
    slow: Iterable[SlowGpu],
) -> tuple[dict[str, SlowGpu], dict[str, dict[str, SlowGpu]]]:
    """By node, what nobody gets: two users say so. And by user and node, what that user does not get."""
    users: dict[str, set[str]] = {}
    everybody: dict[str, SlowGpu] = {}
    of_user: dict[str, dict[str, SlowGpu]] = {}
    for gpu in slow:
        said = users.setdefault(gpu.node, set())
        said.add(gpu.user)
        of_user.setdefault(gpu.user, {})[gpu.node] = gpu
        if "" in said or len(said) > 1:
            everybody[gpu.node] = gpu
    return everybody, of_user


def _left(max_satellites: int | None, jobs: Iterable[ElasticJob]) -> float:
    """How many satellites more there may be; infinite where there is no limit."""
    if max_satellites is None:
        return math.inf
    return max(0, max_satellites - sum(len(job.grants) for job in jobs))


def _share_out(
    free: Resources, room: Room, poor: _Share, rich: _Share, rich_workers: int, *, alone: bool
) -> tuple[int, int]:
    """Sizes of both once `free` of one node has been dealt to them, a worker at a time to the smaller.

    `alone`: to the poor one only.
    """
    sizes = {True: poor.workers, False: rich_workers}
    shares = {True: poor, False: rich}
    open_to = {True} if alone else {True, False}
    while open_to:
        is_poor = min(open_to, key=lambda who: (sizes[who], shares[who].job.key))
        job = shares[is_poor].job
        if sizes[is_poor] >= job.ceiling or not room.fits(job.shape, free):
            open_to.discard(is_poor)
            continue
        free = free.minus(Resources.of_workers(job.shape, 1))
        sizes[is_poor] += 1
    return sizes[True], sizes[False]


def _fewest_workers(mine: Sequence[Standing], excess: int) -> tuple[Standing, ...]:
    """Satellites with at least `excess` workers, as few as possible; the youngest of equals."""
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


def _smallest_first(mine: Sequence[Standing], excess: int) -> tuple[Standing, ...]:
    chosen: list[Standing] = []
    for standing in sorted(mine, key=lambda each: (each.grant.workers, -each.started_at)):
        if excess <= 0:
            break
        chosen.append(standing)
        excess -= standing.grant.workers
    return tuple(chosen)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _list(names: Sequence[str]) -> str:
    """``t1, t2 and 3 more``."""
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"
