"""Schedulers, scalers and the like in a TorchState and beside it: the same objects before and after."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("horovod")

from horovod_elastic import stateful  # noqa: E402  (PyTorch may be missing)
from horovod_elastic.worker import gradients, left_out  # noqa: E402

SCHEDULERS = torch.optim.lr_scheduler


def made() -> tuple[Any, Any]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)


class Handler:
    def __init__(self, value: Any) -> None:
        self.value = value


def state_of(**values: Any) -> Any:
    handlers = {name: Handler(value) for name, value in values.items()}
    return types.SimpleNamespace(_handlers=handlers, _saved_state={})


@pytest.fixture
def state_module() -> Any:
    """Horovod's module of handlers, hooked, without its native library."""
    module = types.ModuleType("state")

    class SamplerStateHandler:
        pass

    class OptimizerStateHandler:
        pass

    module.__dict__.update(
        SamplerStateHandler=SamplerStateHandler,
        OptimizerStateHandler=OptimizerStateHandler,
        _get_handler=lambda value: None,
    )
    stateful.patch(module)
    return module


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: [each], lambda each: {"a": (each,)}])
def test_a_scheduler_goes_back_in_place(state_module: Any, wrap: Any) -> None:
    _, optimizer = made()
    scheduler = SCHEDULERS.MultiStepLR(optimizer, [2, 4])
    handler = state_module._get_handler(wrap(scheduler))
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    handler.save()
    before = copy.deepcopy(scheduler.state_dict())
    for _ in range(3):
        scheduler.step()
    handler.restore()
    assert scheduler.state_dict() == before
    assert scheduler.optimizer is optimizer
    handler.restore()  # what was saved is not what is in use
    assert scheduler.state_dict() == before


@pytest.mark.parametrize("value", [3, "text", [1, 2], {}, [], None, {"a": 1}, dict])
def test_other_attributes_have_no_handler(state_module: Any, value: Any) -> None:
    assert state_module._get_handler(value) is None


def test_a_scheduler_among_other_things_is_found() -> None:
    _, optimizer = made()
    scheduler = SCHEDULERS.StepLR(optimizer, 1)
    assert stateful.mixed({"scheduler": scheduler, "best": 0.1}) is scheduler
    assert stateful.mixed({"best": 0.1}) is None


def test_an_interrupted_scaler_unscales_again(state_module: Any) -> None:
    """Left as it was it would take the next gradients for unscaled ones, and step with them as they are."""
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    handler = state_module._get_handler(scaler)

    def backward() -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()

    backward()
    scaler.unscale_(optimizer)
    handler.restore()
    backward()
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert (before - model.weight).abs().max().item() == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_an_optimizer_is_loaded_into_the_groups_that_it_shares() -> None:
    """As Horovod's optimizer shares them with the one that it was made of, which a scheduler may know."""
    _model, plain = made()
    outer = torch.optim.SGD(plain.param_groups, lr=1.0)
    scheduler = SCHEDULERS.StepLR(plain, 1)
    saved = copy.deepcopy(outer.state_dict())
    stateful.load_optimizer(outer, saved)
    scheduler.step()
    assert outer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_saved_attributes_are_not_those_in_use() -> None:
    tensor, thing = torch.ones(2), object()
    value = {"list": [1, [2]], "tensor": tensor, "thing": thing, "numbers": [1, 2], "words": {"a"}}
    saved = stateful.copied(value)
    value["list"][1].append(3)
    value["numbers"].append(3)
    value["words"].add("b")
    tensor.add_(1)
    assert (saved["list"], saved["numbers"], saved["words"]) == ([1, [2]], [1, 2], {"a"})
    assert saved["tensor"].tolist() == [1.0, 1.0]
    assert saved["thing"] is thing


@pytest.fixture
def remembering() -> Iterator[None]:
    """As in a worker."""
    kinds = [SCHEDULERS.LRScheduler, SCHEDULERS.ReduceLROnPlateau, torch.amp.grad_scaler.GradScaler]
    left_out.patch(SCHEDULERS)
    left_out.patch(torch.amp.grad_scaler)
    yield
    left_out._made.clear()
    for kind in kinds:
        if "_flexo_remembers" in vars(kind):
            del kind._flexo_remembers
            # not deleted: Python would then refuse all arguments of classes that had no __new__ before
            kind.__new__ = lambda cls, *_, **__: object.__new__(cls)


@pytest.mark.usefixtures("remembering")
def test_what_the_script_keeps_beside_its_state_is_found() -> None:
    model, plain = made()
    outer = torch.optim.SGD(plain.param_groups, lr=1.0)
    inside = SCHEDULERS.StepLR(outer, 1)
    of_plain = SCHEDULERS.CosineAnnealingLR(plain, 9)
    of_another = SCHEDULERS.StepLR(made()[1], 1)
    plateau = SCHEDULERS.ReduceLROnPlateau(outer)
    scaler = torch.amp.GradScaler("cpu")
    with left_out.in_training_function():
        later = SCHEDULERS.StepLR(outer, 1)
    found = left_out.LeftOut(state_of(model=model, optimizer=outer, scheduler=inside)).members()
    assert found == [of_plain, plateau, scaler]
    assert {id(of_another), id(later)}.isdisjoint(map(id, found))


@pytest.mark.usefixtures("remembering")
def test_another_workers_schedulers_are_taken_over_if_they_are_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, optimizer = made()
    scheduler = SCHEDULERS.StepLR(optimizer, 10)
    own = left_out.LeftOut(state_of(optimizer=optimizer))
    theirs = own.state_dict()
    kind, values = theirs[0]
    own.load_state_dict([(kind, {**values, "last_epoch": 7})])
    assert scheduler.last_epoch == 7
    assert not capsys.readouterr().err
    for _ in range(2):
        own.load_state_dict([("CosineAnnealingLR", {"last_epoch": 9})])
    assert scheduler.last_epoch == 7
    told = capsys.readouterr().err
    assert told.count("StepLR") == told.count("CosineAnnealingLR") == 1


def test_a_restore_leaves_no_gradient_and_no_half_accumulation() -> None:
    model, optimizer = made()
    first, second = model.parameters()
    optimizer.backward_passes_per_step = 2
    optimizer._handles = {first: (None, None)}
    optimizer._allreduce_delay = {first: 1, second: 2}
    optimizer._group_counts = {(first, second): 1}
    optimizer._synchronized = True

    def set_backward_passes_per_step(passes: int) -> None:
        optimizer._allreduce_delay = dict.fromkeys(optimizer._allreduce_delay, passes)

    optimizer.set_backward_passes_per_step = set_backward_passes_per_step
    model(torch.ones(1, 2)).sum().backward()
    state = state_of(model=model, optimizers=[optimizer])
    assert gradients.waiting(state) == "optimizers[0]"
    gradients.drop(state)
    assert gradients.waiting(state) == ""
    assert first.grad is second.grad is None
    assert set(optimizer._allreduce_delay.values()) == {2}
    assert set(optimizer._group_counts.values()) == {0}
    assert not optimizer._synchronized


def test_a_script_that_never_stops_between_steps_is_told_so_once() -> None:
    _, optimizer = made()
    optimizer._handles = {1: (None, None)}
    state = state_of(adam=optimizer)
    deferred = gradients.Deferred()
    told = [text for _ in range(500) if (text := deferred.another(state, gradients.waiting(state)))]
    assert len(told) == 1
    assert "'adam'" in told[0]
    assert "step()" in told[0]
