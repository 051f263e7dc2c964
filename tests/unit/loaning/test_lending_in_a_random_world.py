"""Lending while demand, jobs, administrators, clocks and restarts do as they like: no server is lost."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from lent_world import World
from thorough import examples

from flexo.loaning.demand import ReclaimRequest
from flexo.loaning.loan_ledger import Cause

NODES = [f"i{index}" for index in range(1, 7)]

node = st.sampled_from(NODES)
Action = Callable[[World], None]


def _place(world: World, name: str, number: int) -> None:
    """A fungible job starts where Slurm may start it."""
    if name in world.borrowed and not _busy(world, name):
        world.base(number, name)


def _place_wide(world: World, number: int) -> None:
    free = [name for name in sorted(world.borrowed) if name in world.servers and not _busy(world, name)]
    if len(free) >= 2:
        world.base(number, *free[:2])


def _satellite(world: World, name: str, number: int) -> None:
    """flexod grants one where a loan is open."""
    if name in world.borrowed and world.plans and name in world.lent and not _busy(world, name):
        world.satellite(number, name)


def _busy(world: World, name: str) -> bool:
    return any(name in job.nodes for job in world.jobs.values()) or name in world.unusable


def _inference(world: World, name: str, number: int) -> None:
    """Slurm gives inference a server, and takes whoever is there away first."""
    for job in [job for job in world.jobs.values() if name in job.nodes]:
        world.end(job.job_id)
    world.inference(number, name)


def _end_any(world: World) -> None:
    if world.jobs:
        world.end(min(world.jobs))


def _set(world: World, **what: object) -> None:
    for name, value in what.items():
        setattr(world, name, value)


def _demand(world: World, servers: float | None) -> None:
    world.demand.servers = servers


def _call(world: World, servers: int, seconds: float, number: int) -> None:
    what = ReclaimRequest(f"c{number}", world.now, world.now + seconds, "a test", servers=servers)
    world.demand.calls = (*world.demand.calls, what)


def _call_node(world: World, name: str, seconds: float, number: int) -> None:
    what = ReclaimRequest(f"c{number}", world.now, world.now + seconds, "a test", nodes=(name,))
    world.demand.calls = (*world.demand.calls, what)


def _restart(world: World, keep: bool) -> None:
    world.restart(world.plans[-1].loans if keep and world.plans else ())


numbers = st.integers(100, 10**6)
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(lambda servers: lambda world: _demand(world, servers), st.none() | st.floats(0, 8)),
    st.builds(lambda name, number: lambda world: _place(world, name, number), node, numbers),
    st.builds(lambda number: lambda world: _place_wide(world, number), numbers),
    st.builds(lambda name, number: lambda world: _satellite(world, name, number), node, numbers),
    st.builds(lambda name, number: lambda world: _inference(world, name, number), node, numbers),
    st.just(_end_any),
    st.builds(lambda name: lambda world: _set(world, borrowed=world.borrowed ^ {name}), node),
    st.just(lambda world: _set(world, borrowed=frozenset())),
    st.builds(lambda name: lambda world: world.unusable.update({name: "DOWN"}), node),
    st.just(lambda world: world.unusable.clear()),
    st.builds(lambda jump: lambda world: _set(world, now=world.now + jump), st.floats(-1e5, 1e5)),
    st.builds(lambda keep: lambda world: _restart(world, keep), st.booleans()),
    st.builds(lambda refuse: lambda world: _set(world, refuses_edits=refuse), st.booleans()),
    st.builds(
        lambda servers, seconds, number: lambda world: _call(world, servers, seconds, number),
        st.integers(1, 4),
        st.floats(5, 400),
        numbers,
    ),
    st.builds(
        lambda name, seconds, number: lambda world: _call_node(world, name, seconds, number),
        node,
        st.floats(5, 400),
        numbers,
    ),
    st.just(lambda world: _set(world.demand, calls=())),
)


def check(world: World, steady_edits: list[float]) -> None:
    """What must hold after every turn."""
    plan = world.plans[-1]
    names = [loan.node for loan in plan.loans]
    assert len(names) == len(set(names))
    assert set(names) <= set(NODES)
    for loan in plan.loans:
        assert (loan.deadline_at is None) == (not loan.closed)
    if plan.borrowed is not None:
        assert not plan.borrowed & world.closed
        if steady_edits:
            assert world.steady - steady_edits[-1] >= 59.9
        steady_edits.append(world.steady)
    for order in plan.preempt:
        entry = world.lending._ledger.get(order.node)
        assert entry is not None
        # one that was empty already is inference's by then, whatever has started there since
        was_back = any(text.startswith(f"{order.node} is empty") for text in world.events("returned"))
        if entry.cause in (Cause.DEMAND, Cause.ASKED) and len(entry.preempted) == 1 and not was_back:
            assert not world.empty, "a base was preempted although an empty server could have gone back"


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(actions, st.sampled_from([0.5, 2.0, 30.0, 61.0])), max_size=40))
def test_whatever_happens_all_servers_come_back_in_the_end(counters):
    world = World()
    edits: list[float] = []
    for action, seconds in counters:
        before = world.lending
        action(world)
        if world.lending is not before and not world.borrowed:
            edits.clear()
        world.cycle(seconds)
        check(world, edits)
    # in the end inference needs all that it has, and nobody interferes any more
    world.unusable.clear()
    world.refuses_edits = False
    world.demand.calls = ()
    world.demand.servers = 6.0
    edits.clear()
    for _ in range(350):
        world.cycle(2.0)
        check(world, edits)
    assert world.plans[-1].loans == ()
    assert not world.borrowed & set(NODES)
    training = [job for job in world.jobs.values() if job.partitions != ("infer",)]
    assert not [job for job in training if set(job.nodes) & set(NODES)]
