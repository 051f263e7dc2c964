"""The policy applied again and again to clusters that carry its plans out: always safe, and soon at rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import elastic, node
from small_worlds import REST_S, World, elastic_jobs, nodes_of, queues, run
from thorough import examples

from flexo.model.plans import Plan, Shrink, Snapshot
from flexo.policies import satellites
from flexo.policies.greedy import Greedy


def greedily(seen: Snapshot) -> Plan:
    return satellites.plan(Greedy(), seen, REST_S)


@settings(max_examples=examples(100))
@given(data=st.data())
def test_it_never_overcommits_and_always_comes_to_rest(data):
    nodes = data.draw(nodes_of())
    names = [each.name for each in nodes]
    world = World(nodes, data.draw(elastic_jobs(names)), data.draw(queues(names)))
    run(world, 150, greedily)
    # a change from outside, and to rest again
    changed = data.draw(st.sampled_from(["more pending", "less pending", "caps", "a job ends"]))
    if changed == "more pending":
        world.queue = world.queue + [replace(job, job_id=job.job_id + 50) for job in data.draw(queues(names))]
    elif changed == "less pending":
        world.queue = world.queue[1:]
    elif changed == "caps":
        world.jobs = {
            key: replace(
                job, wanted=data.draw(st.one_of(st.none(), st.integers(job.workers.min, job.workers.max)))
            )
            for key, job in world.jobs.items()
        }
    else:
        world.jobs.pop(min(world.jobs))
    run(world, 150, greedily)


@settings(max_examples=examples(60))
@given(
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    arrivals=st.lists(st.integers(0, 20), min_size=2, max_size=5),
)
def test_like_jobs_end_up_even_within_the_granularity_of_satellites(gpus, arrivals):
    """Whoever has two workers more than another has them in satellites that are not worth sharing out anew.

    "Not worth it", as docs/explanation/policies-greedy.md says: the poorer job would gain less than a quarter
    of the satellite.
    """
    nodes = [node(f"n{number}", size) for number, size in enumerate(gpus)]
    world = World([*nodes, node("base", 8, used=8)], [], [])
    for step in range(max(arrivals) + 1):
        for number, arrival in enumerate(arrivals, start=1):
            if arrival == step:
                job = elastic(number, "1-64", base="base")
                world.jobs[job.key] = job
        world.carry_out(greedily(world.snapshot()))
    run(world, 300, greedily)
    for poor in world.jobs.values():
        for rich in world.jobs.values():
            for grant in rich.grants:
                own = {each.node for each in poor.grants}
                if grant.node in own or rich.granted_workers < poor.granted_workers + 2:
                    continue
                gain = (rich.granted_workers - poor.granted_workers) // 2
                assert min(gain, grant.workers) < max(1, 0.25 * grant.workers) or gain == 0
    idle = sum(each.gpus_idle for each in world.snapshot().nodes if each.name != "base")
    if idle:  # only beside a job's own satellite, which keeps its size
        for job in world.jobs.values():
            own = {grant.node for grant in job.grants}
            assert all(each.name in own for each in world.snapshot().nodes if each.gpus_idle)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_satellites_are_taken_only_for_jobs_that_can_then_start(data):
    nodes = data.draw(nodes_of())
    names = [each.name for each in nodes]
    world = World(nodes, data.draw(elastic_jobs(names)), [])
    run(world, 150, greedily)
    before = {grant.grant_id for job in world.jobs.values() for grant in job.grants}
    (waiting, *_) = data.draw(queues(names).filter(bool))
    world.queue = [waiting]
    decided = greedily(world.snapshot())
    # what is left over of the nodes may be shared out anew in the same plan, for elastic jobs
    taken = [
        action
        for action in decided.actions
        if isinstance(action, Shrink) and action.why.startswith("pending job")
    ]
    assert {action.grant_id for action in taken} <= before
    if not taken:
        return
    assert decided.set_aside == (waiting.job_id,)
    for spared in taken:  # each was needed: without it the others do not suffice
        others = tuple(action for action in taken if action is not spared)
        assert spared.grant_id in {
            action.grant_id
            for action in greedily(_left(world, Plan(others))).actions
            if isinstance(action, Shrink)
        }
    after = greedily(_left(world, decided))
    assert after.set_aside == (waiting.job_id,)
    assert not [action for action in after.actions if isinstance(action, Shrink)]


def _left(world: World, decided: Plan) -> Snapshot:
    """The cluster once the satellites that `decided` takes back have left."""
    later = World(world.nodes, list(world.jobs.values()), world.queue)
    later.now = world.now
    later.carry_out(decided)
    later.carry_out(Plan())
    return later.snapshot()
