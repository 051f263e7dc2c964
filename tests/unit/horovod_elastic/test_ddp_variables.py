"""What a newcomer's functions and loops take over from those of the others."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tqdm import tqdm, trange  # noqa: E402

from horovod_elastic.worker.ddp import script_frames  # noqa: E402
from horovod_elastic.worker.ddp.counting_loops import CountingLoops  # noqa: E402
from horovod_elastic.worker.ddp.script_variables import ScriptVariables  # noqa: E402


class Meter:
    """An object of a script."""

    def __init__(self) -> None:
        self.total = 0.0
        self.name = "loss"
        self.average = torch.zeros(2)


def trained(
    steps: int, rank: int, part: ScriptVariables, here: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """A script's function; `here` is called where workers join, with its variables."""
    meter, history, best = Meter(), [], None
    model = torch.nn.Linear(2, 2)
    part.training_begins()
    for step in range(1, steps + 1):
        meter.total += step
        meter.average.add_(step)
        history.append(step)
        best = step
        with torch.no_grad():
            model.weight.fill_(step)
    here({})
    return {
        "step": step, "rank": rank, "total": meter.total, "average": meter.average.tolist(),
        "history": history, "best": best, "name": meter.name, "weight": model.weight[0, 0].item(),
    }  # fmt: skip


