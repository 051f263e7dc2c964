"""Commits write over what was saved before: the same as a deep copy, and never memory that is in use."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from horovod_elastic.worker.saved_copies import copied, save_over  # noqa: E402  (PyTorch may be missing)


def memory(value: Any) -> set[int]:
    """Where the tensors in `value` are."""
    if isinstance(value, torch.Tensor):
        there = value.layout is torch.strided and value.numel() > 0
        return {value.untyped_storage().data_ptr()} if there else set()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return set().union(*map(memory, inner))


def same(one: Any, other: Any) -> bool:
    """Bit for bit, with all that is told of a tensor."""
    if isinstance(one, torch.Tensor):
        alike = type(one) is type(other) and (one.dtype, one.layout) == (other.dtype, other.layout)
        if not (alike and one.shape == other.shape and one.is_conj() == other.is_conj()):
            return False
        if one.is_quantized:
            return bool(torch.equal(one.int_repr(), other.int_repr()))
        if one.layout is torch.strided and one.stride() != other.stride():
            return False
        return bool(torch.equal(one.to_dense().resolve_conj(), other.to_dense().resolve_conj()))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def trained(kind: str, batches: int, **options: Any) -> Any:
    """An optimizer after so many steps, each with other gradients."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = getattr(torch.optim, kind)(net.parameters(), **options)
    train(net, optimizer, batches)
    return types.SimpleNamespace(net=net, optimizer=optimizer)


def train(net: Any, optimizer: Any, batches: int) -> None:
    for _ in range(batches):
        optimizer.zero_grad()
        net(torch.randn(8, 5)).square().sum().backward()
        optimizer.step()


def test_the_next_copy_is_in_the_memory_of_the_one_before() -> None:
    it = trained("Adam", 1)
    for part in (it.net, it.optimizer):
        first = copied(part.state_dict(), None)
        before = memory(first)
        train(it.net, it.optimizer, 1)
        second = copied(part.state_dict(), first)
        assert same(second, part.state_dict())
        assert memory(second) == before
        assert memory(second).isdisjoint(memory(part.state_dict()))


def test_what_goes_on_training_does_not_change_the_copy() -> None:
    it = trained("Adam", 1)
    saved = copied(it.optimizer.state_dict(), copied(it.optimizer.state_dict(), None))
    as_it_was = copy.deepcopy(saved)
    train(it.net, it.optimizer, 2)
    assert same(saved, as_it_was)


def test_what_an_optimizer_took_for_its_own_is_not_written_over() -> None:
    """As after restore(): load_state_dict copies nothing that fits."""
    it = trained("Adam", 1)
    saved = copied(it.optimizer.state_dict(), None)
    it.optimizer.load_state_dict(saved)
    live = it.optimizer.state_dict()
    assert memory(live) & memory(saved)
    again = copied(live, saved)
    assert same(again, live)
    assert memory(again).isdisjoint(memory(live))


def test_live_memory_elsewhere_in_the_state_is_not_written_over() -> None:
    was = {"one": torch.zeros(4), "other": torch.ones(4)}
    now = {"one": torch.full((4,), 2.0), "other": was["one"][:2]}
    again = copied(now, was)
    assert now["other"].tolist() == [0.0, 0.0]
    assert same(again, {"one": torch.full((4,), 2.0), "other": torch.zeros(2)})
    assert memory(again).isdisjoint(memory(now))


CHANGES: dict[str, Any] = {
    "another shape": lambda: torch.arange(6.0),
    "another type": lambda: torch.arange(4).half(),
    "other strides": lambda: torch.arange(8.0)[::2],
    "turned": lambda: torch.arange(6.0).view(2, 3).t(),
    "not turned": lambda: torch.arange(6.0).view(3, 2),
    "expanded": lambda: torch.ones(1).expand(4),
    "empty": lambda: torch.empty(0, 3),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.arange(4.0), 0.1, 0, torch.quint8),
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "not conjugated": lambda: torch.tensor([1 + 2j, 3 - 1j]),
    "a parameter": lambda: torch.nn.Parameter(torch.arange(4.0)),
    "with gradients": lambda: torch.arange(4.0, requires_grad=True),
    "a number": lambda: 7,
    "text": lambda: "seven",
    "nothing": lambda: None,
    "nested": lambda: {"deep": [torch.arange(3.0), (torch.ones(2), "x")]},
}


