"""Whatever happens in whatever order, membership keeps its promises (world.py checks them at every step)."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from thorough import examples
from world import World

BASES = st.sampled_from([{"b1": 1}, {"b1": 2}, {"b1": 2, "b2": 1}, {"b1": 1, "b2": 3}])
SATELLITES = ["s1", "s2", "s3"]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("join", "join", "ready", "ready", "ready", "enter", "enter", "commit", "commit", "commit"),
                *("deliver", "deliver", "deliver", "step", "step", "step", "step", "limit"),
                *("kill", "crash", "release", "lose", "finish", "wait", "new_leader", "new_leader", "fail"),
            ]
        ),
        st.integers(0, 7),
        st.integers(1, 3),
    ),
    max_size=60,
)


class Play:
    """Lets things happen to some worker or some satellite, as far as they can."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._serial = 0

    def run(self, events: list[tuple[str, int, int]]) -> World:
        for kind, which, number in events:
            if self._world.end is not None:
                break
            getattr(self, kind)(which, number)
        return self._world

    def join(self, which: int, number: int) -> None:
        if len(self._satellites()) < 3:
            self._serial += 1
            self._world.join(f"s{self._serial}", number * self._world.unit)

    def ready(self, which: int, number: int) -> None:
        for worker_id in self._worker(which):
            self._world.ready(worker_id)

    def enter(self, which: int, number: int) -> None:
        for worker_id in self._worker(which):
            self._world.enter_loop(worker_id)

    def commit(self, which: int, number: int) -> None:
        self._world.commit()

    def kill(self, which: int, number: int) -> None:
        for worker_id in self._worker(which):
            self._world.exit(worker_id, -9)

    def crash(self, which: int, number: int) -> None:
        for worker_id in self._worker(which):
            self._world.exit(worker_id, 3)

    def deliver(self, which: int, number: int) -> None:
        for worker_id in self._worker(which):
            for _ in range(number):
                self._world.deliver(worker_id)

    def step(self, which: int, number: int) -> None:
        for worker_id in self._worker(which):
            self._world.step(worker_id)

    def limit(self, which: int, number: int) -> None:
        limit = None if which > 2 else number
        self._world.obey(self._world.members.limit(limit, self._world.now))

    def new_leader(self, which: int, number: int) -> None:
        leader = list(self._world.agents)[which % len(self._world.agents)] if self._world.agents else ""
        dies = leader if number == 3 else ""
        self._world.new_leader(dies, satellites_first=number == 2, passed_on=which % 2 == 1)
        if leader in self._world.base and leader not in self._world.agents:
            self._world.join(leader, self._world.base[leader])  # flexo run starts it again

    def fail(self, which: int, number: int) -> None:
        for worker_id in self._worker(which):
            self._world.fail(worker_id)

    def release(self, which: int, number: int) -> None:
        for agent in self._satellite(which):
            self._world.release(agent)

    def lose(self, which: int, number: int) -> None:
        for agent in self._satellite(which):
            self._world.lose(agent)

    def finish(self, which: int, number: int) -> None:
        if which == 0:  # seldom: little can happen afterwards
            self._world.finish()

    def wait(self, which: int, number: int) -> None:
        self._world.live(100.0)

    def _satellites(self) -> list[str]:
        return [agent for agent in self._world.agents if agent.startswith("s")]

    def _satellite(self, which: int) -> list[str]:
        satellites = self._satellites()
        return [satellites[which % len(satellites)]] if satellites else []

    def _worker(self, which: int) -> list[str]:
        workers = list(self._world.processes)
        return [workers[which % len(workers)]] if workers else []


def played(
    base: dict[str, int], events: list[tuple[str, int, int]], unit: int = 1, *, outlives: bool = False
) -> World:
    """A job on `base`, of so many units, to which `events` have happened."""
    world = World({agent: units * unit for agent, units in base.items()}, unit=unit, outlives=outlives)
    for agent, slots in world.base.items():
        world.join(agent, slots)
    return Play(world).run(events)


@settings(max_examples=examples(300))
@example(
    base={"b1": 2},
    events=[("ready", 0, 1), ("ready", 1, 1), ("limit", 0, 1), ("enter", 0, 1), ("new_leader", 0, 1)],
    unit=1,
    outlives=False,
)
@given(base=BASES, events=EVENTS, unit=st.integers(1, 2), outlives=st.booleans())
def test_promises_hold_and_nobody_waits_for_ever(
    base: dict[str, int], events: list[tuple[str, int, int]], unit: int, outlives: bool
) -> None:
    world = played(base, events, unit, outlives=outlives)
    world.obey(world.members.limit(None, world.now))
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


@settings(max_examples=examples(100))
@given(base=BASES, events=EVENTS)
def test_the_job_ends_when_everybody_is_gone(
    base: dict[str, int], events: list[tuple[str, int, int]]
) -> None:
    world = played(base, events)
    for agent in list(world.agents):
        world.lose(agent)
    world.tick(400.0)
    if world.end is None:
        assert world.members.generation == 0, "before anything was trained `flexo run` starts agents again"
    else:
        assert world.end.exit_code >= 0


@settings(max_examples=examples(100))
@given(base=BASES, events=EVENTS, outlives=st.booleans())
def test_a_job_that_trains_to_its_end_ends_with_0_whatever_happened_before(
    base: dict[str, int], events: list[tuple[str, int, int]], outlives: bool
) -> None:
    world = played(base, events, outlives=outlives)
    world.quieten()
    if world.end is None:
        world.finish()
        world.quieten()
        assert world.end is not None
        assert world.end.exit_code == 0
