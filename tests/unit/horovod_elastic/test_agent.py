"""Which GPUs a worker sees, which signals reach it, and what an agent ends with that cannot work."""

from __future__ import annotations

import queue
import signal
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from flexo_protos.credentials import NotAuthentic
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import job_plan
from horovod_elastic.agent import process
from horovod_elastic.agent.agent import TERMINATED, Agent, LocalWorker, Post
from horovod_elastic.agent.keeper import CANNOT_WORK, CANNOT_WORK_NOW
from horovod_elastic.agent.keeper_link import KeeperLink
from horovod_elastic.agent.worker_environment import devices_seen


@pytest.mark.parametrize(
    ("gpus", "slot", "local_rank", "seen"),
    [
        (1, 0, 0, "0,1,2"),
        (1, 1, 1, "0,1,2"),
        (1, 0, 1, "1,0,2"),
        (1, 2, 0, "2,1,0"),
        (1, 3, 0, "0,1,2"),
        (2, 0, 0, "0,1"),
        (2, 1, 0, "2"),
    ],
)
def test_the_gpu_of_its_slot_is_where_the_script_looks(
    gpus: int, slot: int, local_rank: int, seen: str
) -> None:
    found = devices_seen(["0", "1", "2"], gpus, slot, local_rank)
    assert ",".join(found) == seen
    if gpus == 1 and slot < 3:
        assert found[local_rank] == str(slot)


class Keeper:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.signalled: list[tuple[str, int]] = []

    def signal(self, worker_id: str, number: int) -> None:
        self.signalled.append((worker_id, number))


@pytest.mark.parametrize("passes", [True, False])
def test_signals_are_passed_on_where_slurm_reaches_the_agent_alone(passes: bool) -> None:
    agent, keeper = object.__new__(Agent), Keeper()
    agent._events = queue.SimpleQueue()
    agent._keeper = cast(KeeperLink, keeper)
    agent._post = Post(1, True, "", False, passes, ())
    agent._workers = {"w1": LocalWorker(pb.StartWorker(worker_id="w1"))}
    agent._pass_on(signal.SIGUSR1, None)
    while not agent._events.empty():
        agent._events.get()()
    assert keeper.signalled == ([("w1", signal.SIGUSR1)] if passes else [])


@pytest.mark.parametrize(
    ("again", "error", "code"),
    [
        (False, NotAuthentic("MUNGE gave no credential"), CANNOT_WORK),
        (True, NotAuthentic("MUNGE gave no credential"), CANNOT_WORK_NOW),
        (True, ValueError("no plan"), CANNOT_WORK),
    ],
)
def test_what_was_there_for_the_agent_before_is_away_only_for_now(
    again: bool,
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(process, "KeeperLink", lambda: SimpleNamespace(again=again))
    monkeypatch.setattr(job_plan, "from_text", lambda text: None)
    monkeypatch.setattr(process, "Agent", fail)
    assert process.main(["--slots", "1", "--job", "{}", "--base", "--", "train"]) == code
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("base", "workers", "leaderless", "code"),
    [
        (False, 0, True, 0),
        (False, 1, True, None),
        (False, 0, False, None),
        (True, 1, True, TERMINATED),
    ],
)
def test_an_agent_that_has_to_go_and_has_no_leader_ends_unless_workers_train_beside_it(
    base: bool, workers: int, leaderless: bool, code: int | None
) -> None:
    agent = object.__new__(Agent)
    agent._events = queue.SimpleQueue()
    agent._post = Post(1, base, "", False, False, ())
    agent._workers = {f"w{n}": LocalWorker(pb.StartWorker(worker_id=f"w{n}")) for n in range(workers)}
    agent._link, agent._exit_code, agent._leaving = None, None, True
    agent._leaderless_since = 10.0 if leaderless else 0.0
    agent._watch_leader(11.0)
    assert agent._exit_code == code
