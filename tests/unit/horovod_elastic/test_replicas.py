"""Replicas are compared bit for bit, and what differs is named. The exchange is a stand-in."""

from __future__ import annotations

import re
import struct
import types
from pathlib import Path
from typing import Any

import pytest
from says import says

torch = pytest.importorskip("torch")

from horovod_elastic.worker import replicas  # noqa: E402  (PyTorch may be missing)


def model_state(name: str = "model", *, layers: int = 2, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(layers)), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    handlers = {name: types.SimpleNamespace(value=model), "optimizer": types.SimpleNamespace(value=optimizer)}
    return types.SimpleNamespace(_handlers=handlers, model=model, optimizer=optimizer)


class Exchange:
    """All ranks in one process: each `Checks` goes until its all-reduce, then all rows are added up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, states: list[Any], steps: list[int]) -> None:
        self.told: list[str] = []
        monkeypatch.setattr(replicas, "say", self.told.append)
        self.checks = [replicas.Checks(1) for _ in states]
        for check, count in zip(self.checks, steps, strict=True):
            check.optimizer_steps = count
            monkeypatch.setattr(check, "is_speaker", lambda check=check: check is self.checks[0])
            monkeypatch.setattr(check, "gather", self._all)
        size = len(states)
        self.courses = [
            check.compare(types.SimpleNamespace(rank=rank, size=size, boundary=1000), state)
            for rank, (check, state) in enumerate(zip(self.checks, states, strict=True))
        ]
        self.rounds = 0

    def _all(self, session: Any, row: list[int]) -> Any:
        table = yield (session.rank, row)
        return table

    def play(self) -> str:
        asked = []
        for course in self.courses:
            assert next(course) is None
            asked.append(next(course))
        while asked:
            self.rounds += 1
            rows = [row for _, row in sorted(asked)]
            asked = []
            for course in self.courses:
                try:
                    asked.append(course.send(rows))
                except StopIteration:
                    continue
        return "\n".join(self.told)


def compare(monkeypatch: pytest.MonkeyPatch, states: list[Any], steps: list[int] | None = None) -> Exchange:
    return Exchange(monkeypatch, states, steps or [7] * len(states))


@pytest.mark.thorough
def test_equal_replicas_are_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running statistics differ."""
    states = [model_state() for _ in range(3)]
    states[1].model[-1].running_mean.add_(1.0)
    exchange = compare(monkeypatch, states)
    assert exchange.play() == ""
    assert exchange.rounds == 1


def test_the_tensor_and_the_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [model_state(layers=40) for _ in range(4)]
    with torch.no_grad():
        for rank in (1, 3):
            states[rank].model[17].weight[2, 1] += 1e-6
    told = compare(monkeypatch, states[:1] + states[2:3] + states[1:2] + states[2:3]).play()
    assert "model.17.weight" in told
    assert "rank 2 " in told
    assert "ranks 0, 1, 3" in told
    assert "1000" in told


def test_the_page_shows_the_line_that_names_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[3] / "docs/howto/check-replicas.md"
    (shown,) = re.findall(r"```text\nflexo: (.*) \.\.\.\n```", page.read_text())
    states = [model_state() for _ in range(4)]
    for state in states:
        state.model.add_module("fc", torch.nn.Linear(2, 2))
        torch.nn.init.ones_(state.model.fc.bias)
        torch.nn.init.constant_(state.model.fc.weight, float(state is states[2]))
    assert compare(monkeypatch, states).play().startswith(shown)


def test_a_learning_rate_is_named_before_what_follows_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [model_state(), model_state(seed=1)]
    states[0].optimizer.param_groups[0]["lr"] = 0.2
    told = compare(monkeypatch, states).play()
    assert "['lr']" in told
    assert "model.0" not in told


def test_state_of_an_optimizer_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [model_state(), model_state(), model_state()]
    parameter = states[1].optimizer.param_groups[0]["params"][3]
    states[1].optimizer.state[parameter]["exp_avg_sq"][0] = float("nan")
    told = compare(monkeypatch, states).play()
    assert "exp_avg_sq" in told
    assert "rank 1 " in told


