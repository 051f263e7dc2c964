"""What a newcomer makes for its optimizers' states beforehand is what they need, and nothing else changes."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from horovod_elastic.worker import spare_memory  # noqa: E402  (PyTorch may be missing)


def a_state(optimizer: Any) -> Any:
    """What a handler of Horovod's makes of it."""
    handler = types.SimpleNamespace(value=optimizer)
    return types.SimpleNamespace(_handlers={"optimizer": handler}), handler


def kinds(state: Any) -> Any:
    """By parameter and name, what is there, but for the values."""
    return {
        number: {
            name: (value.shape, value.dtype, value.stride()) if torch.is_tensor(value) else type(value)
            for name, value in values.items()
        }
        for number, values in state.items()
    }


def tensors(state: Any) -> list[Any]:
    return [value for values in state.values() for value in values.values() if torch.is_tensor(value)]


def network() -> Any:
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    net[1].weight.requires_grad_(False)
    return net


def groups(net: Any) -> list[dict[str, Any]]:
    """The middle layer with a learning rate of its own."""
    others = [*net[0].parameters(), *net[2].parameters()]
    return [{"params": others}, {"params": net[1].parameters(), "lr": 0.2}]


def train(net: Any, optimizer: Any) -> None:
    net(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()


MANY: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.1},
    "AdamW": {"lr": 0.1, "amsgrad": True, "foreach": True},
    "RMSprop": {"lr": 0.1, "centered": True, "momentum": 0.5},
    "NAdam": {"lr": 0.1},
    "Adadelta": {},
    "Adafactor": {},
}


@pytest.mark.parametrize("kind", MANY)
def test_it_is_what_the_optimizer_has_after_its_first_step(kind: str) -> None:
    net = network()
    optimizer = getattr(torch.optim, kind)(groups(net), **MANY[kind])
    state, handler = a_state(optimizer)
    spare_memory.make(state)
    made = spare_memory.to_receive(handler)
    train(net, optimizer)
    assert kinds(made) == kinds(optimizer.state_dict()["state"])
    to_save = spare_memory.to_save(handler)["state"]
    assert kinds(to_save) == kinds(made)
    ours = [each.data_ptr() for each in (*tensors(made), *tensors(to_save))]
    assert len(set(ours)) == len(ours)


def test_what_the_script_has_stays_as_it_is() -> None:
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    optimizer.register_state_dict_post_hook(lambda *_: calls.append("state_dict"))
    before = copy.deepcopy([[*net.parameters()], [each.grad for each in net.parameters()]])
    groups_before = copy.deepcopy(optimizer.param_groups)
    numbers = torch.random.get_rng_state()
    state, handler = a_state(optimizer)
    spare_memory.make(state)
    assert spare_memory.to_receive(handler)
    assert not optimizer.state
    assert calls == []
    assert torch.equal(torch.random.get_rng_state(), numbers)
    for one, other in zip(before[0], net.parameters(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(before[1], (each.grad for each in net.parameters()), strict=True):
        assert one is other is None or torch.equal(one, other)
    for group, was in zip(optimizer.param_groups, groups_before, strict=True):
        assert {name: group[name] for name in group if name != "params"} == {
            name: was[name] for name in was if name != "params"
        }


class OfTheScript(torch.optim.SGD):  # type: ignore[name-defined, misc]
    """It wants what only a real step has."""

    def step(self, closure: Any = None) -> Any:
        return self.secret.step(closure)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam, OfTheScript])
def test_an_optimizer_that_cannot_do_it_is_let_be(kind: Any) -> None:
    state, handler = a_state(kind(torch.nn.Linear(3, 2).parameters(), lr=0.1))
    spare_memory.make(state)
    assert spare_memory.to_receive(handler) == {}
    assert spare_memory.to_save(handler) is None
    assert not handler.value.state


def test_one_that_has_a_state_needs_none() -> None:
    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer)
    state, handler = a_state(optimizer)
    spare_memory.make(state)
    assert spare_memory.to_receive(handler) == {}


def test_nothing_is_saved_to_it_before_there_is_a_state_and_only_once_then() -> None:
    net = network()
    state, handler = a_state(torch.optim.Adam(net.parameters()))
    spare_memory.make(state)
    assert spare_memory.to_save(handler) is None
    train(net, handler.value)
    assert spare_memory.to_save(handler)
    assert spare_memory.to_save(handler) is None


def test_what_was_not_used_can_be_dropped() -> None:
    state, handler = a_state(torch.optim.Adam(network().parameters()))
    spare_memory.make(state)
    spare_memory.drop(state)
    assert vars(handler).keys() == {"value"}


def test_what_a_newcomer_will_save_to_with_its_first_commit_can_be_kept() -> None:
    state, handler = a_state(torch.optim.Adam(network().parameters()))
    spare_memory.make(state)
    spare_memory.drop(state, but_to_save=True)
    assert spare_memory.to_receive(handler) == {}
    assert vars(handler).keys() > {"value"}
    spare_memory.drop(state)
    assert vars(handler).keys() == {"value"}


def test_samplers_and_models_are_no_concern_of_it() -> None:
    handlers = {"model": types.SimpleNamespace(value=network()), "other": types.SimpleNamespace(value=7)}
    state = types.SimpleNamespace(_handlers=handlers)
    spare_memory.make(state)
    spare_memory.make(object())
    assert all(vars(handler).keys() == {"value"} for handler in handlers.values())
