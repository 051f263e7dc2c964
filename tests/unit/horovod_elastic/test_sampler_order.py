"""Horovod's ElasticSampler hooked: the same samples in the same order, with one shuffle an epoch."""

from __future__ import annotations

import random
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.worker import hooks, sampler_order

pytest.importorskip("horovod.torch")


class Group:
    """Where a sampler believes itself to be."""

    def __init__(self, *, hooked: bool) -> None:
        import importlib.util

        spec = importlib.util.find_spec("horovod.torch.elastic.sampler")
        assert spec is not None
        assert spec.loader is not None
        self.module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        if hooked:
            hooks.patch_sampler(self.module)
        self.go_to(0, 1)

    def go_to(self, rank: int, size: int) -> None:
        self.module.rank, self.module.size = lambda: rank, lambda: size


HOROVODS, OURS = Group(hooked=False), Group(hooked=True)

places = st.integers(1, 5).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size)))
deeds = st.one_of(
    st.tuples(st.just("record"), st.integers(0, 9)),
    st.tuples(st.just("epoch"), st.integers(0, 3)),
    st.tuples(st.just("resize"), places),
    st.tuples(st.just("load"), st.tuples(st.integers(0, 3), st.integers(0, 50))),
)


def seen(sampler: Any) -> list[Any]:
    public = {name: value for name, value in vars(sampler).items() if not name.startswith("_flexo")}
    try:
        drawn = list(sampler)
    except AssertionError:  # Horovod's own, where fewer samples are left than half of the workers
        drawn = None
    del public["dataset"]
    public.pop("indices", None)
    return [public, drawn, len(sampler), sampler.state_dict()]


def do(group: Group, sampler: Any, deed: str, how: Any) -> None:
    if deed == "record":
        sampler.record_batch(0, how)
    elif deed == "epoch":
        sampler.set_epoch(how)
    elif deed == "load":
        sampler.load_state_dict({"epoch": how[0], "processed_num": how[1]})
    else:
        group.go_to(*how)
        sampler.load_state_dict(sampler.state_dict())


@given(st.integers(0, 40), st.integers(0, 2**31), st.booleans(), places, st.lists(deeds, max_size=8))
def test_every_worker_draws_what_it_would_draw_without_the_hook(
    samples: int, seed: int, shuffle: bool, place: tuple[int, int], life: list[tuple[str, Any]]
) -> None:
    told = []
    for group in (HOROVODS, OURS):
        group.go_to(*place)
        sampler = group.module.ElasticSampler(range(samples), shuffle=shuffle, seed=seed)
        told.append([seen(sampler)])
        for deed, how in life:
            do(group, sampler, deed, how)
            told[-1].append(seen(sampler))
    assert told[0] == told[1]


@pytest.fixture
def shuffles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of what was shuffled."""
    made: list[int] = []
    original = random.Random.shuffle

    def shuffle(self: random.Random, what: Any) -> None:
        made.append(len(what))
        original(self, what)

    monkeypatch.setattr(random.Random, "shuffle", shuffle)
    return made


def test_a_change_in_an_epoch_shuffles_nothing(shuffles: list[int]) -> None:
    sampler = OURS.module.ElasticSampler(range(1000))
    for size in (2, 3, 2):
        sampler.record_batch(0, 10)
        OURS.go_to(0, size)
        sampler.load_state_dict(sampler.state_dict())
    assert shuffles == [1000]
    sampler.set_epoch(1)
    sampler.load_state_dict(sampler.state_dict())
    assert shuffles == [1000, 1000]


def test_a_dataset_that_has_grown_is_shuffled_anew(shuffles: list[int]) -> None:
    samples = list(range(10))
    sampler = OURS.module.ElasticSampler(samples)
    samples.append(10)
    sampler.reset()
    assert shuffles == [10, 11]
    assert sorted(sampler.remaining_indices) == list(range(11))


def test_what_a_script_does_with_the_indices_changes_no_order(shuffles: list[int]) -> None:
    OURS.go_to(0, 1)
    sampler = OURS.module.ElasticSampler(range(100))
    before = list(sampler)
    sampler.remaining_indices.reverse()
    sampler.reset()
    assert list(sampler) == before
    assert shuffles == [100]


def newcomer(told: Any, **how: Any) -> Any:
    """A sampler that has been told an order, and then where the others are."""
    sampler = OURS.module.ElasticSampler(range(100), **how)
    sampler_order.tell(sampler, told)
    sampler.load_state_dict({"epoch": 3, "processed_num": 20})
    return sampler


def test_a_newcomer_that_is_told_the_order_of_an_epoch_shuffles_nothing(shuffles: list[int]) -> None:
    OURS.go_to(1, 2)
    trains = OURS.module.ElasticSampler(range(100))
    trains.set_epoch(3)
    trains.record_batch(0, 10)
    trains.load_state_dict(trains.state_dict())
    before = len(shuffles)
    joins = newcomer(sampler_order.told(trains))
    assert len(shuffles) == before + 1  # when it was made
    assert list(joins) == list(trains)


@pytest.mark.parametrize("other", [{"seed": 1}, {"samples": 99}, {"epoch": 2}, {"shuffle": False}])
def test_an_order_that_is_not_this_epochs_is_of_no_use(other: dict[str, Any]) -> None:
    OURS.go_to(0, 1)
    how = {name: value for name, value in other.items() if name in ("seed", "shuffle")}
    trains = OURS.module.ElasticSampler(range(other.get("samples", 100)), **how)
    trains.set_epoch(other.get("epoch", 3))
    assert list(newcomer(sampler_order.told(trains))) == list(newcomer(None))


def test_only_a_sampler_that_has_shuffled_has_an_order_to_tell() -> None:
    assert sampler_order.told(OURS.module.ElasticSampler(range(9), shuffle=False)) is None
    assert sampler_order.told(OURS.module.ElasticSampler([])) is None
    assert sampler_order.told(object()) is None


def test_one_epochs_order_is_kept_and_no_more() -> None:
    sampler = OURS.module.ElasticSampler(range(100))
    for epoch in range(5):
        sampler.set_epoch(epoch)
    kept = [value for name, value in vars(sampler).items() if name.startswith("_flexo")]
    assert [len(order.indices) for order in kept] == [100]


def test_a_newcomers_sampler_knows_that_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the hook: what the script is told meanwhile is not for Horovod's own code."""
    from horovod_elastic.worker.session import ProjectedRank

    session = types.SimpleNamespace(projected_rank=ProjectedRank(3, 5, 1, 2, 1, 4))
    monkeypatch.setattr(hooks.sessions, "current", lambda: session)

    class HorovodBasics:
        def init(self) -> None: ...

        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 1

        local_rank = cross_rank = rank
        local_size = cross_size = size

    hooks.patch_basics(types.SimpleNamespace(HorovodBasics=HorovodBasics))  # type: ignore[arg-type]
    alone = HorovodBasics()
    group = Group(hooked=True)
    group.module.rank, group.module.size = alone.rank, alone.size
    sampler = group.module.ElasticSampler(range(10))
    assert (sampler.rank, sampler.num_replicas) == (0, 1)
    assert (alone.rank(), alone.size()) == (3, 5)
