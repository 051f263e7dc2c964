"""How long collectives of torch.distributed scripts wait: as long as they say, but not in a hand-over."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from horovod_elastic.worker.ddp import torchs_own
from horovod_elastic.worker.ddp.elastic_group import ElasticGroup

HOURS = timedelta(hours=2)


class Gloo:
    """A group of Gloo that notes how long it is to wait."""

    def __init__(self) -> None:
        self.told: list[timedelta] = []

    def _set_default_timeout(self, longest: timedelta) -> None:
        self.told.append(longest)


def entered(patience: timedelta | None) -> tuple[ElasticGroup, Gloo]:
    group, gloo = ElasticGroup(0, 1), Gloo()
    group.patience = patience
    communicator: Any = SimpleNamespace(place=SimpleNamespace(rank=0, size=1), sums=lambda most: None)
    group.enter(communicator)
    group._gloo = gloo
    return group, gloo


def test_the_scripts_own_time_counts_from_where_all_workers_are_in_the_same_place() -> None:
    group, gloo = entered(HOURS)
    assert gloo.told == [], "a newcomer may never come"
    group.take_place()
    assert gloo.told == [HOURS]


def test_the_users_variable_counts_at_all_times() -> None:
    group, gloo = entered(None)
    group.take_place()
    assert gloo.told == []


def test_a_script_that_says_nothing_waits_as_long_as_pytorch_does() -> None:
    assert torchs_own.default_timeout() == timedelta(minutes=30)
