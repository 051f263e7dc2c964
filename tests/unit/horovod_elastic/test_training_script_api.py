"""What a script may say to flexo, in one process without Horovod."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from says import says

from horovod_elastic import training
from horovod_elastic.training import (
    AggregateBatch,
    BadBatch,
    notify_end_of_minibatch,
    on_batch_change,
    on_warm_up,
)

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _a_script_that_has_said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "script", training.ScriptSettings())
    monkeypatch.delenv("FLEXO_ELASTIC_BATCH", raising=False)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Rank and size as a test sets them."""
    now = {"rank": 0, "size": 1}
    monkeypatch.setattr(training, "rank_and_size", lambda: (now["rank"], now["size"]))
    return now


def sgd(rate: float = 0.1) -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=rate, momentum=0.9)


class Passes:
    """Horovod's optimizer, as far as it is told something."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.1, "params": []}]
        self.passes = 0

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.passes = passes


def test_outside_of_flexo_the_end_of_a_mini_batch_is_nothing() -> None:
    notify_end_of_minibatch(32)


def test_the_end_of_a_mini_batch_goes_to_the_runtime() -> None:
    seen: list[int] = []
    training.attach(seen.append)
    notify_end_of_minibatch(32)
    notify_end_of_minibatch()
    assert seen == [32, 0]


def test_a_fixed_batch_is_shared_anew_in_every_generation(place: dict[str, int]) -> None:
    optimizer, dataset = Passes(), SimpleNamespace(batch_size=0)
    batch = AggregateBatch(100, largest=20, optimizer=optimizer, dataset=dataset)
    assert (batch.share.samples, optimizer.passes, dataset.batch_size) == (100, 5, 100)
    place.update(rank=2, size=3)
    training.generation_begins(0)
    assert (batch.share.samples, optimizer.passes, dataset.batch_size) == (33, 2, 33)
    assert batch.share.aggregate == 99
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert training.samples_in_a_step() == 33


def test_a_batch_that_is_made_anew_in_every_generation_counts_once(place: dict[str, int]) -> None:
    optimizer = sgd()
    for _ in range(3):
        batch = AggregateBatch(32, optimizer=optimizer)
        training.generation_begins(64)
    assert training.samples_in_a_step() == batch.share.samples == 64
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_the_parts_cover_all_samples_and_their_weights_make_a_mean() -> None:
    batch = AggregateBatch(10, largest=4, optimizer=sgd())
    inputs, targets = torch.arange(10), torch.arange(10) * 2
    parts = list(batch.parts(inputs, targets))
    assert [len(x) for x, _, _ in parts] == [4, 3, 3]
    assert torch.equal(torch.cat([x for x, _, _ in parts]), inputs)
    assert torch.equal(torch.cat([y for _, y, _ in parts]), targets)
    assert sum(weight for *_, weight in parts) == pytest.approx(1.0)
    assert list(batch.parts(inputs[:0])) == []


def test_where_an_epoch_ends_unevenly_the_dataset_s_weight_counts(place: dict[str, int]) -> None:
    place.update(rank=1, size=2)
    dataset = SimpleNamespace(batch_size=0, weight=0.8)
    batch = AggregateBatch(20, largest=3, optimizer=sgd(), dataset=dataset)
    left = torch.arange(4)
    assert sum(weight for _, weight in batch.parts(left)) == pytest.approx(0.8)
    dataset.weight = 0.0  # its one sample is another worker's
    assert [weight for _, weight in batch.parts(left[:1])] == [0.0]


def test_a_mini_batch_above_the_mean_is_taken_in_more_passes_that_fit_and_the_next_one_as_usual(
    place: dict[str, int],
) -> None:
    """As a dataset hands them out to the faster ones of a heterogeneous job."""
    place.update(rank=0, size=2)
    optimizer, dataset = Passes(), SimpleNamespace(batch_size=0, weight=1.5)
    batch = AggregateBatch(16, largest=5, optimizer=optimizer, dataset=dataset)
    assert (dataset.batch_size, optimizer.passes) == (8, 2)
    parts = list(batch.parts(torch.arange(12)))
    assert [len(part) for part, _ in parts] == [4, 4, 4]
    assert optimizer.passes == 3
    assert sum(weight for _, weight in parts) == pytest.approx(1.5)
    dataset.weight = 0.5
    assert [len(part) for part, _ in batch.parts(torch.arange(4))] == [4]
    assert optimizer.passes == 2


def test_another_aggregate_batch_sets_the_learning_rate_and_tells_the_script(place: dict[str, int]) -> None:
    optimizer = sgd(0.1)
    told: list[int] = []
    on_batch_change(lambda share: told.append((optimizer.param_groups[0]["lr"], share.aggregate)))
    batch = AggregateBatch(32, optimizer=optimizer)
    training.generation_begins(0)
    assert told == []
    place.update(size=2)
    training.generation_begins(64)
    assert (batch.share.aggregate, batch.share.samples) == (64, 32)
    training.generation_begins(0)
    assert told == [(pytest.approx(0.2), 64)]
    training.generation_begins(32)
    assert told[1] == (pytest.approx(0.1), 32)


def test_the_script_s_own_rule_for_the_learning_rate_is_asked() -> None:
    optimizer = sgd(0.1)
    AggregateBatch(
        16, optimizer=optimizer, learning_rate=lambda rate, before, now: rate * (now / before) ** 0.5
    )
    training.generation_begins(64)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_a_newcomer_takes_rank_0_s_batch_and_rate_over_with_its_optimizer() -> None:
    running, newcomer = sgd(), sgd()
    AggregateBatch(32, optimizer=running)
    training.generation_begins(128)
    joined = AggregateBatch(32, optimizer=newcomer)
    newcomer.load_state_dict(running.state_dict())
    training.generation_begins(0)
    assert newcomer.param_groups[0]["lr"] == pytest.approx(0.4)
    assert joined.share.aggregate == 128


def test_a_restored_state_brings_its_batch_along() -> None:
    """After a crash rate and batch are those of the last commit; the next generation's are set from there."""
    optimizer = sgd()
    batch = AggregateBatch(32, optimizer=optimizer)
    saved = optimizer.state_dict()
    training.generation_begins(64)
    optimizer.load_state_dict(saved)
    training.generation_begins(128)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)
    assert batch.share.aggregate == 128


