"""The hooks on Horovod's own Python, without its native core: the core and the leader are stand-ins."""

from __future__ import annotations

import socket
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from horovod_elastic.worker import connections, hooks
from horovod_elastic.worker.session import Outlook

pytest.importorskip("horovod")


class Leave(Exception):
    """The test's own way out of a training function."""


@dataclass
class Session:
    """What a script's calls make of the leader."""

    warming: bool = False
    outlook: Outlook | None = None
    generation: int = 0
    commits: int = 0
    calls: list[str] = field(default_factory=list)
    deliver: Callable[[int], None] | None = None

    def belongs_here(self) -> bool:
        return True

    def connect(self) -> None:
        self.calls.append("connect")

    def found(self) -> None:
        self.calls.append("found")
        self.generation += 1

    def join(self) -> None:
        self.calls.append("join")
        self.warming, self.outlook, self.generation = False, None, 5

    def arrive(self) -> None:
        self.calls.append(f"arrive commits={self.commits}")
        self.generation += 1

    def enter_loop(self) -> None:
        self.calls.append("enter_loop")

    def synchronised(self) -> None:
        self.calls.append("synchronised")

    def resume(self, deliver: Callable[[int], None]) -> None:
        self.deliver = deliver

    def committed(self) -> None:
        self.commits += 1

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
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    stand_in = Session()
    monkeypatch.setattr(hooks.sessions, "current", lambda: stand_in)
    yield stand_in
    hooks._move = None


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


def call_from(module: str, function: Callable[[], int]) -> int:
    """Call `function` from code that belongs to `module`."""
    namespace: dict[str, Any] = {"__name__": module, "function": function}
    exec("def call():\n    return function()", namespace)
    result: int = namespace["call"]()
    return result


def test_a_newcomers_script_is_told_the_outlook_and_horovod_the_truth(session: Session) -> None:
    session.warming, session.outlook = True, Outlook(3, 5, 1, 2, 1, 4)
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
    horovod.init()
    assert session.calls == ["connect", "found"]


def test_a_newcomers_init_asks_for_no_place(session: Session) -> None:
    session.warming = True
    basics().init()
    assert session.calls == ["connect"]


def run(module: types.ModuleType, model: Model, function: Callable[[Any], Any]) -> Any:
    """hvd.elastic.run with a core that is shut down and initialised again by `reset`."""
    horovod = basics(initialised=True)

    def reset() -> None:
        horovod.up = False
        horovod.init()

    return module.run_fn(function, reset)(model.state)


def test_an_interrupt_saves_what_was_trained_and_loses_nothing(
    session: Session, elastic: types.ModuleType
) -> None:
    rank_0 = {"model": "founded"}
    model = Model(elastic, rank_0)
    seen = []

    def train(state: Any) -> str:
        seen.append(model.live)
        if len(seen) == 1:
            model.live = rank_0["model"] = "trained since the last commit"
            assert session.deliver is not None
            session.deliver(1)
            state.check_host_updates()
        return "result"

    assert run(elastic, model, train) == "result"
    assert seen == ["founded", "trained since the last commit"]
    assert model.saved == "trained since the last commit"
    assert model.resets == 1
    assert session.calls == [
        *("enter_loop", "synchronised", "connect", "arrive commits=0"),
        *("synchronised", "finished"),
    ]


def test_a_commit_saves_once_and_counts_before_it_looks(session: Session, elastic: types.ModuleType) -> None:
    model = Model(elastic, {"model": "founded"})
    turns = []

    def train(state: Any) -> None:
        turns.append(session.commits)
        if len(turns) == 1:
            assert session.deliver is not None
            session.deliver(1)
            state.commit()

    run(elastic, model, train)
    assert turns == [0, 1]
    assert "arrive commits=1" in session.calls


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
    assert "arrive commits=1" in session.calls


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
    session.warming, session.outlook = True, Outlook(1, 2, 0, 1, 1, 2)
    model = Model(elastic, {"model": "trained"})
    rates: list[str] = []
    model.state.register_reset_callbacks([lambda: rates.append("scaled")])
    run(elastic, model, lambda state: None)
    assert session.calls == ["connect", "join", "synchronised", "finished"]
    assert rates == ["scaled"]


def test_a_script_that_fails_has_not_finished(session: Session, elastic: types.ModuleType) -> None:
    model = Model(elastic, {"model": "founded"})

    def train(state: Any) -> None:
        raise Leave

    with pytest.raises(Leave):
        run(elastic, model, train)
    assert "finished" not in session.calls
    assert not elastic.notification_manager._listeners


def test_no_notification_server_is_started(
    elastic: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    elastic.notification_manager.init()
    assert elastic.notification_manager._service is None


def test_who_gives_up_a_generation_hangs_up_so_that_the_others_notice(
    session: Session, elastic: types.ModuleType
) -> None:
    ours, theirs = socket.socketpair()
    strange, stranger = socket.socketpair()
    with connections.recorded():
        mine = ours.dup()  # what the core opens while it is initialised
    model = Model(elastic, {"model": "founded"})
    turns = []

    def train(state: Any) -> None:
        turns.append(1)
        if len(turns) == 1:
            raise elastic.HorovodInternalError

    run(elastic, model, train)
    theirs.settimeout(5)
    assert theirs.recv(1) == b""
    stranger.setblocking(False)
    with pytest.raises(BlockingIOError):
        stranger.recv(1)
    for end in (ours, theirs, mine, strange, stranger):
        end.close()


def test_a_descriptor_that_was_used_again_is_left_alone() -> None:
    with connections.recorded():
        first, other = socket.socketpair()
    number = first.fileno()
    first.close()
    again, peer = socket.socketpair()
    assert number in (again.fileno(), peer.fileno())
    other.close()
    connections.hang_up()
    again.sendall(b"x")
    assert peer.recv(1) == b"x"
    again.close()
    peer.close()
