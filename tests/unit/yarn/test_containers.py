"""A container's GPUs without YARN's plugin, and the containers of a base: names, ends, starts again."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records
from flexo_yarn.application_master import ApplicationGone, Ask, HeartbeatResult
from flexo_yarn.runs import priority_of
from horovod_elastic.job_plan import BaseNode
from horovod_elastic.platforms.base import NotInAJob
from horovod_elastic.platforms.yarn import base_application, container_start, heartbeats
from horovod_elastic.platforms.yarn.base_application import KILLED, BaseApplication
from horovod_elastic.platforms.yarn.container_start import NoGpus, take_gpus

LAUNCH = pb.ContainerLaunchContext()


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A node with four GPUs; what is locked is free again afterwards."""
    monkeypatch.setattr(container_start, "_LOCKS", f"{tmp_path}/gpus-{{}}")
    monkeypatch.setattr(container_start, "_numbers", lambda: range(4))
    monkeypatch.setattr(container_start, "WAITS_FOR_S", 0.3)
    yield {"NM_HOST": "h1"}
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if str(link.readlink()).startswith(f"{tmp_path}/gpus-"):
                os.close(int(link.name))


def test_containers_of_one_node_take_different_gpus_and_those_of_another_node_the_same(
    locks: dict[str, str],
) -> None:
    assert take_gpus(1, locks) == (0,)
    assert take_gpus(2, locks) == (1, 2)
    assert take_gpus(2, {"NM_HOST": "h2"}) == (0, 1)
    with pytest.raises(NoGpus, match="2 GPUs"):
        take_gpus(2, locks)


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Manager:
    """A ResourceManager and its NodeManagers, with one container for each request."""

    def __init__(self) -> None:
        self.nm_tokens: dict[str, object] = {}
        self.asks: dict[int, Ask] = {}
        self.released: list[int] = []
        self.started: list[int] = []
        self.results: list[HeartbeatResult] = []
        self.hosts = itertools.cycle(["h1", "h1", "h2"])
        self.gone = False
        self.stops_with = 143
        self.full = False
        self.taken: list[str] = []
        """What was said when YARN took containers of the base."""
        self.numbers = itertools.count(1)

    def ask(self, ask: Ask) -> None:
        self.asks[ask.priority] = ask

    def withdraw(self, priority: int) -> None:
        self.asks.pop(priority, None)

    def release(self, containers: list[pb.ContainerId]) -> None:
        self.released += [each.id for each in containers]

    def heartbeat(self) -> HeartbeatResult:
        if self.gone:
            raise ApplicationGone("killed")
        if self.results:
            return self.results.pop(0)
        if self.full:
            return HeartbeatResult()
        given = [
            container(next(self.numbers), each, ask.node or next(self.hosts))
            for each, ask in self.asks.items()
        ]
        self.asks.clear()
        return HeartbeatResult(allocated=tuple(given))

    def ends(self, number: int, status: int) -> None:
        ended = pb.ContainerStatus(container_id=pb.ContainerId(id=number), exit_status=status)
        self.results.append(HeartbeatResult(completed=(ended,)))

    def warns_of(self, number: int) -> None:
        text = records.container_text(pb.ContainerId(id=number))
        self.results.append(HeartbeatResult(preempted=frozenset({text})))

    def finish(self, *words: object) -> None: ...


def container(number: int, priority: int, host: str) -> pb.Container:
    return pb.Container(
        id=pb.ContainerId(id=number),
        priority=pb.Priority(priority=priority),
        node_id=pb.NodeId(host=host, port=1),
    )


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    made = Manager()

    class Nodes:
        def __init__(self, tokens: object) -> None: ...

        def start(self, container: pb.Container, launch: object) -> None:
            made.started.append(container.id.id)

        def stop(self, node: object, container: pb.ContainerId) -> None:
            made.ends(container.id, made.stops_with)

    monkeypatch.setattr(base_application, "NodeManagers", Nodes)
    monkeypatch.setattr(heartbeats, "IDLE_S", 0.01)
    monkeypatch.setattr(heartbeats, "WAITING_S", 0.01)
    return made


@pytest.fixture
def make(manager: Manager) -> Iterator[Callable[..., BaseApplication]]:
    made: list[BaseApplication] = []

    def application(*kept: pb.Container) -> BaseApplication:
        found = BaseApplication(manager, kept, records.resource(64, 1, 1), manager.taken.append)  # type: ignore[arg-type]
        made.append(found)
        return found

    yield application
    for each in made:
        each.finish(True, "")


def test_several_containers_on_one_host_are_nodes_of_different_names(
    make: Callable[..., BaseApplication],
) -> None:
    nodes = make().form(3, run=0)
    assert nodes == (BaseNode("h1", 1), BaseNode("h1..2", 1), BaseNode("h2", 1))
    assert [node.host for node in nodes] == ["h1", "h1", "h2"]