def test_the_same_nan_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [model_state(), model_state()]
    for state in states:
        state.model[0].weight.data.fill_(float("nan"))
    assert compare(monkeypatch, states).play() == ""


def test_workers_at_different_steps_are_not_compared_but_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told = compare(monkeypatch, [model_state(), model_state(seed=1)], steps=[12, 13]).play()
    assert "rank 0: 12" in told
    assert "rank 1: 13" in told
    assert "differ:" not in told


def test_models_of_another_size_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told = compare(monkeypatch, [model_state(), model_state(layers=3)]).play()
    assert "tensors" in told


class NoView(torch.Tensor):  # type: ignore[misc]  # PyTorch is not checked
    """A tensor subclass that does not let its bits be looked at."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.view:
            raise NotImplementedError("no view")
        return super().__torch_function__(function, types, args, kwargs or {})


UNREADABLE = {
    "lazy": lambda: torch.nn.LazyLinear(3).weight,
    "nested": lambda: torch.nn.Parameter(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    "subclass": lambda: torch.nn.Parameter(torch.ones(4).as_subclass(NoView)),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_tensor_that_cannot_be_read_is_left_out_named_once_and_the_others_are_compared(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    states = [model_state() for _ in range(2)]
    for state in states:
        state.model.odd = torch.nn.Module()
        state.model.odd.register_parameter("weight", UNREADABLE[kind]())
    told = compare(monkeypatch, states).play()
    assert "model.odd.weight" in told
    assert "replicas differ" not in told
    assert told.count("\n") == 0
    monkeypatch.undo()
    with torch.no_grad():
        states[1].model[0].weight[0, 0] += 1
    assert says(compare(monkeypatch, states).play(), "model.0.weight", "not the same", "rank")


def test_a_rank_whose_comparison_fails_takes_part_in_the_exchange_and_all_make_no_more_in_that_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise ArithmeticError("of the test")

    states = [model_state() for _ in range(3)]
    states[1].model.named_parameters = fails
    exchange = compare(monkeypatch, states)
    told = exchange.play()
    assert "rank 1 " in told
    assert "ArithmeticError: of the test" in told
    assert exchange.rounds == 1
    begun: list[object] = []
    for check in exchange.checks:
        monkeypatch.setattr(check, "compare", lambda *_: iter(begun.append(1) or ()))  # type: ignore[func-returns-value]
        session: Any = types.SimpleNamespace(rank=0, size=3, boundary=2000)
        check.at_boundary(session, None, last=False)
        assert not begun
        check.begins()
        check.at_boundary(session, None, last=False)
        assert begun
        begun.clear()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "bool", "complex64", "int8"])
@pytest.mark.parametrize("count", [1, 7, 64, 1001])
def test_a_digest_depends_on_every_element(dtype: str, count: int) -> None:
    kind = getattr(torch, dtype)
    base = torch.zeros(count + 1).to(kind)[1:]
    (before,) = replicas.digests([base])()
    for place in (0, count // 2, count - 1):
        changed = base.clone()
        changed[place] = 1
        assert replicas.digests([changed])() != [before]
    assert replicas.digests([base.clone()])() == [before]


def test_a_digest_does_not_depend_on_where_elements_lie() -> None:
    tensor = torch.randn(6, 5)
    assert replicas.digests([tensor.t().contiguous().t(), tensor[:0]])()[0] == replicas.digests([tensor])()[0]


def test_zero_and_minus_zero_differ() -> None:
    plus, minus = torch.zeros(3), torch.tensor([0.0, struct.unpack("<f", b"\0\0\0\x80")[0], 0.0])
    assert replicas.digests([plus])() != replicas.digests([minus])()


@pytest.mark.parametrize(("text", "steps"), [(None, 1000), ("", 1000), ("0", 0), (" 25 ", 25)])
def test_how_often(text: str | None, steps: int) -> None:
    assert replicas.every(text) == steps


@pytest.mark.parametrize("text", ["-1", "often", "1.5", "²"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="FLEXO_CHECK_REPLICAS"):
        replicas.every(text)
