"""PyTorch's DistributedSampler follows the place of its worker, and only if it was made for that."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, distributed  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from horovod_elastic.worker import plain_samplers  # noqa: E402

DATASET: Any = list(range(60))


@dataclass
class Place:
    """Stands for horovod.torch.mpi_ops."""

    workers: int
    number: int
    begun: bool = True

    def is_initialized(self) -> bool:
        return self.begun

    def size(self) -> int:
        return self.workers

    def rank(self) -> int:
        return self.number


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(DistributedSampler, "__init__", DistributedSampler.__init__)
    plain_samplers.patch_distributed(distributed)
    stands_in = Place(2, 1)
    monkeypatch.setitem(sys.modules, "horovod.torch.mpi_ops", stands_in)  # type: ignore[arg-type]
    return stands_in


def test_after_a_resize_it_draws_what_one_made_for_the_new_place_draws(place: Place) -> None:
    sampler = DistributedSampler(DATASET, num_replicas=2, rank=1, seed=7)
    loader = DataLoader(torch.arange(60), batch_size=5, sampler=sampler)  # type: ignore[arg-type,var-annotated]
    sampler.set_epoch(3)
    place.workers, place.number = 3, 0
    plain_samplers.divide_anew()
    fresh = DistributedSampler(DATASET, num_replicas=3, rank=0, seed=7)
    fresh.set_epoch(3)
    assert list(sampler) == list(fresh)
    assert len(loader) == 4


def test_it_follows_from_place_to_place(place: Place) -> None:
    sampler = DistributedSampler(DATASET, num_replicas=2, rank=1)
    for place.workers, place.number in [(5, 4), (1, 0), (3, 2)]:
        plain_samplers.divide_anew()
        assert (sampler.num_replicas, sampler.rank, len(sampler)) == (
            place.workers,
            place.number,
            60 // place.workers,
        )


def test_one_that_was_made_for_another_place_is_the_scripts_own(place: Place) -> None:
    sampler = DistributedSampler(DATASET, num_replicas=4, rank=1)
    place.workers = 3
    plain_samplers.divide_anew()
    assert (sampler.num_replicas, sampler.rank) == (4, 1)


def test_one_that_the_script_has_changed_since_is_the_scripts_own(place: Place) -> None:
    sampler = DistributedSampler(DATASET, num_replicas=2, rank=1)
    sampler.num_replicas = 6
    place.workers = 3
    plain_samplers.divide_anew()
    assert sampler.num_replicas == 6


def test_a_class_of_the_scripts_own_is_left_alone(place: Place) -> None:
    class Own(DistributedSampler[int]):
        """Counts on what it was made with."""

    sampler = Own(DATASET, num_replicas=2, rank=1)
    place.workers = 3
    plain_samplers.divide_anew()
    assert sampler.num_replicas == 2


def test_without_horovod_nothing_is_remembered(place: Place) -> None:
    place.begun = False
    sampler = DistributedSampler(DATASET, num_replicas=2, rank=1)
    place.begun, place.workers = True, 3
    plain_samplers.divide_anew()
    assert sampler.num_replicas == 2


def test_a_sampler_that_nobody_needs_any_more_is_not_kept(place: Place) -> None:
    sampler = DistributedSampler(DATASET, num_replicas=2, rank=1)
    assert sampler in plain_samplers._made_for
    del sampler
    assert not plain_samplers._made_for
