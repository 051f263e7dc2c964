"""Live tensors leave a device and come back bit by bit, and whoever holds them notices nothing."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from model_families import FAMILIES, Family  # noqa: E402
from torch import nn  # noqa: E402

from horovod_elastic.sharing import relocation  # noqa: E402
from horovod_elastic.sharing.relocation import HostBuffers, NoRoom  # noqa: E402

OPTIMIZERS: list[Any] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, amsgrad=True),
    lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True),
]
FREED = 0


def there_and_back() -> int:
    """Moves everything out and back. Returns how many bytes moved."""
    out = relocation.move_out("cpu")
    size = out.size
    assert size > 0
    out.back()
    return size


def trained(family: Family, optimizer: Any, moved: bool) -> list[bytes]:
    """Six steps; in one of two runs everything leaves before, between and after passes."""
    torch.manual_seed(0)
    model = family.make()
    model(*family.inputs())  # lazy modules get their shapes
    taken = optimizer([each for each in model.parameters() if each.requires_grad])
    schedule = torch.optim.lr_scheduler.StepLR(taken, 2, 0.5)
    losses = []
    for step in range(6):
        taken.zero_grad(set_to_none=step % 2 == 0)
        inputs = family.inputs()
        if moved and step in (1, 3):
            there_and_back()
        loss = model(*inputs).float().square().mean()
        if moved and step == 2:
            there_and_back()  # in the middle of a step: what only autograd holds stays
        loss.backward()
        if moved and step == 4:
            there_and_back()
        taken.step()
        schedule.step()
        losses.append(loss.detach())
    states = [*model.state_dict().values(), *_tensors_of(taken.state_dict()), *losses]
    return [each.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for each in states]


def _tensors_of(state: Any) -> list[Any]:
    if isinstance(state, torch.Tensor):
        return [state.reshape(-1)]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return [tensor for value in values for tensor in _tensors_of(value)]


def test_there_are_twenty_families() -> None:
    assert len(FAMILIES) == 20


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_trains_to_the_same_bits(name: str) -> None:
    optimizer = OPTIMIZERS[list(FAMILIES).index(name) % len(OPTIMIZERS)]
    gc.collect()
    assert trained(FAMILIES[name], optimizer, True) == trained(FAMILIES[name], optimizer, False)


def test_memory_is_given_up_while_it_is_out_and_views_and_aliases_survive() -> None:
    flat = torch.arange(1000.0)
    view, alias, transposed = flat[10:20], flat.detach(), flat.view(10, 100).t()
    out = relocation.move_out("cpu")
    assert flat.untyped_storage().nbytes() == FREED
    out.back()
    flat[10] = -1
    assert (view[0], alias[10], transposed[10, 0]) == (-1, -1, -1)
    assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


def test_each_storage_moves_once_and_its_special_values_keep_their_bits() -> None:
    odd = torch.tensor([math.nan, -0.0, math.inf, 1e-45])
    pattern = torch.tensor([0x7FC0_1234], dtype=torch.int32).view(torch.float32)
    views = [odd[1:], odd.view(2, 2)]
    before = [each.view(torch.int32).tolist() for each in (odd, pattern)]
    out = relocation.move_out("cpu")
    assert odd.untyped_storage().nbytes() == pattern.untyped_storage().nbytes() == FREED
    out.back()
    assert [each.view(torch.int32).tolist() for each in (odd, pattern)] == before
    assert len(views) == 2


def test_autograds_counts_of_changes_do_not_move() -> None:
    weight = nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    there_and_back()
    loss.backward()  # would fail if a saved tensor counted as changed
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_tensors_whose_memory_is_not_pytorchs_own_stay() -> None:
    buffer = bytearray(64)
    borrowed = torch.frombuffer(buffer, dtype=torch.float32)
    shared = torch.ones(8).share_memory_()
    out = relocation.move_out("cpu")
    assert borrowed.untyped_storage().nbytes() == 64
    assert shared.tolist() == [1.0] * 8
    out.back()


def test_tensors_without_one_storage_stay() -> None:
    dense, sparse = torch.ones(4), torch.eye(4).to_sparse()
    fake = torch.ones(4, device="meta")
    there_and_back()
    assert sparse.to_dense().sum() == 4
    assert (fake.shape, dense.sum()) == ((4,), 4)


def test_nothing_is_left_on_the_device_but_what_came_meanwhile() -> None:
    weight = torch.ones(1 << 20)
    before = relocation.live_bytes("cpu")
    out = relocation.move_out("cpu")
    assert out.size == before >= weight.numel() * 4
    assert relocation.live_bytes("cpu") == 0
    out.back()
    assert relocation.live_bytes("cpu") == before


def test_gradients_that_no_script_holds_move_too() -> None:
    weight = nn.Parameter(torch.ones(1 << 16))
    weight.sum().backward()
    out = relocation.move_out("cpu")
    assert weight.grad.untyped_storage().nbytes() == FREED
    out.back()
    assert weight.grad.sum() == 1 << 16


def test_without_room_everything_stays_out_and_comes_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [torch.full((100,), float(each)) for each in range(5)]
    out = relocation.move_out("cpu")
    real, calls = torch.UntypedStorage.resize_, []

    def resize(storage: Any, size: int) -> Any:
        calls.append(size)
        if size and len(calls) > 2:
            raise torch.OutOfMemoryError("no room")
        return real(storage, size)

    monkeypatch.setattr(torch.UntypedStorage, "resize_", resize)
    with pytest.raises(NoRoom):
        out.back()
    assert kept[4].untyped_storage().nbytes() == FREED
    monkeypatch.undo()
    out.back()
    assert [each[0].item() for each in kept] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_blocks_of_the_host_are_used_again_up_to_a_limit() -> None:
    buffers = HostBuffers(most_bytes=1000)
    first = buffers.take(600, pinned=False)
    buffers.keep([first, torch.empty(600, dtype=torch.uint8)])
    assert buffers.take(600, pinned=False).data_ptr() == first.data_ptr()
    assert buffers.take(600, pinned=False).numel() == 600
