"""When groups on GPUs are connected: with stand-ins for NCCL and for GPUs, and everything else as it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from horovod_elastic.core.c10d.groups import Groups  # noqa: E402
from horovod_elastic.core.c10d.requests import GLOBAL_SET  # noqa: E402

BOUND_S = 60.0
GPU_0, GPU_1 = torch.device("cuda", 0), torch.device("cuda", 1)


class Nccl:
    """In the place of torch.distributed's ProcessGroupNCCL: connects when all have come. abort() does not end
    that, as NCCL's does not.
    """

    made: list[Nccl]
    together: threading.Barrier

    class Options:
        _timeout: Any = None

    def __init__(self, store: Any, place: int, size: int, options: Options) -> None:
        self.place, self.size = place, size
        self.connected: list[Any] = []
        self.aborted = threading.Event()
        self.made.append(self)

    def eager_connect_single_device(self, device: Any) -> None:
        self.together.wait(BOUND_S)
        self.connected.append(device)

    def abort(self) -> None:
        self.aborted.set()


@pytest.fixture(autouse=True)
def nccl(monkeypatch: pytest.MonkeyPatch) -> type[Nccl]:
    monkeypatch.setattr(Nccl, "made", [], raising=False)
    monkeypatch.setattr(Nccl, "together", threading.Barrier(2), raising=False)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return Nccl


@pytest.fixture
def pair() -> Iterator[list[Groups]]:
    """Both ranks of a communicator, in this process."""
    store = dist.HashStore()
    made = [Groups(rank, 2, "127.0.0.1", store, BOUND_S) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda groups: groups.build(GLOBAL_SET, (0, 1)), made))
    yield made
    for groups in made:
        groups.close()


def connect(pair: list[Groups], *gpus: Any) -> list[Future[None]]:
    """Both at once; what became of it."""
    with ThreadPoolExecutor(2) as pool:
        return [
            pool.submit(groups.connect_gpus, GLOBAL_SET, gpu) for groups, gpu in zip(pair, gpus, strict=True)
        ]


def test_where_tensors_were_on_gpus_those_are_connected_a_newcomers_too(
    pair: list[Groups], nccl: type[Nccl]
) -> None:
    for done in connect(pair, GPU_0, None):
        done.result()
    found = [groups.nccl(GLOBAL_SET, gpu) for groups, gpu in zip(pair, (GPU_0, GPU_1), strict=True)]
    assert [group.connected for group in found] == [[GPU_0], [GPU_1]]
    assert [group.place for group in found] == [0, 1]
    assert len(nccl.made) == 2, "the first collective finds what was prepared"


@pytest.mark.parametrize("of_the_other", [None, GPU_1])
def test_where_rank_0_had_none_nothing_is_connected(
    pair: list[Groups], nccl: type[Nccl], of_the_other: Any
) -> None:
    for done in connect(pair, None, of_the_other):
        done.result()
    assert nccl.made == []


def test_a_rank_that_can_use_no_gpu_says_so(
    pair: list[Groups], nccl: type[Nccl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    nccl.together = threading.Barrier(1)
    first, second = connect(pair, GPU_0, None)
    assert first.exception() is None
    with pytest.raises(RuntimeError, match=r"rank 0 .*\bGPU\b"):
        second.result()


def test_who_waits_for_a_gpu_that_does_not_come_is_woken_when_all_is_broken(
    pair: list[Groups], nccl: type[Nccl]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(pair[0].connect_gpus, GLOBAL_SET, GPU_0)
        while not (nccl.made and nccl.together.n_waiting):
            assert not waits.done()
        pair[0].break_connections()
        with pytest.raises(RuntimeError, match="its connections were broken"):
            waits.result(BOUND_S)
    (group,) = nccl.made
    assert group.aborted.is_set()
    group.aborted.clear()
    nccl.together.wait(BOUND_S)
    assert group.aborted.wait(BOUND_S), "what is connected too late is of no use"
    with pytest.raises(RuntimeError, match="its connections were broken"):
        pair[0].nccl(GLOBAL_SET, GPU_0)
    assert len(nccl.made) == 1


def test_who_is_alone_connects_nothing(nccl: type[Nccl]) -> None:
    groups = Groups(0, 1, "", None, BOUND_S)
    groups.build(GLOBAL_SET, (0,))
    groups.connect_gpus(GLOBAL_SET, GPU_0)
    assert nccl.made == []
