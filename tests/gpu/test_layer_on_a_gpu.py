"""What the layer does with a real GPU's memory and queue. Each test takes seconds."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from model_families import FAMILIES  # noqa: E402

from horovod_elastic.sharing import relocation  # noqa: E402
from horovod_elastic.sharing.law import CONTEXT  # noqa: E402
from horovod_elastic.sharing.layer import universal  # noqa: E402
from horovod_elastic.sharing.layer.flights import Flights  # noqa: E402
from horovod_elastic.sharing.layer.memory import Memory  # noqa: E402
from horovod_elastic.sharing.layer.place import Cuda  # noqa: E402

GIB = 1 << 30


@pytest.fixture(autouse=True)
def empty() -> Any:
    yield
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


def states(name: str, moved: bool) -> list[bytes]:
    torch.manual_seed(0)
    family = FAMILIES[name]
    model, inputs = family.make().cuda(), [each.cuda() for each in family.inputs()]
    model(*inputs)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    for step in range(4):
        optimizer.zero_grad()
        model(*inputs).float().square().mean().backward()
        if moved and step in (1, 2):
            out = relocation.move_out("cuda")
            assert all(each.untyped_storage().nbytes() == 0 for each in model.parameters())
            out.back()
        optimizer.step()
    return [
        each.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for each in model.state_dict().values()
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_trains_to_the_same_bits(name: str) -> None:
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        assert states(name, True) == states(name, False)


def test_live_state_moves_out_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes is printed. An H100 missed the aim, 50 ms per GB (docs/evidence/sharing.md)."""
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)  # its collectives may use tensors
    memory = Memory(Cuda())
    held = [torch.ones(GIB // 8, dtype=torch.uint8, device="cuda") for _ in range(16)]
    for _ in range(2):  # the second time, blocks of the host are pinned already
        torch.cuda.synchronize()
        began = time.perf_counter()
        assert not memory.obey(CONTEXT)
        took = time.perf_counter() - began
        assert memory.moved == 2 * GIB
        began = time.perf_counter()
        assert memory.obey(8 * GIB)
        back = time.perf_counter() - began
    assert held[0][0].item() == 1
    print(f"out: {took / 2 * 1e3:.0f} ms per GiB; back: {back / 2 * 1e3:.0f} ms per GiB")


def test_a_lower_limit_gives_cache_back() -> None:
    block = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    del block
    began = time.perf_counter()
    assert Memory(Cuda()).obey(CONTEXT + GIB)
    print(f"trim of 4 GiB: {(time.perf_counter() - began) * 1e3:.0f} ms")
    assert torch.cuda.memory_reserved() <= GIB


def test_an_allocation_beyond_the_limit_goes_to_memory_that_was_pinned_ahead(tmp_path: Path) -> None:
    gpu, size = Cuda(), 32 << 20
    before = gpu.used()
    universal.hold((64 << 20,) * 8, tmp_path)
    assert gpu.used() == before, "it is none of the GPU's memory"
    gpu.limit(before + GIB)
    free, _ = torch.cuda.mem_get_info()
    blocks = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(32 + 15)]
    assert sum(int(each[-1]) for each in blocks) == len(blocks)
    assert free - torch.cuda.mem_get_info()[0] <= GIB + (2 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        blocks += [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(3)]


def test_what_is_queued_is_bounded() -> None:
    flights, matrix = Flights(), torch.randn(2048, 2048, device="cuda")
    for _ in range(300):
        matrix = (matrix @ matrix).clamp(-1, 1)
        flights.boundary()
    began = time.perf_counter()
    torch.cuda.synchronize()
    assert time.perf_counter() - began < 0.05
