"""Supervisors, agents, workers and a leader as real processes; no Slurm, no Horovod, no MUNGE."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from agent_process import FAULTS_VARIABLE
from says import says
from trusting import Trusting

from flexo_protos import lease_place
from flexo_protos.lease_place import Kind, LeasePlace
from flexo_protos.resources import Resources
from flexo_protos.v1 import jobs_pb2, jobs_pb2_grpc
from horovod_elastic import wire
from horovod_elastic.core import choice
from horovod_elastic.election.lease_client import JobRun
from horovod_elastic.election.lease_grpc import LeaseServer
from horovod_elastic.election.lease_places import open_lease
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan, Site

HERE = Path(__file__).resolve().parent
BOUND_S = 120.0


@dataclass
class Job:
    """A base of one worker on each of some nodes."""

    folder: Path
    plan: JobPlan
    faults: Path | None = None
    """Where agents look for the errors that they are to run into."""
    supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(
        self, node: str, *, again: bool = False, command: list[str] | None = None, silence_s: int = 60
    ) -> None:
        worker = command or [sys.executable, str(HERE / "pretending_worker.py"), str(self.folder)]
        how = [node, "1", self.plan.to_text(), "base", "again" if again else ""]
        with (self.folder / "output").open("ab") as output:
            self.supervisors[node] = subprocess.Popen(
                [sys.executable, str(HERE / "agent_process.py"), *how, *worker],
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "FLEXO_TRACE": str(self.folder / "trace"),
                    "FLEXO_SILENCE_S": str(silence_s),
                    **({FAULTS_VARIABLE: str(self.faults)} if self.faults else {}),
                },
            )

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def events(self, kind: str, node: str = "") -> list[dict[str, Any]]:
        found = []
        for path in self.folder.glob("*.jsonl"):
            text = path.read_text()
            found += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        found.sort(key=lambda event: event["time"])
        return [event for event in found if event["event"] == kind and (not node or event["node"] == node)]

    def trace(self, event: str) -> list[dict[str, Any]]:
        path = self.folder / "trace"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()  # somebody may be writing the last one
        return [each for each in map(json.loads, whole) if each["event"] == event]

    def leader(self) -> str:
        """The node of the agent that leads, or led last."""
        leaders = self.trace("leader")
        return str(leaders[-1]["agent"]).removesuffix("-17") if leaders else ""

    def batches(self, node: str) -> int:
        return len(self.events("batch", node))

    def wait_until(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.output()}"
            time.sleep(0.05)

    def wait_for_batches(self, *nodes: str, more: int = 10) -> None:
        wanted = {node: self.batches(node) + more for node in nodes}
        self.wait_until(
            f"batches on {nodes}", lambda: all(self.batches(node) >= n for node, n in wanted.items())
        )

    def stop(self) -> None:
        (self.folder / "stop").touch()

    def exit_codes(self) -> dict[str, int]:
        return {node: supervisor.wait(BOUND_S) for node, supervisor in self.supervisors.items()}

    def agents(self, node: str) -> list[psutil.Process]:
        """The agent that the node's supervisor has at the moment, if it has one."""
        found = []
        for child in psutil.Process(self.supervisors[node].pid).children():
            with contextlib.suppress(psutil.Error):  # it may just have ended
                found += [child] if "agent" in child.cmdline() else []
        return found

    def agent(self, node: str) -> psutil.Process:
        (found,) = self.agents(node)
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []
    with LeaseServer("127.0.0.1", Trusting()) as server:

        def make(*nodes: str) -> Job:
            base = BaseJob(
                "17", 0, tuple(BaseNode(node, 1) for node in nodes), Resources(0, 1, 0, ""), len(nodes), 9, ""
            )
            place = LeasePlace(Kind.RUN, (server.endpoint,))
            jobs.append(Job(tmp_path, JobPlan(base, Site(), "", "", str(place))))
            return jobs[-1]

        yield make
        for each in jobs:
            for supervisor in each.supervisors.values():
                supervisor.kill()
                supervisor.wait()


