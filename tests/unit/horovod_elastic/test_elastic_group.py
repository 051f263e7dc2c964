"""The process group that a script holds for good: what it notices of its generation's end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from horovod_elastic.core.c10d.communicator import Communicator  # noqa: E402
from horovod_elastic.core.c10d.timeline import Timeline  # noqa: E402
from horovod_elastic.core.interface import RankPlacement  # noqa: E402
from horovod_elastic.worker.ddp.elastic_group import ElasticGroup  # noqa: E402

ALONE = RankPlacement(1, 0, 1, 0, 1, 0, 1, "h", "", 0)


def test_a_worker_that_is_alone_notices_that_the_leader_has_ended_its_generation() -> None:
    """It has no collective that could fail."""
    communicator, group = Communicator(ALONE, (), Timeline({})), ElasticGroup(0, 1)
    communicator.build()
    group.enter(communicator)
    group.muted = False
    assert not group.has_failed()
    communicator.break_("another leader did not know of it")
    assert group.has_failed()
    assert group.muted
    group.leave()
    communicator.close()