def test_a_containers_exit_code_is_its_programs_and_yarns_own_statuses_count_as_a_kill(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make()
    base.form(3, run=0)
    processes = [base.launch(name, LAUNCH) for name in ("h1", "h1..2", "h2")]
    manager.ends(1, 3)
    manager.ends(2, -102)
    assert [process.wait() for process in processes[:2]] == [3, KILLED]
    processes[2].terminate()
    assert processes[2].wait() == 143


@pytest.mark.parametrize("what", ["is about to be preempted", "was preempted", "was on a lost node"])
def test_a_run_whose_container_yarn_takes_is_given_back_and_another_one_begins(
    make: Callable[..., BaseApplication], manager: Manager, what: str
) -> None:
    base = make()
    base.form(3, run=4)
    processes = [base.launch(name, LAUNCH) for name in ("h1", "h1..2", "h2")]
    assert (base.taken, manager.taken) == ("", [])
    if what == "is about to be preempted":
        manager.warns_of(2)
    else:
        manager.ends(2, -102 if what == "was preempted" else -100)
    wait_until(lambda: manager.taken)
    assert manager.taken == [base.taken]
    base.give_back()
    assert [process.wait() for process in processes] == [KILLED] * 3
    assert base.taken == ""
    assert len(base.form(2, run=5)) == 2
    assert {1, 3} <= set(manager.released)
    priorities = {process.container.priority.priority for process in processes}
    assert base.launch("h1", LAUNCH).container.priority.priority not in priorities


def test_a_container_that_this_side_has_given_back_was_not_taken(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make()
    base.form(1, run=0)
    process = base.launch("h1", LAUNCH)
    manager.stops_with = -100
    process.terminate()
    assert process.wait() == KILLED
    assert (base.taken, manager.taken) == ("", [])


def test_an_agent_that_is_started_again_gets_another_container_on_its_host(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make()
    base.form(3, run=0)
    process = base.launch("h1..2", LAUNCH)
    manager.ends(2, 1)
    assert process.wait() == 1
    again = base.launch("h1..2", LAUNCH)
    assert again.container.node_id.host == "h1"
    assert again.container.priority.priority == process.container.priority.priority
    assert manager.started == [2, 4]


def test_a_job_that_gets_no_other_container_on_its_host_begins_anew(
    make: Callable[..., BaseApplication], manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_application, "ANOTHER_WITHIN_S", 0.2)
    base = make()
    base.form(1, run=0)
    process = base.launch("h1", LAUNCH)
    manager.ends(1, 1)
    assert process.wait() == 1
    manager.full = True
    with pytest.raises(OSError, match="h1"):
        base.launch("h1", LAUNCH)
    assert manager.taken == [base.taken]


def test_another_attempt_goes_on_with_containers_and_asks_for_those_that_have_ended_meanwhile(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make(container(11, 1, "h1"), container(13, 3, "h2"))
    assert base.keeps
    base.adopt([BaseNode("h1", 1), BaseNode("h1..2", 1), BaseNode("h2", 1)], run=0)
    kept = base.launch("h2", LAUNCH)
    assert (kept.container.id.id, manager.started) == (13, [])
    new = base.launch("h1..2", LAUNCH)
    assert (new.container.node_id.host, manager.started) == ("h1", [new.container.id.id])


def test_a_kept_container_that_ended_before_it_was_looked_for_has_its_exit_code(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    manager.ends(11, 5)
    base = make(container(11, 1, "h1"))
    wait_until(lambda: not manager.results)
    time.sleep(0.05)
    base.adopt([BaseNode("h1", 1)], run=0)
    assert base.launch("h1", LAUNCH).wait() == 5


def test_when_nobody_leads_what_is_kept_it_is_given_back(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make(container(11, 1, "h1"))
    base.give_up_kept()
    assert len(base.form(2, run=0)) == 2
    assert manager.released == [11]


def test_containers_of_an_earlier_run_that_yarn_names_late_are_given_back(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make()
    base.form(1, run=100)
    own = container(1, 0, "h1")  # the ApplicationMaster's
    late = [own, container(11, 1, "h1"), container(12, priority_of(100, 1), "h2")]
    manager.results.append(HeartbeatResult(recovered=tuple(late)))
    wait_until(lambda: manager.released)
    assert manager.released == [11]


def test_containers_that_yarn_names_before_the_job_has_begun_are_there_to_go_on_with(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make()
    manager.results.append(HeartbeatResult(recovered=(container(11, 1, "h1"),)))
    wait_until(lambda: base.keeps)
    base.adopt([BaseNode("h1", 1)], run=0)
    assert base.launch("h1", LAUNCH).container.id.id == 11


def test_the_end_of_the_application_ends_every_wait(
    make: Callable[..., BaseApplication], manager: Manager
) -> None:
    base = make()
    base.form(1, run=0)
    process = base.launch("h1", LAUNCH)
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(process.wait()))
    waiting.start()
    manager.gone = True
    waiting.join(10)
    assert codes == [KILLED]
    with pytest.raises(OSError, match="killed"):
        base.launch("h1", LAUNCH)
    with pytest.raises(NotInAJob, match="killed"):
        base.form(1, run=0)