def training(job: Callable[..., Job], *nodes: str) -> Job:
    """One that trains on these nodes already."""
    made = job(*nodes)
    for node in nodes:
        made.start(node)
    made.wait_for_batches(*nodes)
    return made


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.processes
def test_a_job_trains_and_ends_in_order(job: Callable[..., Job]) -> None:
    two = training(job, "n1", "n2")
    two.stop()
    assert two.exit_codes() == {"n1": 0, "n2": 0}
    kinds = [json.loads(line)["event"] for line in (two.folder / "trace").read_text().splitlines()]
    assert kinds[0] == "leader"
    assert kinds.index("prepare") < kinds.index("prepared") < kinds.index("go") < kinds.index("entered")
    assert kinds.count("ready") == kinds.count("entered") == kinds.count("left") == 2
    assert kinds[-1] == "end"
    store = open_lease(lease_place.parse(two.plan.leases), JobRun("17", 0), Trusting())
    assert wire.exit_code_of(store.look().holder) == 0
    store.close()


@pytest.mark.processes
def test_the_exit_code_of_the_script_is_that_of_all_agents_of_the_base(job: Callable[..., Job]) -> None:
    two = job("n1", "n2")
    two.start("n1", command=["sh", "-c", "exit 3"])
    two.start("n2", command=["sleep", "60"])
    assert two.exit_codes() == {"n1": 3, "n2": 3}


@pytest.mark.thorough
def test_the_leaders_node_may_be_lost_and_training_goes_on(job: Callable[..., Job]) -> None:
    two = training(job, "n1", "n2")
    first = two.leader()
    other = next(node for node in two.supervisors if node != first)
    victim, agent = two.events("enter", first)[0]["pid"], two.agent(first).pid
    two.supervisors[first].kill()
    two.supervisors[first].wait()
    two.wait_until("all to die with a killed supervisor", lambda: is_gone(victim) and is_gone(agent))
    two.start(first, again=True)
    two.wait_until("another leader", lambda: len(two.trace("leader")) >= 2)
    two.wait_until("its worker to be replaced", lambda: len(two.events("enter", first)) == 2)
    two.wait_for_batches(first, other)
    assert two.leader() in (first, other)
    assert two.trace("leader")[1]["inherited"]
    survivor = {event["pid"] for event in two.events("batch", other)}
    assert len(survivor) == 1
    two.stop()
    assert set(two.exit_codes().values()) == {0}


@pytest.mark.processes
@pytest.mark.parametrize("nodes", [("n1",), ("n1", "n2")])
def test_a_killed_leader_costs_training_nothing(job: Callable[..., Job], nodes: tuple[str, ...]) -> None:
    several = training(job, *nodes)
    first = several.leader()
    several.agent(first).kill()
    several.wait_until("another leader", lambda: len(several.trace("leader")) >= 2)
    several.wait_for_batches(*nodes, more=50)
    assert len({event["pid"] for event in several.events("batch")}) == len(nodes)
    assert {event["generation"] for event in several.events("batch")} == {1}
    several.stop()
    assert set(several.exit_codes().values()) == {0}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_an_exception_anywhere_in_agents_and_their_leader_costs_training_nothing(
    job: Callable[..., Job], seed: int, tmp_path: Path
) -> None:
    chance, faults = random.Random(seed), tmp_path / "faults"
    faults.mkdir()
    two = job("n1", "n2")
    two.faults = faults
    for node in ("n1", "n2"):
        two.start(node)
    two.wait_for_batches("n1", "n2")
    for node in ["n1", "n2"] * 2:
        (faults / node).write_text(str(chance.randint(1, 300)))
        two.wait_until("the error", lambda node=node: not (faults / node).exists())
        two.wait_for_batches("n1", "n2", more=100)
    two.wait_until("agents on both nodes", lambda: two.agents("n1") and two.agents("n2"))
    assert len({event["pid"] for event in two.events("batch")}) == 2, two.output()
    assert {event["generation"] for event in two.events("batch")} == {1}
    two.stop()
    assert two.exit_codes() == {"n1": 0, "n2": 0}, two.output()


