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
    """In the place of a communicator. If a member `dies`, it breaks while the GPU works."""

    broken = dies = fails = False

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
            if communicator.fails:
                raise RuntimeError("CUDA error: device-side assert triggered")

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
    assert "while the GPU worked" in group.failure
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


def test_a_script_that_hears_of_failures_hears_of_this_one(on_gpu: tuple[ElasticGroup, OnGpu]) -> None:
    group, communicator = on_gpu
    group.guards, communicator.dies = False, True
    with pytest.raises(RuntimeError, match="while the GPU worked"):
        group.wait_for_gpu()


@pytest.mark.parametrize("guards", [True, False])
def test_what_the_scripts_own_kernels_fail_with_is_the_scripts(
    on_gpu: tuple[ElasticGroup, OnGpu], guards: bool
) -> None:
    group, communicator = on_gpu
    group.guards, communicator.fails = guards, True
    with pytest.raises(RuntimeError, match="device-side assert"):
        group.wait_for_gpu()
    assert not group.failure


def test_a_barrier_waits_for_no_gpu_even_if_the_script_names_one() -> None:
    """Before the first collective on a GPU there is no group for it."""
    asked = []

    class Gloo:
        def barrier(self, options: Any) -> None:
            asked.append(options)

    group = ElasticGroup(0, 2)
    group._communicator, group._inside, group.muted = OnGpu(), Gloo(), False
    on_gpu = torch.distributed.BarrierOptions()
    on_gpu.device, on_gpu.device_ids = torch.device("cuda", 1), [1]
    group.barrier(opts=on_gpu).wait()
    group.barrier(on_gpu).wait()
    assert [(each.device, list(each.device_ids)) for each in asked] == [(None, [])] * 2
    assert {each.timeout for each in asked} == {on_gpu.timeout}
