"""The hooks on Horovod's own Python, without its native core: the core and the leader are stand-ins."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from horovod_elastic.core.interface import Disagreement
from horovod_elastic.worker import hooks
from horovod_elastic.worker.participant_state import Called
from horovod_elastic.worker.session import ProjectedRank
from horovod_elastic.worker.state_route import Origin, Route

pytest.importorskip("horovod")


class Leave(Exception):
    """The test's own way out of a training function."""


class Core:
    """Says what it was asked for."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def alone(self) -> None:
        self._calls.append("alone")

    def transport(self) -> None:
        pass


@dataclass
class Session:
    """What a script's calls make of the leader."""

    warming: bool = False
    projected_rank: ProjectedRank | None = None
    generation: int = 0
    commits: int = 0
    calls: list[str] = field(default_factory=list)
    core: Any = None
    samples_per_step: int = 0
    size: int = 1
    origins: list[Origin] = field(default_factory=list)
    """What it said of itself in generations that began with a synchronisation."""
    word: Called | None = None
    """Given at the next boundary."""

    def __post_init__(self) -> None:
        self.core = Core(self.calls)

    def belongs_here(self) -> bool:
        return True

    def connect(self) -> None:
        self.calls.append("connect")

    def found(self) -> None:
        self.calls.append("found")
        self.generation += 1

    def join(self) -> Called:
        self.calls.append("join")
        self.warming, self.projected_rank, self.generation = False, None, 5
        return Called(5)

    def enter_loop(self) -> None:
        self.calls.append("enter_loop")

    def begins(self, commits: int, *, saved: bool) -> None:
        self.commits = commits
        self.calls.append("begins")

    def try_batches(self) -> None:
        """No leader asks for trials here."""

    def has_saved(self) -> None:
        self.calls.append("has saved")

    def committed(self, progress: float) -> None:
        self.commits += 1

    def at_boundary(self) -> Called | None:
        word, self.word = self.word, None
        return word

    def aggregate_of_this_generation(self) -> int:
        return 0

    def take_tasks(self) -> list[Any]:
        return []

    def enter(self, word: Called) -> Called:
        self.calls.append(f"enter {word.generation} commits={self.commits}")
        self.generation = word.generation
        return word

    def step_aside(self) -> Called:
        self.calls.append("aside")
        return Called(9)

    def leave(self) -> None:
        self.calls.append("leave")
        raise SystemExit(0)

    def hang_up(self) -> None:
        self.calls.append("hang_up")

    def recover(self) -> Called:
        self.calls.append(f"recover commits={self.commits}")
        self.generation += 1
        return Called(self.generation)

    def finished(self) -> None:
        self.calls.append("finished")


class Model:
    """Live parameters and the last saved ones, as Horovod's ModelStateHandler has them."""

    def __init__(self, module: types.ModuleType, rank_0: dict[str, Any]) -> None:
        outer = self
        self.live = self.saved = "initial"
        self.resets = 0

        class State(module.State):  # type: ignore[name-defined, misc]
            def save(self) -> None:
                outer.saved = outer.live

            def restore(self) -> None:
                outer.live = outer.saved

            def sync(self) -> None:
                outer.live = rank_0["model"]

            def reset(self) -> None:
                outer.resets += 1

        self.state = State(lambda message: message, lambda: 0)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    stand_in = Session()
    monkeypatch.setattr(hooks.sessions, "current", lambda: stand_in)
    monkeypatch.setattr("horovod_elastic.worker.state_sync.broadcast", lambda state, root: state.sync())
    monkeypatch.setattr("horovod_elastic.worker.state_sync.carry_on", lambda state: None)

    def ask(origin: Origin, commits: int, **_: bool) -> Callable[[], Route]:
        stand_in.origins.append(origin)
        return lambda: Route(commits)

    monkeypatch.setattr(hooks.boundary.state_route, "ask", ask)
    return stand_in


@pytest.fixture
def elastic() -> types.ModuleType:
    """A copy of horovod.common.elastic of its own, hooked."""
    import importlib.util

    spec = importlib.util.find_spec("horovod.common.elastic")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hooks.patch_elastic(module)
    return module


def basics(initialised: bool = False) -> Any:
    """An object as Horovod's modules have one, its native core a stand-in that knows the truth: alone."""
    namespace = types.SimpleNamespace()

    class HorovodBasics:
        def __init__(self) -> None:
            self.up = initialised

        def is_initialized(self) -> bool:
            return self.up

        def init(self) -> None:
            self.up = True

        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 1

        local_rank = cross_rank = rank
        local_size = cross_size = size

    namespace.HorovodBasics = HorovodBasics
    hooks.patch_basics(namespace)  # type: ignore[arg-type]
    return namespace.HorovodBasics()


def test_objects_without_a_name_are_called_the_same_whatever_their_type() -> None:
    def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> str:
        return name or type(obj).__name__

    def allgather_object(obj: Any, name: str | None = None) -> str:
        return name or type(obj).__name__

    module = types.SimpleNamespace(broadcast_object=broadcast_object, allgather_object=allgather_object)
    hooks.patch_functions(module)  # type: ignore[arg-type]
    assert module.broadcast_object({"a": 1}) == module.broadcast_object(None, 0)
    assert module.allgather_object("text") == module.allgather_object(1)
    assert module.broadcast_object(None, name="mine") == module.allgather_object(1, "mine") == "mine"


