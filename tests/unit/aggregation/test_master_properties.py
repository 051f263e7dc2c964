"""pMaster under random arrivals, ends, deaths, resizes and restarts: what holds at every instant."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pool_world import GB, MB, PoolWorld
from thorough import examples

USERS = ("ada", "bob")


@dataclass
class Histories:
    """What was told to each job so far."""

    versions: dict[int, int]
    shares: dict[int, object]


def act(world: PoolWorld, action: str, which: int, draw: st.DataObject) -> None:
    jobs, names = sorted(world.jobs), sorted(world.pool)
    if action == "job":
        world.add(
            len(world.jobs) + 10 * which + int(world.now) * 100,
            user=USERS[which % 2],
            alone_s=draw.draw(st.sampled_from((0.1, 0.2, 0.21, 0.5))),
            cpu_s=draw.draw(st.sampled_from((0.001, 0.02, 0.06, 0.3))),
            size=draw.draw(st.sampled_from((MB // 10, 10 * MB, 300 * MB))),
            reserves=draw.draw(st.integers(1, 3)),
            greedy_cpu_s=draw.draw(st.sampled_from((0.0, 0.0, 1.0))),
        )
    elif action == "aggregator":
        world.add_aggregator(memory=draw.draw(st.sampled_from((GB // 10, 64 * GB))))
    elif action == "end" and jobs:
        del world.jobs[jobs[which % len(jobs)]]
    elif action == "leader" and jobs:
        job = world.jobs[jobs[which % len(jobs)]]
        job.attached = not job.attached
    elif action == "resize" and jobs:
        job = world.jobs[jobs[which % len(jobs)]]
        job.nodes = 1 + which % 4
    elif action == "death" and names:
        del world.pool[names[which % len(names)]]
    elif action == "again" and names:
        name = names[which % len(names)]
        world.pool[name] = replace(world.pool[name], key=bytes([which % 256]) * 32)
    elif action == "flexod":
        world.restart_flexod()


def check(world: PoolWorld, before: Histories, share: str) -> None:
    for each in world.decided.assignments:
        number = each.job.job_id
        told = before.versions.get(number, 0)
        assert each.version >= told, "versions never fall"
        if each.version == told and number in before.shares:
            assert each.shares == before.shares[number], "another assignment has another version"
        before.versions[number], before.shares[number] = each.version, each.shares
        assert all(used.share > 0 for used in each.shares)
    users = {number: job.user for number, job in world.jobs.items()}
    for aggregator in world.decided.view.aggregators:
        tenants = {users[key.job_id] for key in aggregator.jobs if key.job_id in users}
        assert share == "all" or len(tenants) < 2, "two users share an Aggregator"
    for event in world.decided.events:
        reasons = ("loses", "not profiled", "not measured", "not taken", "too slow", "its profile says")
        assert event.kind != "revert" or any(reason in event.text for reason in reasons)


ACTIONS = ("job", "job", "job", "aggregator", "end", "leader", "resize", "death", "again")


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_two_users_never_share_versions_rise_and_reverts_have_reasons(data: st.DataObject) -> None:
    share = data.draw(st.sampled_from(("user", "all")))
    world = PoolWorld(data.draw(st.integers(0, 4)), share=share, period_s=20.0, rest_s=60.0)
    history = Histories({}, {})
    steps = st.tuples(st.sampled_from((*ACTIONS, "flexod")), st.integers(0, 50), st.integers(1, 60))
    for action, which, seconds in data.draw(st.lists(steps, min_size=3, max_size=14)):
        act(world, action, which, data)
        for _ in range(seconds):
            world.tick()
            check(world, history, share)


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_no_decision_breaks_a_limit(data: st.DataObject) -> None:
    world = PoolWorld(data.draw(st.integers(1, 4)), period_s=20.0, rest_s=60.0)
    steps = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 50), st.integers(1, 60))
    for action, which, seconds in data.draw(st.lists(steps, min_size=3, max_size=14)):
        act(world, action, which, data)
        for _ in range(seconds):
            world.tick()
            state = world.master._state
            assert state.pool.broken_limits(state.limits) == ()


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_a_quiet_pool_stays_as_it_is_when_flexod_starts_again(data: st.DataObject) -> None:
    world = PoolWorld(4, period_s=20.0)
    for number in range(1, data.draw(st.integers(2, 6))):
        cpu_s = data.draw(st.sampled_from((0.01, 0.03)))
        world.add(number, user=USERS[number % 2], cpu_s=cpu_s, reserves=data.draw(st.integers(1, 2)))
    world.run(600)
    before = {number: (job.version, job.used) for number, job in world.jobs.items()}
    world.restart_flexod()
    world.run(15)
    assert {number: (job.version, job.used) for number, job in world.jobs.items()} == before
