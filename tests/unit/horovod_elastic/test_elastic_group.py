"""The process group that a script holds for good: what it notices of its generation's end."""

from __future__ import annotations

from typing import Any

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


class Nccl:
    """In the place of a group with NCCL: it spoils the tensor, and neither says so nor returns a work."""

    def allreduce(self, tensors: list[Any], *_: Any) -> None:
        tensors[0].fill_(-1.0)


class OnGpu:
    """In the place of a communicator and its groups. If a member `dies`, it breaks while the GPU works."""

    broken = dies = False

    def groups(self) -> OnGpu:
        return self

    def check_whole(self) -> None:
        if self.broken:
            raise RuntimeError("rank 1 is gone")

    def is_broken(self) -> bool:
        return self.broken


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[ElasticGroup, OnGpu]:
    group, communicator = ElasticGroup(0, 2), OnGpu()
    group._communicator, group._inside, group._gpu = communicator, Nccl(), torch.device("cuda", 0)
    group.muted, group.guards = False, True

    class Stream:
        def synchronize(self) -> None:
            communicator.broken = communicator.dies

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    return group, communicator


def test_a_sum_that_nccl_has_spoiled_is_taken_back_once_the_gpu_is_done(
    on_gpu: tuple[ElasticGroup, OnGpu],
) -> None:
    group, communicator = on_gpu
    tensor = torch.ones(3)
    communicator.dies = True
    assert group.allreduce([tensor]).wait()
    assert tensor.tolist() == [1.0] * 3
    assert group.failure == "rank 1 is gone"
    assert group.muted


def test_a_sum_of_nccl_that_is_whole_stays(on_gpu: tuple[ElasticGroup, OnGpu]) -> None:
    group, _ = on_gpu
    tensor = torch.ones(3)
    assert group.allreduce([tensor]).wait()
    assert tensor.tolist() == [-1.0] * 3
    assert not group.has_failed()


def test_before_a_step_it_is_known_whether_the_gradients_on_a_gpu_are_whole(
    on_gpu: tuple[ElasticGroup, OnGpu],
) -> None:
    group, communicator = on_gpu
    group.wait_for_gpu()
    assert not group.has_failed()
    communicator.dies = True
    assert not group.has_failed()
    group.wait_for_gpu()
    assert group.has_failed()
    assert group.muted