def call_from(module: str, function: Callable[[], int]) -> int:
    """Call `function` from code that belongs to `module`."""
    namespace: dict[str, Any] = {"__name__": module, "function": function}
    exec("def call():\n    return function()", namespace)
    result: int = namespace["call"]()
    return result


def test_a_newcomers_script_is_told_the_outlook_and_horovod_the_truth(session: Session) -> None:
    session.warming, session.projected_rank = True, ProjectedRank(3, 5, 1, 2, 1, 4)
    horovod = basics()
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    for module, expected in (
        ("__main__", (3, 5, 1, 2, 1, 4)),
        ("horovod_scripts", (3, 5, 1, 2, 1, 4)),
        ("horovod.torch.optimizer", (0, 1, 0, 1, 0, 1)),
    ):
        assert tuple(call_from(module, getattr(horovod, name)) for name in names) == expected


def test_once_it_has_joined_everybody_is_told_the_truth(session: Session) -> None:
    assert call_from("__main__", basics().size) == 1


def test_a_founders_first_init_waits_for_its_place_and_a_second_does_nothing(session: Session) -> None:
    horovod = basics()
    horovod.init()
    horovod.up = True
    horovod.init()
    assert session.calls == ["connect", "found"]


def test_a_newcomers_init_asks_for_no_place_and_is_alone(session: Session) -> None:
    session.warming = True
    basics().init()
    assert session.calls == ["connect", "alone"]


def run(module: types.ModuleType, model: Model, function: Callable[[Any], Any]) -> Any:
    """hvd.elastic.run."""
    return module.run_fn(function, lambda: None)(model.state)


def test_a_change_saves_what_was_trained_and_loses_nothing(
    session: Session, elastic: types.ModuleType
) -> None:
    rank_0 = {"model": "founded"}
    model = Model(elastic, rank_0)
    seen = []

    def train(state: Any) -> str:
        seen.append(model.live)
        if len(seen) == 1:
            model.live = rank_0["model"] = "trained since the last commit"
            session.word = Called(2, at=7)
            state.check_host_updates()
        return "result"

    assert run(elastic, model, train) == "result"
    assert seen == ["founded", "trained since the last commit"]
    assert model.saved == "trained since the last commit"
    assert model.resets == 1
    assert session.calls == ["enter_loop", "begins", "has saved", "enter 2 commits=0", "begins", "finished"]


def test_without_a_word_a_boundary_is_passed(session: Session, elastic: types.ModuleType) -> None:
    model = Model(elastic, {"model": "founded"})

    def train(state: Any) -> None:
        state.commit()
        state.check_host_updates()
        state.commit()

    run(elastic, model, train)
    assert session.commits == 2
    assert session.calls == ["enter_loop", "begins", "finished"]


def test_a_commit_saves_once_and_counts_before_it_looks(session: Session, elastic: types.ModuleType) -> None:
    model = Model(elastic, {"model": "founded"})
    turns = []

    def train(state: Any) -> None:
        turns.append(session.commits)
        if len(turns) == 1:
            session.word = Called(2, at=1)
            state.commit()

    run(elastic, model, train)
    assert turns == [0, 1]
    assert "enter 2 commits=1" in session.calls


def test_where_nobody_is_new_nothing_is_broadcast(session: Session, elastic: types.ModuleType) -> None:
    rank_0 = {"model": "founded"}
    model = Model(elastic, rank_0)
    seen = []

    def train(state: Any) -> None:
        seen.append(model.live)
        if len(seen) == 1:
            model.live, rank_0["model"] = "trained", "not asked for"
            session.word = Called(2, at=1, sync=False)
            state.commit()

    run(elastic, model, train)
    assert seen == ["founded", "trained"]


def test_who_is_told_to_leave_ends_at_the_boundary_with_0(
    session: Session, elastic: types.ModuleType
) -> None:
    model = Model(elastic, {"model": "founded"})

    def train(state: Any) -> None:
        session.word = Called(2, at=1, leave="given back")
        state.commit()

    with pytest.raises(SystemExit) as ended:
        run(elastic, model, train)
    assert ended.value.code == 0
    assert session.calls == ["enter_loop", "begins", "leave"]


def test_who_steps_aside_takes_over_the_state_when_called_back(
    session: Session, elastic: types.ModuleType
) -> None:
    rank_0 = {"model": "founded"}
    model = Model(elastic, rank_0)
    seen = []

    def train(state: Any) -> None:
        seen.append(model.live)
        if len(seen) == 1:
            session.word = Called(2, at=1, aside=True)
            rank_0["model"] = "trained by others"
            state.commit()

    run(elastic, model, train)
    assert seen == ["founded", "trained by others"]
    assert session.calls == ["enter_loop", "begins", "aside", "begins", "finished"]