def test_a_batch_made_in_the_training_function_is_the_one_that_the_generation_began_with() -> None:
    """In a newcomer it does not exist yet when the generation begins."""
    running, newcomer = sgd(), sgd()
    AggregateBatch(32, optimizer=running)
    newcomer.load_state_dict(running.state_dict())
    training.generation_begins(128)
    assert AggregateBatch(32, optimizer=newcomer).share.aggregate == 128
    assert newcomer.param_groups[0]["lr"] == running.param_groups[0]["lr"] == pytest.approx(0.4)


def test_a_state_saved_before_the_batch_was_made_is_right_for_what_the_script_said() -> None:
    optimizer = sgd()
    saved = optimizer.state_dict()
    batch = AggregateBatch(32, optimizer=optimizer)
    training.generation_begins(64)
    optimizer.load_state_dict(saved)
    training.generation_begins(0)
    assert batch.share.aggregate == 32
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_without_a_number_the_job_s_smallest_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadBatch, match="--elastic-batch"):
        AggregateBatch(optimizer=sgd())
    monkeypatch.setenv("FLEXO_ELASTIC_BATCH", "48-96")
    assert AggregateBatch(optimizer=sgd()).share.aggregate == 48


# Warming up.


class State:
    """A state with one model and one optimizer, as Horovod's keeps them."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self._handlers = {
            name: SimpleNamespace(value=value) for name, value in [("m", self.model), ("o", self.optimizer)]
        }
        self._kept: Any = None

    def save(self) -> None:
        import copy

        self._kept = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self) -> None:
        self.model.load_state_dict(self._kept[0])
        self.optimizer.load_state_dict(self._kept[1])

    def weights(self) -> list[float]:
        return [float(value) for each in self.model.state_dict().values() for value in each.flatten()]


@pytest.fixture
def state() -> Iterator[State]:
    torch.manual_seed(3)
    return State()


def test_a_warm_up_leaves_state_gradients_and_random_numbers_as_they_were(state: State) -> None:
    def pass_once() -> None:
        state.model(torch.randn(4, 2)).sum().backward()
        state.optimizer.step()
        random.random()

    on_warm_up(pass_once)
    before, dice, torch_dice = state.weights(), random.getstate(), torch.random.get_rng_state()
    assert training.warm_up(state) > 0
    assert state.weights() == before
    assert random.getstate() == dice
    assert torch.equal(torch.random.get_rng_state(), torch_dice)
    assert all(parameter.grad is None for parameter in state.model.parameters())
    assert state.optimizer.state_dict()["state"] == {}


def test_a_warm_up_that_fails_is_told_of_and_harms_nobody(
    state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        state.model[0].weight.data.zero_()
        raise RuntimeError("no GPU")

    on_warm_up(fails)
    before = state.weights()
    training.warm_up(state)
    assert state.weights() == before
    assert says(capsys.readouterr().err, "this worker", "cold", "RuntimeError: no GPU")


def test_without_anything_registered_there_is_no_warm_up(state: State) -> None:
    assert training.warm_up(state) == 0.0


def test_a_state_without_models_can_be_warmed_up_too() -> None:
    calls: list[str] = []
    on_warm_up(lambda: calls.append("pass"))
    state = SimpleNamespace(save=lambda: calls.append("save"), restore=lambda: calls.append("restore"))
    training.warm_up(state)
    assert calls == ["save", "pass", "restore"]
