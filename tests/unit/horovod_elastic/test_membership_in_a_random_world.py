"""Whatever happens in whatever order, membership keeps its promises (world.py checks them at every step)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

BASES = st.sampled_from([{"b1": 1}, {"b1": 2}, {"b1": 2, "b2": 1}, {"b1": 1, "b2": 3}])
SATELLITES = ["s1", "s2", "s3"]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("join", "join", "ready", "ready", "ready", "enter", "enter", "commit", "commit", "commit"),
                *("kill", "release", "lose", "crash", "fail", "finish", "slow", "exit0"),
            ]
        ),
        st.integers(0, 7),
        st.integers(1, 3),
    ),
    max_size=60,
)


def play(world: World, events: list[tuple[str, int, int]]) -> None:
    """Let the events happen, as far as they can."""
    serial = 0
    for kind, which, slots in events:
        if world.end is not None:
            return
        workers = list(world.processes)
        satellites = [agent for agent in world.agents if agent.startswith("s")]
        worker = workers[which % len(workers)] if workers else ""
        satellite = satellites[which % len(satellites)] if satellites else ""
        if kind == "join" and len(satellites) < 3:
            serial += 1
            world.join(f"s{serial}", slots)
        elif kind == "ready" and worker:
            world.ready(worker)
        elif kind == "enter" and worker:
            world.enter_loop(worker)
        elif kind == "commit":
            world.commit()
        elif kind == "kill" and worker:
            world.exit(worker, -9)
        elif kind == "crash" and worker:
            world.exit(worker, 3)
        elif kind == "exit0" and worker and world.processes[worker].moment == "told to leave":
            world.exit(worker, 0)
        elif kind == "release" and satellite:
            world.release(satellite)
        elif kind == "lose" and satellite:
            world.lose(satellite)
        elif kind == "fail":
            world.fail(ahead=slots)
        elif kind == "finish" and which == 0:
            world.finish()
        elif kind == "slow":
            world.tick(100.0)


@settings(max_examples=300, deadline=None)
@given(base=BASES, events=EVENTS)
def test_promises_hold_and_nobody_waits_for_ever(
    base: dict[str, int], events: list[tuple[str, int, int]]
) -> None:
    world = World(base)
    for agent, slots in base.items():
        world.join(agent, slots)
    play(world, events)
    world.quieten()
    if world.end is None:
        waiting = {w: p.moment for w, p in world.processes.items() if p.moment != "training"}
        assert not waiting, "once the system is quiet everybody trains"
        assert world.training()
        for agent in world.dismissed:
            assert agent not in world.agents
        world.finish()
        world.quieten()
    assert world.end is not None, "the job ends when all have finished"
    assert not world.processes
    assert world.members.generation == len(world.forms)


@settings(max_examples=100, deadline=None)
@given(base=BASES, events=EVENTS)
def test_the_job_ends_when_everybody_is_gone(
    base: dict[str, int], events: list[tuple[str, int, int]]
) -> None:
    world = World(base)
    for agent, slots in base.items():
        world.join(agent, slots)
    play(world, events)
    for agent in list(world.agents):
        world.lose(agent)
    assert world.end is not None
    assert world.end.exit_code == 0 or world.end.exit_code > 0


@settings(max_examples=100, deadline=None)
@given(base=BASES, events=EVENTS)
def test_a_job_that_trains_to_its_end_ends_with_0_whatever_happened_before(
    base: dict[str, int], events: list[tuple[str, int, int]]
) -> None:
    world = World(base)
    for agent, slots in base.items():
        world.join(agent, slots)
    play(world, events)
    world.quieten()
    if world.end is None:
        world.finish()
        world.quieten()
        assert world.end is not None
        assert world.end.exit_code == 0
