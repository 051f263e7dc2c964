"""Replicas are compared bit for bit, and what differs is named. The exchange is a stand-in."""

from __future__ import annotations

import struct
import types
from typing import Any

import pytest

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
            monkeypatch.setattr(check, "_is_speaker", lambda check=check: check is self.checks[0])
            monkeypatch.setattr(check, "_all", self._all)
        size = len(states)
        self.courses = [
            check._check(types.SimpleNamespace(rank=rank, size=size, boundary=1000), state)
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
