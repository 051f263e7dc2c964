"""What a worker's session hears in the very moment in which its worker switches, and when it cannot hear."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from trusting import Trusting

from flexo_protos.v1 import workers_pb2
from horovod_elastic.agent.local_service import LocalService
from horovod_elastic.agent.parked_link import ParkedLink
from horovod_elastic.core.interface import Core, RankPlacement
from horovod_elastic.worker.participant_state import Called
from horovod_elastic.worker.session import Session

OLD, NEW = 3, 4


class Switching:
    """A core in whose switch something happens."""

    outlives = False
    waited_s = 0.0

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.hung_up: list[int] = []

    def switch(self, generation: int) -> None:
        self.meanwhile()

    def hang_up(self, generation: int) -> None:
        self.hung_up.append(generation)


@pytest.fixture
def core() -> Switching:
    return Switching()


@pytest.fixture
def session(core: Switching, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Of a worker that trains in generation OLD and has a place in NEW."""
    for name in ("WORKER_ID", "WORKER_SECRET", "AGENT"):
        monkeypatch.setenv(f"FLEXO_{name}", "x")
    made = Session()
    made.core = cast(Core, core)
    for generation in (OLD, NEW):
        made._places[generation] = RankPlacement(generation, 0, 2, 0, 2, 0, 1, "n1", "127.0.0.1", 1)
    made.enter(Called(OLD))
    return made


def hears(session: Session, broken: int) -> Callable[[], Any]:
    return lambda: session._hear_broken(broken)


def test_that_the_old_generation_is_broken_says_nothing_about_the_new_one(
    session: Session, core: Switching
) -> None:
    core.meanwhile = hears(session, OLD)
    session.enter(Called(NEW))
    assert NEW not in core.hung_up


def test_that_the_new_generation_is_broken_breaks_it_as_soon_as_it_is_entered(
    session: Session, core: Switching
) -> None:
    core.meanwhile = hears(session, NEW)
    session.enter(Called(NEW))
    assert core.hung_up[-1] == NEW


def test_that_the_present_generation_is_broken_breaks_it(session: Session, core: Switching) -> None:
    session._hear_broken(OLD)
    assert core.hung_up == [OLD]


def test_what_is_said_of_a_generation_before_breaks_nothing(session: Session, core: Switching) -> None:
    session._hear_broken(OLD - 1)
    assert core.hung_up == []


def told_pauses(session: Session) -> list[tuple[int, float]]:
    """What it has said of its generations' pauses."""
    found = []
    while not session._outbox.empty():
        message = session._outbox.get()
        if message is not None and message.HasField("status"):
            found.append((message.status.generation, message.status.paused_s))
    return found


def test_a_pause_lasts_from_the_boundary_until_training_goes_on_and_is_told_with_its_generation(
    session: Session, core: Switching
) -> None:
    session.enter_loop()
    session.begins(5)
    core.meanwhile = lambda: time.sleep(0.1)
    session._part.given(Called(NEW, at=1))
    word = session.at_boundary()
    assert word is not None
    session.enter(word)
    time.sleep(0.05)  # the state goes to those who are new
    session.begins(5)
    session._stand()
    *before, (generation, pause) = told_pauses(session)
    assert generation == NEW
    assert 0.15 <= pause < 5
    assert {each for _, each in before} == {0.0}, "it is told when it is over"


def test_who_was_called_otherwise_than_at_a_boundary_has_no_pause(session: Session) -> None:
    session.enter(Called(NEW))
    session.begins(5)
    session._stand()
    assert {pause for _, pause in told_pauses(session)} == {0.0}


# --- threads that fail --------------------------------------------------------------------------------------

WORKER = """
import sys, time
from horovod_elastic.worker.session import Session

class Core:
    waited_s = 0.0
    outlives = False
    def abandon(self, generation):
        raise ArithmeticError("of the test")

session = Session()
session.core = Core()
if sys.argv[1] == "say how it stands":
    session.tell_held(lambda: session.core.abandon(1))
session.connect()
time.sleep(60)
"""


class TellingAgent:
    """Tells each worker that attaches to prepare a generation, and to abandon it."""

    def worker_attached(self, worker_id: str, outbox: queue.SimpleQueue[workers_pb2.ToWorker | None]) -> None:
        outbox.put(workers_pb2.ToWorker(prepare=workers_pb2.Prepare(generation=5)))
        outbox.put(workers_pb2.ToWorker(abandon=workers_pb2.Abandon(generation=5)))

    def worker_said(self, worker_id: str, message: object) -> None:
        """Nothing follows from it."""

    def worker_detached(self, worker_id: str, outbox: object) -> None:
        """Nothing follows from it."""


@pytest.mark.processes
@pytest.mark.parametrize("what", ["hear", "say how it stands"])
def test_a_worker_ends_that_cannot_do_any_more(tmp_path: Path, what: str) -> None:
    endpoint = f"unix:{tmp_path}/agent"
    environment = {
        **os.environ, "FLEXO_WORKER_ID": "w", "FLEXO_WORKER_SECRET": "s", "FLEXO_AGENT": endpoint
    }  # fmt: skip
    with closing(LocalService(TellingAgent(), endpoint, "s", ParkedLink(Trusting(), lambda: ""))):
        done = subprocess.run(
            [sys.executable, "-c", WORKER, what],
            env=environment, capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "ArithmeticError: of the test" in done.stderr