@pytest.mark.thorough
def test_an_agent_that_hangs_is_started_again_and_its_workers_train_on(job: Callable[..., Job]) -> None:
    two = training(job, "n1", "n2")
    other = next(node for node in two.supervisors if node != two.leader())
    hangs = two.agent(other)
    hangs.suspend()
    two.wait_until("it to be killed", lambda: is_gone(hangs.pid))
    two.wait_until("it to be back", lambda: two.agents(other))
    two.wait_for_batches("n1", "n2", more=100)
    assert len({event["pid"] for event in two.events("batch")}) == 2
    two.stop()
    assert two.exit_codes() == {"n1": 0, "n2": 0}


@pytest.mark.thorough
def test_an_exit_while_the_agent_is_away_is_told_by_the_next_one(job: Callable[..., Job]) -> None:
    two = training(job, "n1", "n2")
    (victim,) = {event["pid"] for event in two.events("batch", "n2")}
    two.agent("n2").kill()
    os.kill(victim, signal.SIGKILL)
    two.wait_until("its worker to be replaced", lambda: len(two.events("enter", "n2")) == 2)
    two.wait_for_batches("n1", "n2")
    two.stop()
    assert two.exit_codes() == {"n1": 0, "n2": 0}


@pytest.mark.thorough
def test_a_stopped_leader_is_replaced_and_steps_down_when_it_goes_on(job: Callable[..., Job]) -> None:
    two = training(job, "n1", "n2")
    first = two.leader()
    other = next(node for node in two.supervisors if node != first)
    stopped = two.agent(first)
    stopped.suspend()
    two.wait_until("another leader", lambda: two.leader() == other)
    two.wait_for_batches("n1", "n2")  # workers do not notice
    stopped.resume()
    two.wait_until("it to step down", lambda: two.trace("stepped down"))
    two.wait_for_batches("n1", "n2")
    assert len({event["pid"] for event in two.events("batch")}) == 2
    assert {event["generation"] for event in two.events("batch")} == {1}
    two.stop()
    assert two.exit_codes() == {"n1": 0, "n2": 0}


@pytest.mark.thorough
def test_a_stopped_leader_that_finds_the_lease_free_again_leads_no_more_once_agents_have_followed_another(
    job: Callable[..., Job],
) -> None:
    two = training(job, "n1", "n2")
    first = two.leader()
    other = next(node for node in two.supervisors if node != first)
    lease = open_lease(lease_place.parse(two.plan.leases), JobRun("17", 0), Trusting())
    before = lease.look()
    stopped = two.agent(first)
    stopped.suspend()
    two.wait_until("another leader", lambda: two.leader() == other)
    between = lease.look()
    lease.release(between.holder)
    again = lease.acquire(before.holder, before.address, 5.0)  # as at a flexod that has forgotten the lease
    assert before.term < between.term < again.term
    stopped.resume()

    def why_it_stepped_down() -> str:
        return " ".join(each["why"] for each in two.trace("stepped down") if each["agent"] == f"{first}-17")

    two.wait_until("it to step down", why_it_stepped_down)
    # whichever it hears first: an agent's word of the other leader, or an earlier one, which tells that the
    # agent was away
    assert f"term {between.term}" in why_it_stepped_down() or "was away" in why_it_stepped_down()
    two.wait_until("somebody who learns anew", lambda: len(two.trace("leader")) >= 3)
    assert two.trace("leader")[-1]["inherited"]
    two.wait_for_batches("n1", "n2")
    assert len({event["pid"] for event in two.events("batch")}) == 2
    assert {event["generation"] for event in two.events("batch")} == {1}
    lease.close()
    two.stop()
    assert two.exit_codes() == {"n1": 0, "n2": 0}