@pytest.mark.filterwarnings("ignore:.*deprecated")  # quantised tensors
@pytest.mark.parametrize("before", CHANGES)
@pytest.mark.parametrize("after", CHANGES)
def test_whatever_it_was_before_it_is_a_copy_of_what_it_is_now(before: str, after: str) -> None:
    kept = torch.arange(4.0)
    saved = copied({"kept": kept, "changed": CHANGES[before](), "gone": torch.ones(2)}, None)
    where = memory(saved["kept"])
    now = {"kept": kept + 1, "changed": CHANGES[after](), "new": torch.zeros(3)}
    again = copied(now, saved)
    assert same(again, copy.deepcopy(now))
    assert memory(again).isdisjoint(memory(now))
    assert memory(again["kept"]) == where


def test_copies_share_memory_where_the_tensors_do_and_only_there() -> None:
    shared = torch.arange(4.0)
    tied = {"in": shared, "out": shared.view(2, 2)}
    first = copied(tied, None)
    second = copied(tied, first)
    assert memory(second) == memory(first)
    assert len(memory(second)) == 1
    apart = {"in": torch.zeros(4), "out": torch.ones(2, 2)}
    third = copied(apart, second)
    assert same(third, apart)
    assert len(memory(third)) == 2
    fourth = copied(tied, third)
    assert same(fourth, tied)
    assert len(memory(fourth)) == 1
    another = copied(tied | {"new": shared[1:]}, fourth)
    assert len(memory(another)) == 1


def test_views_that_have_moved_within_what_they_are_views_of() -> None:
    whole = torch.arange(6.0)
    saved = copied({"first": whole[0:4], "second": whole[2:6]}, None)
    now = {"first": whole[2:6] + 0, "second": whole[0:4] + 0}
    assert same(copied(now, saved), now)
    overlapping = {"first": whole[2:6], "second": whole[0:4]}
    assert same(copied(overlapping, copied({"first": whole[0:4], "second": whole[2:6]}, None)), overlapping)


def test_what_a_state_dict_knows_besides_comes_along() -> None:
    """Without its version, batch normalisation would forget how many batches it has seen."""
    net = torch.nn.BatchNorm1d(3)
    again = copied(net.state_dict(), copied(net.state_dict(), None))
    assert type(again) is OrderedDict
    assert again._metadata == net.state_dict()._metadata


# Names, each with the tensor that it is of, and where in it that begins: some share, some overlap.
states = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), max_size=4
)


@given(st.lists(states, min_size=2, max_size=5), st.booleans())
def test_a_life_of_commits_saves_what_deep_copies_would(life: list[Any], restored: bool) -> None:
    saved: Any = None
    for number, state in enumerate(life):
        wholes = [torch.arange(6.0) + 100 * number + 10 * which for which in range(3)]
        live = {name: wholes[which][first : first + size] for name, (which, first, size) in state.items()}
        if restored and saved:  # the live state takes some of the saved tensors for its own
            live |= {name: value for name, value in saved.items() if name in "ab"}
        expected = copy.deepcopy(live)
        saved = copied(live, saved)
        assert same(saved, expected)
        assert same(live, expected)
        assert memory(saved).isdisjoint(memory(live))


class Handler:
    """As Horovod's are."""

    save = save_over("_saved")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._saved = copy.deepcopy(value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad", "RMSprop"])
def test_restoring_goes_back_to_the_last_commit_as_often_as_there_are_crashes(kind: str) -> None:
    it = trained(kind, 0, **({"momentum": 0.9} if kind == "SGD" else {}))
    handlers = [Handler(it.net), Handler(it.optimizer)]
    for _ in range(3):
        train(it.net, it.optimizer, 2)
        for handler in handlers:
            handler.save()
        committed = copy.deepcopy([it.net.state_dict(), it.optimizer.state_dict()])
        train(it.net, it.optimizer, 1)
        for handler in handlers:
            handler.restore()
        assert same([it.net.state_dict(), it.optimizer.state_dict()], committed)