def handed_over(giver: int, newcomer: int, *, new: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables of one that has taken so many steps and of one that has taken others, after it."""
    sent: list[Any] = []
    results = []
    for rank, steps in ((0, giver), (3, newcomer)):
        part = ScriptVariables(list)
        part.takes(new)

        def meet(own: ScriptVariables = part) -> None:
            own.take_over(sent[0]) if sent else sent.append(own.own())  # one line, as in a script

        results.append(trained(steps, rank, part, lambda _, meet=meet: meet()))
    return results[0], results[1]


def test_a_newcomer_takes_over_what_has_changed_and_keeps_what_has_not() -> None:
    giver, newcomer = handed_over(9, 2)
    assert newcomer == {**giver, "rank": 3}


def test_one_that_is_not_new_keeps_its_own() -> None:
    _, other = handed_over(9, 2, new=False)
    assert other["step"] == 2
    assert other["total"] == 3.0


def test_a_container_that_holds_itself_is_left_alone() -> None:
    knot: list[Any] = [1]
    knot.append(knot)
    part = ScriptVariables(list)
    part.training_begins()
    assert not [place for place in part.own()["values"] if "knot" in place]


def test_in_another_function_nothing_is_taken_over() -> None:
    sent: list[Any] = []
    giving, taking = ScriptVariables(list), ScriptVariables(list)
    taking.takes(True)
    trained(9, 0, giving, lambda _: sent.append(giving.own()))

    def elsewhere() -> int:
        step = 1
        taking.take_over(sent[0])
        return step

    assert elsewhere() == 1


def test_at_another_call_for_a_batch_in_the_same_function_the_variables_are_taken_over() -> None:
    """Such as the one after `except StopIteration`."""
    sent: list[Any] = []
    giving, taking = ScriptVariables(list), ScriptVariables(list)
    taking.takes(True)
    found = []
    for steps, part in ((9, giving), (2, taking)):
        step = 0
        part.training_begins()
        step = steps
        if part is giving:
            sent.append(part.own())
        else:
            part.take_over(sent[0])
        found.append(step)
    assert found == [9, 9]


# --- loops ---------------------------------------------------------------------------------------------


def counted(loops: CountingLoops, joins_at: int, value: int) -> list[int]:
    """The numbers of a loop whose variable gets another value at one of them."""
    seen = []
    for number in range(10):
        if number == joins_at and joins_at not in seen:
            loops.go_on({(sys._getframe(), "number"): value}, 0)
            seen.append(joins_at)
            continue
        seen.append(number)
    return seen


@pytest.fixture
def loops() -> Iterator[CountingLoops]:
    watching = CountingLoops()
    watching.watch()
    yield watching
    watching.go_on({}, 0)


def test_a_range_goes_on_after_the_others_number(loops: CountingLoops) -> None:
    assert counted(loops, 2, 7) == [0, 1, 2, 8, 9]


def test_a_range_whose_variable_got_nothing_counts_on(loops: CountingLoops) -> None:
    loops.go_on({}, 0)
    assert counted(loops, 20, 7) == list(range(10))


def test_an_enumeration_goes_on_with_the_batches_of_the_others(loops: CountingLoops) -> None:
    numbers = []
    for number, _ in enumerate(iter("abcdef")):
        numbers.append(number)
        if number == 1:
            loops.batch_loop_begins()
            loops.go_on({}, 40)
    assert numbers == [0, 1, 40, 41, 42, 43]


@pytest.mark.parametrize("bar", [lambda: tqdm(range(10), disable=True), lambda: trange(10, disable=True)])
def test_a_bar_around_a_range_goes_on_after_the_others_number(
    loops: CountingLoops, bar: Callable[[], Any]
) -> None:
    seen = []
    for number in bar():
        seen.append(number)
        if number == 2:
            loops.go_on({(sys._getframe(), "number"): 7}, 0)
    assert seen == [0, 1, 2, 8, 9]


def test_a_bar_around_an_enumeration_goes_on_with_the_batches_of_the_others(loops: CountingLoops) -> None:
    numbers = []
    for number, _ in tqdm(enumerate("abcd", 1), disable=True):
        numbers.append(number)
        if number == 2:
            loops.batch_loop_begins()
            loops.go_on({}, 40)
    assert numbers == [1, 2, 41, 42]


def test_after_the_join_bars_are_tqdms_own_again() -> None:
    own = tqdm.__iter__
    watching = CountingLoops()
    watching.watch()
    assert tqdm.__iter__ is not own
    watching.go_on({}, 0)
    assert tqdm.__iter__ is own


def test_ranges_that_are_no_loops_are_pythons_own(loops: CountingLoops) -> None:
    assert type(range(3)).__name__ == "range"
    assert [2 * number for number in range(3)] == [0, 2, 4]
    assert list(range(2)) == [0, 1]
    assert 2 in range(3)


def test_after_the_join_the_module_has_pythons_own_again() -> None:
    watching = CountingLoops()
    watching.watch()
    assert "range" in globals()
    watching.go_on({}, 0)
    assert "range" not in globals()


@contextlib.contextmanager
def fresh_caches() -> Iterator[None]:
    """With answers that are computed anew, and forgotten: sys.path is another one."""
    for each in (script_frames._not_the_scripts, script_frames.is_of_script):
        each.cache_clear()
    yield
    for each in (script_frames._not_the_scripts, script_frames.is_of_script):
        each.cache_clear()


def test_packages_are_not_the_scripts_wherever_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages" / "trainer-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", str(tmp_path / "packages"), *sys.path])
    names = ("train.py", "packages/trainer/loop.py", "packages_of_mine/loop.py")
    with fresh_caches():
        told = {name: script_frames.is_of_script(str(tmp_path / name)) for name in names}
    assert told == {"train.py": True, "packages/trainer/loop.py": False, "packages_of_mine/loop.py": True}
    assert not script_frames.is_of_script(torch.__file__)


LIBRARY = """
def fit(ask):
    return ask()

def passed_on(ask):
    yield ask()

def fit_on(ask):
    return [each for each in passed_on(ask)]
"""


def test_a_training_loop_in_an_unknown_package_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_trainer-1.0.dist-info").mkdir()
    (tmp_path / "some_trainer.py").write_text(LIBRARY)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with fresh_caches():
        trainer = importlib.import_module("some_trainer")
        assert trainer.fit(script_frames.unknown_trainer) == "some_trainer"
        assert trainer.fit_on(script_frames.unknown_trainer) == ["some_trainer"]
        assert list(trainer.passed_on(script_frames.unknown_trainer)) == [""], "it passes batches on"
        assert script_frames.unknown_trainer() == ""


def drawn(seed: int, steps: int, part: ScriptVariables, meet: Callable[[], None]) -> tuple[Any, ...]:
    """A script's function that draws one batch ahead, from generators of its own."""
    torchs, pythons = torch.Generator().manual_seed(seed), random.Random(seed)
    ahead, best = torch.zeros(2), 9
    part.first_step()
    for step in range(steps):
        best = min(best, seed) if step == 0 else best
        if step == 1:
            part.training_begins()
        ahead = torch.rand(2, generator=torchs)
        pythons.random()
    meet()
    return ahead.tolist(), best, torch.rand(1, generator=torchs).item(), pythons.random()


@pytest.mark.parametrize("whole", [True, False])
def test_only_who_takes_a_rank_over_gets_tensors_in_variables_and_generators(whole: bool) -> None:
    sent: list[Any] = []
    results = []
    for seed, steps in ((1, 7), (2, 3)):
        part = ScriptVariables(list)
        part.whole = whole
        part.takes(True)

        def meet(own: ScriptVariables = part) -> None:
            own.take_over(sent[0]) if sent else sent.append(own.own())  # one line, as in a script

        results.append(drawn(seed, steps, part, lambda meet=meet: meet()))  # type: ignore[misc]
    assert (results[0] == results[1]) is whole