def test_a_failure_goes_back_to_the_last_commit(session: Session, elastic: types.ModuleType) -> None:
    rank_0 = {"model": "founded"}
    model = Model(elastic, rank_0)
    turns = []

    def train(state: Any) -> None:
        turns.append(model.live)
        if len(turns) == 1:
            model.live = "committed"
            state.commit()
            model.live = "half a batch further"
            rank_0["model"] = "committed"
            raise elastic.HorovodInternalError
        return

    run(elastic, model, train)
    assert turns == ["founded", "committed"]
    assert session.calls == [
        *("enter_loop", "begins", "hang_up", "recover commits=1"),
        *("begins", "finished"),
    ]


def test_a_newcomer_that_has_not_committed_goes_back_to_what_it_was_given(
    session: Session, elastic: types.ModuleType
) -> None:
    """Stock Horovod would go back to its own initial model, and might hand that on to all."""
    session.warming = True
    model = Model(elastic, {"model": "trained by the others"})
    seen = []

    def train(state: Any) -> None:
        seen.append(model.live)
        if len(seen) == 1:
            model.live = "garbage"

            def as_rank_0() -> None:
                pass  # nobody else is left: what it restores is what everybody gets

            type(model.state).sync = lambda self: as_rank_0()
            raise elastic.HorovodInternalError

    run(elastic, model, train)
    assert seen == ["trained by the others", "trained by the others"]


def test_a_newcomer_joins_at_the_loop_and_its_reset_callbacks_run(
    session: Session, elastic: types.ModuleType
) -> None:
    session.warming, session.projected_rank = True, ProjectedRank(1, 2, 0, 1, 1, 2)
    model = Model(elastic, {"model": "trained"})
    rates: list[str] = []
    model.state.register_reset_callbacks([lambda: rates.append("scaled")])
    run(elastic, model, lambda state: None)
    assert session.calls == ["join", "begins", "finished"]
    assert rates == ["scaled"]


def test_a_script_that_fails_has_not_finished(session: Session, elastic: types.ModuleType) -> None:
    model = Model(elastic, {"model": "founded"})

    def train(state: Any) -> None:
        raise Leave

    with pytest.raises(Leave):
        run(elastic, model, train)
    assert "finished" not in session.calls


def test_no_notification_server_is_started(
    elastic: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    elastic.notification_manager.init()
    assert elastic.notification_manager._service is None


# --- what a worker says of itself ---------------------------------------------------------------------------


def test_who_switches_at_a_boundary_stays_and_who_was_set_aside_or_fell_back_does_not(
    session: Session, elastic: types.ModuleType
) -> None:
    model = Model(elastic, {"model": "founded"})
    words = iter([Called(2, at=1), Called(3, at=1, aside=True)])

    def train(state: Any) -> None:
        session.word = next(words, None)
        state.commit()
        if Origin.BACK not in session.origins:
            raise elastic.HorovodInternalError

    run(elastic, model, train)
    assert session.origins == [Origin.NEW, Origin.STAYS, Origin.NEW, Origin.BACK]


def test_who_could_not_enter_the_generation_that_it_was_called_to_does_not_stay(
    session: Session, elastic: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(elastic, {"model": "founded"})
    words = iter([Called(2, at=1)])
    monkeypatch.setattr(session, "enter", lambda word: Called(3))

    def train(state: Any) -> None:
        session.word = next(words, None)
        state.commit()

    run(elastic, model, train)
    assert session.origins == [Origin.NEW, Origin.BACK]


# --- ranks that ask for different things --------------------------------------------------------------------

WHAT_THEY_ASKED_FOR = "'loss': rank 0 asked for an allreduce, rank 1 for a broadcast"


def test_the_same_disagreement_three_times_reaches_the_script(
    session: Session, elastic: types.ModuleType
) -> None:
    model = Model(elastic, {"model": "founded"})
    tries = []

    def train(state: Any) -> None:
        tries.append(session.commits)
        if len(tries) == 1:
            state.commit()
        raise elastic.HorovodInternalError(Disagreement(WHAT_THEY_ASKED_FOR))

    with pytest.raises(elastic.HorovodInternalError, match=WHAT_THEY_ASKED_FOR):
        run(elastic, model, train)
    assert len(tries) == 3
    assert session.calls.count("hang_up") == 3  # the others must not wait for this one


def test_a_commit_between_disagreements_is_progress(session: Session, elastic: types.ModuleType) -> None:
    model = Model(elastic, {"model": "founded"})
    tries = []

    def train(state: Any) -> None:
        tries.append(None)
        if len(tries) in (3, 5):
            state.commit()
        if len(tries) < 7:
            raise elastic.HorovodInternalError(Disagreement(WHAT_THEY_ASKED_FOR))

    run(elastic, model, train)
    assert len(tries) == 7


def test_lost_peers_are_no_disagreement_however_many(session: Session, elastic: types.ModuleType) -> None:
    model = Model(elastic, {"model": "founded"})
    tries = []

    def train(state: Any) -> None:
        tries.append(None)
        if len(tries) < 9:
            raise elastic.HorovodInternalError(*[RuntimeError("Connection closed by peer")][len(tries) % 2 :])

    run(elastic, model, train)
    assert len(tries) == 9