@pytest.mark.thorough
def test_a_worker_that_falls_silent_is_killed_and_replaced(job: Callable[..., Job]) -> None:
    one = job("n1", "n2")
    one.start("n1")
    one.start("n2", silence_s=6)
    one.wait_for_batches("n1", "n2")
    silent = one.events("enter", "n2")[0]["pid"]
    os.kill(silent, signal.SIGSTOP)
    one.wait_until("it to be killed", lambda: is_gone(silent))
    one.wait_until("another one", lambda: len(one.events("enter", "n2")) == 2)
    left = one.trace("left")[0]
    assert left["exit_code"] == -9
    assert says(left["why"], "said nothing", "6 s")
    one.wait_for_batches("n1", "n2")
    one.stop()
    assert one.exit_codes() == {"n1": 0, "n2": 0}


@pytest.mark.processes
def test_sigterm_ends_the_job_of_a_base(job: Callable[..., Job]) -> None:
    two = training(job, "n1", "n2")
    workers = [event["pid"] for event in two.events("enter")]
    agents = [two.agent(node).pid for node in two.supervisors]
    for pid in [*(supervisor.pid for supervisor in two.supervisors.values()), *agents, *workers]:
        os.kill(pid, signal.SIGTERM)  # as Slurm does
    assert two.exit_codes() == {"n1": 143, "n2": 143}
    assert all(map(is_gone, workers))


class Flexod(jobs_pb2_grpc.JobServiceServicer):
    """Tells every leader of a job that trains the same Aggregators, and keeps what it hears."""

    def __init__(self) -> None:
        self.reports: list[jobs_pb2.Report] = []
        assigned = jobs_pb2.AssignedAggregator(host="127.0.0.1", port=1, token="t", share=1)
        self.told = jobs_pb2.Aggregators(version=1, aggregators=[assigned])

    def Attach(  # noqa: N802
        self, request_iterator: Iterator[jobs_pb2.FromLeader], context: grpc.ServicerContext
    ) -> Iterator[jobs_pb2.ToLeader]:
        yield jobs_pb2.ToLeader(welcome=jobs_pb2.Welcome(report_interval_s=1))
        told = False
        for message in request_iterator:
            if message.HasField("report"):
                self.reports.append(message.report)
                if message.report.generation and not told:
                    told = True
                    yield jobs_pb2.ToLeader(aggregators=self.told)


@pytest.fixture
def flexod() -> Iterator[tuple[Flexod, str]]:
    service = Flexod()
    server = grpc.server(ThreadPoolExecutor(8))
    jobs_pb2_grpc.add_JobServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(None)


@pytest.mark.processes
def test_other_aggregators_take_no_generation_and_the_next_leader_knows_them(
    job: Callable[..., Job], flexod: tuple[Flexod, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, address = flexod
    for name, value in {
        choice.VARIABLE: choice.SERVICE,
        choice.AGGREGATORS_VARIABLE: choice.POOL,
    }.items():
        monkeypatch.setenv(name, value)
    two = job("n1", "n2")
    two.plan = replace(two.plan, daemon=address)
    for node in ("n1", "n2"):
        two.start(node)
    two.wait_until("the assignment", lambda: two.trace("aggregators"))
    two.wait_for_batches("n1", "n2")
    assert service.reports[-1].aggregation.wants_pool
    leader = two.leader()
    two.agent(leader).kill()
    two.wait_until("another leader", lambda: len(two.trace("leader")) >= 2)
    two.wait_for_batches("n1", "n2", more=30)
    assert len(two.trace("go")) == 1
    assigned = [each["version"] for each in two.trace("aggregators")]
    assert assigned == [1], "the next leader has them from its agents"
    two.stop()
    assert two.exit_codes() == {"n1": 0, "n2": 0}
