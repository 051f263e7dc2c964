"""flexo.elastic(...) in one process: what may be declared, and what a worker's runtime does with it."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from says import says

import flexo
from horovod_elastic import declared


class Counter:
    """An object with state, as users write it."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class HalfStateful:
    def state_dict(self) -> dict[str, int]:
        return {}


class Worker:
    """A runtime that notes what it is told."""

    def __init__(self, *, has_begun: bool = False) -> None:
        self.has_begun = has_begun
        self.weight = 0.5
        self.rounds = 0
        self.counted = False

    def counts_rounds(self) -> None:
        self.counted = True

    def next_round(self) -> None:
        self.rounds += 1


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "script", declared._Script())


def own() -> dict[str, Any]:
    return {unit.name: unit.own() for unit in declared.declared()}


def take_over(theirs: dict[str, Any]) -> None:
    for unit in declared.declared():
        unit.take_over(theirs[unit.name])


def test_objects_pairs_of_functions_and_values_are_handed_over_by_name() -> None:
    counter, numbers = Counter(), random.Random(1)
    job = flexo.elastic(counter=counter, numbers=(numbers.getstate, numbers.setstate), epoch=0, best=[])
    before = numbers.getstate()
    take_over({"counter": {"count": 7}, "numbers": random.Random(2).getstate(), "epoch": 3, "best": [0.5]})
    assert (counter.count, job.epoch, job.best) == (7, 3, [0.5])
    assert numbers.getstate() == random.Random(2).getstate() != before
    job.epoch += 1
    assert own()["epoch"] == 4


def test_steps_are_counted_and_go_on_with_the_others_number() -> None:
    job = flexo.elastic()
    steps = job.steps(9)
    assert [next(steps), next(steps)] == [0, 1]
    assert own() == {"job.steps()": 2}
    take_over({"job.steps()": 6})
    assert list(steps) == [6, 7, 8]


def test_steps_begin_where_a_script_resumes() -> None:
    assert list(flexo.elastic().steps(12, start=10)) == [10, 11]


def test_steps_without_an_end() -> None:
    steps = flexo.elastic().steps()
    assert [next(steps) for _ in range(3)] == [0, 1, 2]


def test_each_step_begins_with_a_boundary_of_the_worker() -> None:
    declared.script.runtime = worker = Worker()
    job = flexo.elastic()
    assert list(job.steps(2)) == [0, 1]
    assert (worker.counted, worker.rounds) == (True, 3), "the end of the loop is a boundary, too"
    assert job.weight == 0.5


def test_a_step_without_effect_is_taken_again() -> None:
    """However long a worker is muted, and however often its optimizers are called in a step."""
    steps = flexo.elastic().steps()
    assert next(steps) == 0
    declared.step_ends(counts=True)
    declared.step_ends(counts=False)
    for _ in range(3):
        assert next(steps) == 1
        declared.step_ends(counts=False)
        declared.step_ends(counts=False)
    assert next(steps) == 1
    declared.step_ends(counts=True)
    assert next(steps) == 2


def test_without_flexo_nothing_is_weighed() -> None:
    assert flexo.elastic().weight == 1.0


# --- misuse -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), ["object", "state_dict()"]),
        (HalfStateful(), ["HalfStateful", "state_dict() alone"]),
        (Counter, ["type"]),
        ([Counter()], ["list"]),
        (lambda: 0, ["function", "pair of functions"]),
        (iter(()), ["tuple_iterator"]),
    ],
)
def test_what_is_no_state_is_refused(value: Any, words: list[str]) -> None:
    with pytest.raises(TypeError) as refused:
        flexo.elastic(buffer=value)
    assert says(str(refused.value), "flexo.elastic(buffer=...)", *words)


@pytest.mark.parametrize("name", ["steps", "weight", "_private"])
def test_names_that_are_taken_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        flexo.elastic(**{name: 1})


def test_a_second_declaration_is_refused() -> None:
    flexo.elastic(epoch=0)
    with pytest.raises(RuntimeError, match="called before"):
        flexo.elastic(step=0)


def test_a_second_loop_of_steps_is_refused() -> None:
    job = flexo.elastic()
    job.steps(3)
    with pytest.raises(RuntimeError, match="one loop of steps"):
        job.steps(3)


def test_a_declaration_after_the_first_step_is_refused() -> None:
    declared.script.runtime = worker = Worker(has_begun=True)
    with pytest.raises(RuntimeError, match="after the first step"):
        flexo.elastic(epoch=0)
    worker.has_begun = False
    job = flexo.elastic(epoch=0)
    worker.has_begun = True
    with pytest.raises(RuntimeError, match="after the first step"):
        job.steps(3)


def test_values_that_were_not_declared_are_unknown() -> None:
    job = flexo.elastic(epoch=0, counter=Counter())
    with pytest.raises(AttributeError, match=r"job\.eopch.*known: epoch"):
        job.eopch = 1
    with pytest.raises(AttributeError, match=r"job\.best"):
        assert job.best
    with pytest.raises(AttributeError, match="counter"):
        job.counter = Counter()
    with pytest.raises(TypeError, match=r"job\.epoch"):
        job.epoch = object()


@pytest.mark.processes
def test_the_name_flexo_costs_a_script_nothing_until_it_declares() -> None:
    """flexod and the commands import the same package."""
    program = "import sys, flexo; print([n for n in sys.modules if n.partition('.')[0] == 'horovod_elastic'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    program = "import sys, flexo; flexo.elastic; print('torch' in sys.modules, 'grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


# --- tensors ----------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")

from horovod_elastic.worker.ddp.declared_state import DeclaredState  # noqa: E402


def test_parameters_must_be_in_some_declared_state() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer, state = torch.optim.SGD(model.parameters(), lr=0.1), DeclaredState(list)
    assert says(state.obstacle([optimizer]), "DistributedDataParallel", "flexo.elastic()")
    declared.script.job = declared.ElasticJob({"other": other})
    assert says(state.obstacle([optimizer]), "SGD")
    for held in (model, (model.state_dict, model.load_state_dict)):
        declared.script.job = declared.ElasticJob({"model": held})
        assert state.obstacle([optimizer]) == ""


def test_objects_that_are_captured_are_not_handed_over_twice() -> None:
    model, counter = torch.nn.Linear(2, 2), Counter()
    flexo.elastic(model=model, counter=counter)
    assert len(DeclaredState(list).parts()) == 2
    assert len(DeclaredState(lambda: [model]).parts()) == 1
    assert DeclaredState(list).models() == [model]


def test_declared_state_goes_back_to_what_it_was() -> None:
    model, counter = torch.nn.BatchNorm1d(2), Counter()
    job = flexo.elastic(model=model, counter=counter, history=[1])
    bring_back = DeclaredState(list).memento()
    model(torch.randn(4, 2))
    counter.count = 5
    job.history.append(2)
    bring_back()
    assert (counter.count, job.history, model.num_batches_tracked.item()) == (0, [1], 0)
