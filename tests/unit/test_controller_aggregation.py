"""The controller with pool Aggregators: who is told what, with which tokens, and what people read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import BOB, World

from flexo.aggregation.master import LEAST_QUOTA
from flexo.aggregation.settings import AggregationSettings
from flexo.control.pooled_aggregation import TOKEN_LIFE_S, PooledAggregation, expiry
from flexo.model.aggregation import (
    AggregationUse,
    AggregatorOffers,
    Eviction,
    JobSums,
    PoolAggregator,
    UsedAggregator,
)
from flexo.model.queue import JobKey
from flexo.service.admin_service import _jobs
from flexo_protos.aggregation_token import BadToken, check_for

MB = 1_000_000


class FakePool:
    """Attached Aggregators, and what they are told."""

    def __init__(self) -> None:
        self.aggregators: dict[str, PoolAggregator] = {}
        self.evicted: list[Eviction] = []
        self.drained: list[str] = []

    def add(self, host: str, key: bytes) -> PoolAggregator:
        each = PoolAggregator(host, 7000, 64_000 * MB, 10_000 * MB, key)
        self.aggregators[each.name] = each
        return each

    def attached(self) -> tuple[PoolAggregator, ...]:
        return tuple(self.aggregators.values())

    def evict(self, eviction: Eviction) -> None:
        self.evicted.append(eviction)

    def drain(self, aggregator: str) -> None:
        self.drained.append(aggregator)


class PoolWorld(World):
    """A World whose flexod has pool Aggregators."""

    def __init__(self, directory, **aggregation) -> None:
        self.pool = FakePool()
        self.assigned: dict[JobKey, AggregatorOffers] = {}
        self.rules = AggregationSettings(enabled=True, **aggregation)
        super().__init__(directory)

    def new_controller(self):
        pooled = PooledAggregation(self.rules, self.pool, self._assign, steady=self.cluster.clock)
        return super().new_controller(aggregation=pooled)

    def _assign(self, key: JobKey, offers: AggregatorOffers) -> None:
        self.assigned[key] = offers

    def pooled_job(self, job_id: int = 1, node: str = "t1", **changes):
        leader = self.job(job_id, "1-1", node, **changes)
        leader.says["aggregation"] = AggregationUse(True, 10 * MB, 0.2, 1, 0, 0, 1)
        return leader

    def train(self, seconds: float) -> None:
        """Let jobs follow their assignments for this time."""
        for _ in range(round(seconds / 2)):
            self.go(2)
            for key, leader in self.leaders.attached.items():
                offers, use = self.assigned.get(key), leader.says.get("aggregation")
                if use is None:  # it is all-reduced
                    continue
                if offers is None or offers.version == use.version:
                    leader.says["aggregation"] = replace(use, iterations=use.iterations + 10)
                    continue
                used = tuple(UsedAggregator(f"{each.host}:{each.port}", each.share) for each in offers.offers)
                leader.says["aggregation"] = replace(use, version=offers.version, iterations=0, used=used)


@pytest.fixture
def world(tmp_path) -> PoolWorld:
    return PoolWorld(tmp_path)


def test_a_job_gets_a_token_that_only_its_aggregator_accepts(world):
    first, other = world.pool.add("c1", b"1" * 32), world.pool.add("c2", b"2" * 32)
    world.pooled_job()
    world.train(4)
    (offer,) = world.assigned[JobKey(1)].offers
    mine, theirs = (first, other) if offer.host == "c1" else (other, first)
    token = check_for(offer.token, mine.key, world.cluster.now, "1")
    assert (token.user, token.quota) == ("ada", 2 * LEAST_QUOTA)
    with pytest.raises(BadToken):
        check_for(offer.token, theirs.key, world.cluster.now, "1")


def test_a_job_that_wants_none_is_told_nothing(world):
    world.pool.add("c1", b"1" * 32)
    leader = world.job()
    world.go(4)
    assert not world.assigned
    leader.says["aggregation"] = AggregationUse(False, 10 * MB, 0.2, 1, 0, 0, 1)
    world.go(4)
    assert not world.assigned


def test_two_jobs_of_one_user_share_and_one_of_another_user_does_not(world):
    world.pool.add("c1", b"1" * 32)
    world.pooled_job(1, "t1")
    world.train(60)
    world.pooled_job(2, "t2")
    world.pooled_job(3, "t3", owner=BOB, user="bob")
    world.train(100)
    assert world.assigned[JobKey(1)].offers[0].host == world.assigned[JobKey(2)].offers[0].host
    assert JobKey(3) not in world.assigned


def test_why_names_the_aggregators_and_what_sharing_costs(world):
    world.pool.add("c1", b"1" * 32)
    leader = world.pooled_job()
    world.train(100)
    use = leader.says["aggregation"]
    leader.says["aggregation"] = replace(use, iteration_s=0.21)
    world.go(2)
    said = " ".join(world.controller.explain(1))
    assert "c1:7000 (100%)" in said
    assert "costs it 4.8% of its speed" in said


def test_a_job_that_leaves_the_choice_gets_the_pool_where_no_satellite_can_be(world):
    world.pool.add("c1", b"1" * 32)
    leader = world.pooled_job()
    own = replace(leader.says["aggregation"], wants_pool=False, nodes=2, auto=True, busy=0.3, iterations=100)
    leader.says["aggregation"] = own
    world.train(6)
    leader.says["aggregation"] = replace(leader.says["aggregation"], iteration_s=0.15)
    world.train(100)
    assert world.assigned[JobKey(1)].offers
    said = " ".join(world.controller.explain(1))
    assert "pool Aggregators sum its gradients" in said
    assert "flexod has chosen the pool for it (--aggregators=auto)" in said
    slower = replace(leader.says["aggregation"], iteration_s=0.25, iterations=1000)
    leader.says["aggregation"] = slower
    world.train(20)
    assert not world.assigned[JobKey(1)].offers
    assert "own nodes sum its gradients (--aggregators=auto): an iteration takes" in " ".join(
        world.controller.explain(1)
    )


def test_why_names_the_job_and_the_node_of_an_aggregator_only_if_the_queue_confirms_them(world):
    """Who starts an Aggregator writes the number; the queue says whose job it is."""
    known = world.pool.add("c1", b"1" * 32)
    world.job(2, "1-1", "t2")
    world.pooled_job()
    (owner,) = {job.owner for job in world.cluster.queue.values() if job.job_id == 2}
    for number, whose, named in ((2, BOB, False), (3, owner, False), (2, None, False), (2, owner, True)):
        world.pool.aggregators[known.name] = replace(known, slurm_job_id=number, owner=whose)
        world.train(4)
        (shown,) = world.controller.status().aggregation.aggregators
        assert (shown.cluster_job, shown.node) == ((2, "t2") if named else (0, ""))
        assert ("c1:7000 (job 2 on t2, 100%)" in " ".join(world.controller.explain(1))) is named


def test_jobs_show_who_is_assigned_to_them_and_which_use_their_own_or_none(world):
    world.pool.add("c1", b"1" * 32)
    pooled, own = world.pooled_job(1, "t1"), world.pooled_job(2, "t2")
    own.says["aggregation"] = replace(own.says["aggregation"], wants_pool=False)
    world.job(3, "1-1", "t3")
    world.train(100)
    pooled.says["aggregation"] = replace(pooled.says["aggregation"], iteration_s=0.21)
    world.go(2)
    shared, own, none = (job.aggregation for job in _jobs(world.controller.view()).jobs)
    assert (shared.wants_pool, shared.state, shared.aggregators[0].name) == (True, "shares", "c1:7000")
    assert shared.loss == pytest.approx(0.048, abs=0.001)
    assert (own.wants_pool, own.state, list(own.aggregators)) == (False, "", [])
    assert not none.ByteSize()


def test_an_aggregators_use_of_its_core_is_that_of_the_last_seconds(world):
    known = world.pool.add("c1", b"1" * 32)
    for second in range(0, 60, 2):
        world.pool.aggregators[known.name] = replace(known, cpu_s=100 + 0.25 * second)
        world.go(2)
    assert world.controller.status().aggregation.aggregators[0].used_cores == pytest.approx(0.25)


def test_why_says_what_a_job_waits_for(world):
    world.pooled_job()
    world.go(4)
    assert any("idle pool Aggregator" in each for each in world.controller.explain(1))


def test_comings_assignments_and_goings_are_events(world):
    each = world.pool.add("c1", b"1" * 32)
    world.pooled_job()
    world.train(4)
    assert "c1:7000" in world.last("assign")
    assert world.last("aggregator") == "pool Aggregator c1:7000 has come"
    world.pool.aggregators.clear()
    world.train(20)
    assert each.name in world.last("aggregator")
    assert "its own Aggregators" in world.last("assign")
    assert world.assigned[JobKey(1)].offers == ()


def test_the_end_of_a_job_evicts_it(world):
    each = world.pool.add("c1", b"1" * 32)
    world.pooled_job()
    world.train(10)
    world.pool.aggregators[each.name] = replace(each, jobs=(JobSums("1", 1, 1, 0.1, 0.0),))
    world.cluster.queue.clear()
    world.leaders.attached.clear()
    world.go(40)
    assert world.pool.evicted == [Eviction("c1:7000", "1")]


def test_an_aggregator_that_nobody_needs_is_told_to_end(tmp_path):
    world = PoolWorld(tmp_path, drain_after_s=20.0)
    world.pool.add("c1", b"1" * 32)
    world.pool.add("c2", b"2" * 32)
    world.pooled_job()
    world.train(30)
    used = world.assigned[JobKey(1)].offers[0].host
    assert world.pool.drained == ["c2:7000" if used == "c1" else "c1:7000"]


def test_a_restarted_flexod_tells_the_same_assignment_again(world):
    each = world.pool.add("c1", b"1" * 32)
    world.pooled_job()
    world.train(100)
    world.pool.aggregators[each.name] = replace(each, jobs=(JobSums("1", 1, 1, 0.1, 0.0),))
    before = world.assigned.pop(JobKey(1))
    world.restart()
    world.train(20)
    assert world.assigned[JobKey(1)] == before


def test_a_token_is_the_same_for_half_of_its_life_and_renewed_in_time():
    now = 1_790_000_000.0
    assert TOKEN_LIFE_S / 2 <= expiry(now) - now <= TOKEN_LIFE_S
    assert expiry(now) == expiry(now + 1)
    assert expiry(now) < expiry(now + TOKEN_LIFE_S / 2)
    assert expiry(now + TOKEN_LIFE_S / 2) - TOKEN_LIFE_S / 2 <= expiry(now)


def test_a_dry_run_assigns_nobody(tmp_path):
    world = PoolWorld(tmp_path)
    world.settings = world.settings.model_copy(
        update={"controller": world.settings.controller.model_copy(update={"dry_run": True})}
    )
    world.restart()
    world.pool.add("c1", b"1" * 32)
    world.pooled_job()
    world.go(6)
    assert not world.assigned
