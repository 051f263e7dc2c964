"""One user does anything that Slurm permits and has his leader say anything; others get what they would get.

What they would get: as in a twin of the cluster where he claims nothing. His elastic job is capped there at
what it really holds here, and jobs without a comment hold what his other jobs really hold.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from controller_world import BOB, FakeLeader
from hostile_world import FIRST_OF_HIS, HELD, HIS, NODES, TIME_LIMIT_S, VICTIM, HostileLeader, HostileWorld
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from thorough import examples

from flexo.grant_signatures import GrantSigner
from flexo.issued_grants import IssuedGrant
from flexo.model.elastic import FailureReason, GrantFailure, SatelliteReport, SatelliteState
from flexo.model.queue import JobKey, JobState, SatelliteTag
from flexo_protos.resources import Resources

SETTLED_AFTER = 60
"""Cycles: several leases, and more than any rest of an honest job."""
LOOKED_AT = 24
"""Cycles at the end of that in which workers are counted. A resize may be under way in some, and a grant that
is not used lasts for nine.
"""

nodes = st.sampled_from(NODES)
sizes = st.sampled_from([0, 1, 1, 1, 2, 4])
picks = st.integers(0, 99)
grant_ids = st.sampled_from(["invented", "mine", "mine ended", "the victim's"])
bases = st.sampled_from([HIS, HIS, HIS, HIS, VICTIM, JobKey(77), JobKey(2, 5)])
states = st.sampled_from(SatelliteState)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class HostileUser(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.worlds = []
        for name in ("hostile", "twin"):
            path = Path(self.folder.name) / name
            path.mkdir()
            self.worlds.append(HostileWorld(path, honest=name == "twin"))
        self.hostile, self.twin = self.worlds
        self.last_id = FIRST_OF_HIS
        self.cycle(2)

    def teardown(self) -> None:
        try:
            self.compare()
        finally:
            for world in self.worlds:
                world.event_store.close()
            self.folder.cleanup()

    @property
    def his(self) -> HostileLeader:
        return self.hostile.his

    def cycle(self, times: int) -> None:
        for _ in range(times):
            self.hostile.cycle()
            self.twin.do_as(self.hostile)
            self.twin.cycle()

    def his_job(self, pick: int):
        jobs = [job for job in self.hostile.cluster.queue.values() if job.owner == BOB and job.job_id != 2]
        return jobs[pick % len(jobs)] if jobs else None

    def grant_id(self, kind: str, pick: int) -> str:
        standing = [offer.grant_id for offer in self.his.told[-1]] if self.his.told else []
        ended = sorted(self.his.offered.keys() - set(standing))
        known = {
            "mine": standing,
            "mine ended": ended,
            "the victim's": sorted(self.hostile.victims[0].own),
        }.get(kind)
        return known[pick % len(known)] if known else f"invented-{pick}"

    # Slurm.

    @rule(
        base=bases,
        kind=grant_ids,
        pick=picks,
        node=nodes,
        gpus=sizes,
        workers=st.integers(1, 8),
        held=st.booleans(),
        tasks=st.sampled_from([1, 1, 3, 12]),
        spread=st.integers(0, 1),
        limit_s=st.sampled_from([TIME_LIMIT_S, 3600, None]),
    )
    def submit_jobs_with_a_tag(
        self, base, kind, pick, node, gpus, workers, held, tasks, spread, limit_s
    ) -> None:
        first = NODES.index(node)
        for task in range(tasks):
            self.last_id += 1
            where = NODES[(first + task * spread) % len(NODES)]
            # the adapter drops the tag of another user's job: without_foreign_tags
            tag = None if base == VICTIM else SatelliteTag(base, self.grant_id(kind, pick + task), workers)
            changes = {"time_limit_s": limit_s} | ({"reason": HELD, "priority": 0} if held else {})
            self.hostile.submit(self.last_id, tag, where, gpus, **changes)

    @rule(pick=picks)
    def copy_a_real_satellite(self, pick) -> None:
        """The same comment, node and size as a satellite that flexod granted him."""
        own = [job for job in self.hostile.cluster.queue.values() if job.job_id in self.his.own.values()]
        if own:
            job = own[pick % len(own)]
            self.last_id += 1
            node = next(iter(job.nodes or job.required_nodes))
            self.hostile.submit(self.last_id, job.satellite, node, job.resources.gpus)

    @rule(pick=picks, kind=grant_ids, workers=st.integers(1, 8))
    def change_a_comment(self, pick, kind, workers) -> None:
        if job := self.his_job(pick):
            self.hostile.change(job, satellite=SatelliteTag(HIS, self.grant_id(kind, pick), workers))

    @rule(pick=picks, held=st.booleans())
    def hold_or_release(self, pick, held) -> None:
        job = self.his_job(pick)
        if job and job.state is JobState.PENDING:
            self.hostile.change(job, reason=HELD if held else "None", priority=0 if held else 1)

    @rule(pick=picks, gpus=sizes, node=nodes)
    def change_what_a_waiting_job_asks_for(self, pick, gpus, node) -> None:
        job = self.his_job(pick)
        if job and job.state is JobState.PENDING:
            self.hostile.change(job, gpus=gpus, cpus=max(1, gpus), required_nodes=frozenset({node}))

    @rule(pick=picks, what=st.sampled_from(["requeue", "suspend", "resume", "cancel"]))
    def requeue_suspend_resume_or_cancel(self, pick, what) -> None:
        job = self.his_job(pick)
        if job is None:
            return
        if what == "cancel":
            del self.hostile.cluster.queue[job.job_id]
        elif what == "requeue" and job.nodes:
            again = {"restart_count": job.restart_count + 1, "nodes": (), "started_at": None}
            self.hostile.change(
                job, state=JobState.PENDING, required_nodes=frozenset(job.nodes), reason=HELD, **again
            )
        elif what == "suspend" and job.state is JobState.RUNNING:
            self.hostile.change(job, state=JobState.SUSPENDED)
        elif what == "resume" and job.state is JobState.SUSPENDED:
            self.hostile.change(job, state=JobState.RUNNING)

    @rule()
    def requeue_his_base(self) -> None:
        for world in self.worlds:
            world.leaders.attached.pop(world.base.key, None)
            world.base = world.cluster.add(replace(world.base, restart_count=world.base.restart_count + 1))
            make = FakeLeader if world.honest else HostileLeader
            leader = make(world.cluster, world.base)
            if not world.honest:
                leader.offered, leader.signatures = self.his.offered, self.his.signatures
                leader.heard_at = self.his.heard_at
            world.his = world.leaders.attached[leader.key] = leader

    # His leader.

    @rule(submits=st.booleans(), cancels=st.booleans())
    def submit_or_cancel_nothing(self, submits, cancels) -> None:
        self.his.submits, self.his.cancels = submits, cancels

    @rule(
        claims=st.lists(
            st.tuples(grant_ids, picks, nodes, st.integers(1, 6), states, st.booleans(), st.integers(0, 3)),
            min_size=1,
            max_size=12,
        ),
        renews=st.booleans(),
    )
    def report_what_it_likes(self, claims, renews) -> None:
        self.his.renews = renews
        told = {}
        for kind, pick, node, workers, state, submitted, signed in claims:
            grant_id = self.grant_id(kind, pick)
            job = self.his_job(pick) if submitted else None
            told[grant_id] = SatelliteReport(
                job.job_id if job else 0,
                grant_id,
                node,
                workers,
                state,
                self.signature(signed, grant_id, node, workers),
            )
        self.his.claims = tuple(told.values())

    def signature(self, signed: int, grant_id: str, node: str, workers: int) -> bytes:
        if signed == 0:
            return b""
        if signed == 1:
            return self.his.signatures.get(grant_id, b"")
        if signed == 2:  # of another of his grants
            return next(iter(self.his.signatures.values()), b"")
        forged = IssuedGrant(HIS, grant_id, BOB, node, workers, "flex", Resources(workers, workers), 0.0)
        return GrantSigner(b"his own key" * 3).sign(forged, self.hostile.cluster.now + TIME_LIMIT_S)

    @rule()
    def report_the_truth(self) -> None:
        self.his.claims, self.his.says = None, {}

    @rule(gpus=st.integers(1, 4), training=st.integers(0, 50), changing=st.booleans())
    def say_anything_of_the_job(self, gpus, training, changing) -> None:
        self.his.shape = replace(self.his.shape, gpus=gpus, cpus=gpus)
        self.his.says = {"training_workers": training, "changing": changing}

    @rule(kind=grant_ids, pick=picks, reason=st.sampled_from(FailureReason))
    def give_a_grant_back(self, kind, pick, reason) -> None:
        failure = GrantFailure(self.his.key, self.grant_id(kind, pick), reason, "as he likes")
        self.hostile.leaders.failures.append(failure)

    @rule(reason=st.one_of(st.none(), st.sampled_from(FailureReason)), after_s=st.sampled_from([0.0, 40.0]))
    def give_every_grant_back_unused(self, reason, after_s) -> None:
        self.his.gives_back, self.his.after_s = reason, after_s

    @rule(there=st.booleans())
    def attach_or_leave(self, there) -> None:
        if there:
            self.hostile.leaders.attached[self.his.key] = self.his
        else:
            self.hostile.leaders.attached.pop(self.his.key, None)

    # Everybody.

    @rule(times=st.integers(1, 8))
    def time_passes(self, times) -> None:
        self.cycle(times)

    @rule(number=st.integers(0, 1), ready=st.booleans())
    def an_honest_job_grows_or_gives_back(self, number, ready) -> None:
        for world in self.worlds:
            world.victims[number].scalable = True
            world.controller.scale(world.victims[number].key, None if ready else 1)

    @rule(lost=st.booleans())
    def flexod_begins_anew(self, lost) -> None:
        for world in self.worlds:
            if lost:
                world.lose_event_store()
            else:
                world.event_store.close()
                world.restart()
        self.cycle(1)

    # What must hold.

    @invariant()
    def flexod_counts_what_it_granted_and_makes_no_mistake(self) -> None:
        assert not self.hostile.controller.status().trouble
        for view in self.hostile.controller.jobs():
            if view.job.key != self.his.key:
                continue
            assert view.job.granted_workers <= view.job.workers.max
            for grant in view.job.grants:
                assert (offer := self.his.offered.get(grant.grant_id)) is not None
                assert (offer.node, offer.workers) == (grant.node, grant.workers)

    def compare(self) -> None:
        """After a while in which he does nothing new, and everybody honest wants all that there is."""
        for world in self.worlds:
            for leader in world.victims:
                leader.scalable = True
                world.controller.scale(leader.key, None)
        self.cycle(SETTLED_AFTER - LOOKED_AT)
        seen: list[tuple[int, int, int]] = []
        for _ in range(LOOKED_AT):
            self.cycle(1)
            more = max(0, self.hostile.he_holds() - self.twin.he_holds())
            seen.append((self.hostile.workers(), self.twin.workers(), more))
        got = max(hostile + more for hostile, _, more in seen)
        due = min(twin for _, twin, _ in seen)
        assert got >= due, f"others have {seen[-1][0]} workers instead of {seen[-1][1]}"


HostileUser.TestCase.settings = settings(
    max_examples=examples(30),
    stateful_step_count=15,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # shrinking would take many minutes
)
TestOthersGetWhatTheyWouldGetWithoutHisClaims = HostileUser.TestCase


def grant_nothing_to(user: HostileUser) -> None:
    user.submit_or_cancel_nothing(submits=False, cancels=False)


def held_jobs(user: HostileUser) -> None:
    grant_nothing_to(user)
    where = {"node": "t1", "tasks": 12, "spread": 1}
    user.submit_jobs_with_a_tag(
        HIS, "invented", 3, gpus=1, workers=1, held=True, limit_s=TIME_LIMIT_S, **where
    )


def invented_grants(user: HostileUser) -> None:
    grant_nothing_to(user)
    pending = (SatelliteState.PENDING, False, 0)
    user.report_what_it_likes([("invented", n, NODES[n], 1, *pending) for n in range(12)], renews=True)


def running_jobs(user: HostileUser) -> None:
    grant_nothing_to(user)
    where = {"node": "t4", "tasks": 9, "spread": 1}
    user.submit_jobs_with_a_tag(
        HIS, "invented", 3, gpus=1, workers=1, held=False, limit_s=TIME_LIMIT_S, **where
    )
    user.cycle(30)


def copies_of_a_satellite(user: HostileUser) -> None:
    user.cycle(6)
    for pick in range(4):
        user.copy_a_real_satellite(pick)
        user.submit_jobs_with_a_tag(HIS, "mine", pick, f"t{6 + pick}", 1, 1, False, 3, 0, TIME_LIMIT_S)
    user.cycle(30)


def jobs_where_nothing_was_granted(user: HostileUser) -> None:
    user.his.submits = False
    user.cycle(2)
    for pick in range(4):
        user.submit_jobs_with_a_tag(HIS, "mine", pick, f"t{10 + pick % 4}", 1, 1, False, 2, 1, 3600)
    user.cycle(6)


def nothing_is_ever_submitted(user: HostileUser) -> None:
    """Not even what his leader had submitted before."""
    user.requeue_his_base()
    grant_nothing_to(user)


def unused_grants_given_back(reason: FailureReason, after_s: float) -> Callable[[HostileUser], None]:
    """He submits nothing, and has flexod believe that it was not his job's fault."""

    def story(user: HostileUser) -> None:
        nothing_is_ever_submitted(user)
        user.give_every_grant_back_unused(reason, after_s)

    story.__name__ = f"{reason.name}_after_{after_s:.0f}_s"
    return story


STORIES = (
    nothing_is_ever_submitted,
    unused_grants_given_back(FailureReason.PREEMPTED, 40.0),
    unused_grants_given_back(FailureReason.SLOW_GPU, 40.0),
    unused_grants_given_back(FailureReason.NOT_STARTED, 40.0),
    unused_grants_given_back(FailureReason.NOT_STARTED, 0.0),
    unused_grants_given_back(FailureReason.REFUSED, 0.0),
    held_jobs,
    invented_grants,
    running_jobs,
    copies_of_a_satellite,
    jobs_where_nothing_was_granted,
)


@pytest.mark.parametrize("story", STORIES)
def test_stories_that_once_took_gpus_from_others_take_none(story: Callable[[HostileUser], None]) -> None:
    user = HostileUser()
    story(user)
    user.flexod_counts_what_it_granted_and_makes_no_mistake()
    user.teardown()
