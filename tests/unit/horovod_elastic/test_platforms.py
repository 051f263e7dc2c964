"""A job finds its kind of cluster, and runs on one that is a single file and a registration."""

from __future__ import annotations

import json
import queue
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import toy_platform
from toy_platform import ToyCluster

import horovod_elastic
from flexo_protos.resources import Resources
from flexo_protos.v1 import jobs_pb2, workers_pb2
from horovod_elastic import hosts, job_plan, launcher, wire
from horovod_elastic.agent.supervisor import NODE_VARIABLE as NODE_OF_THE_SUPERVISOR
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan, Site
from horovod_elastic.leader import satellite_manager
from horovod_elastic.leader.satellite_manager import SatelliteManager
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import (
    NODE_VARIABLE,
    VARIABLE,
    JobControl,
    NotInAJob,
    Platform,
    PreemptionNotices,
    RankVariables,
)
from horovod_elastic.trace import Trace

BOUND_S = 20.0
Failed = jobs_pb2.GrantFailed
PLAN = JobPlan(
    BaseJob("17", 2, (BaseNode("n1", 2),), Resources(1, 4, 1500, "a100"), 2, 8, "physics"),
    Site(True, False, "head"),
    "/home/u/out",
    "head:1",
    "run://head:2#ab",
)
registry.register(toy_platform.KIND)


def test_workers_have_the_variables_of_tasks_that_srun_had_started() -> None:
    """An agent is the only task of its step, so that all workers would take themselves for its first."""
    platform = registry.find({"SLURM_JOB_ID": "17"})
    assert isinstance(platform, RankVariables)
    assert platform.rank_variables(rank=5, size=8, local_rank=1) == {
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), "8"),
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
    }
    assert not isinstance(registry.find({"TOY_JOB": "17"}), RankVariables)


# --- which kind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"TOY_JOB": "17"}, "Toyland"),
        ({"SLURM_JOB_ID": "17"}, "Slurm"),
        ({"SLURM_JOB_ID": "17", VARIABLE: "toy"}, "Toyland"),
        ({"TOY_JOB": "17", VARIABLE: "slurm"}, "Slurm"),
        ({"TOY_JOB": "17", VARIABLE: ""}, "Toyland"),
    ],
)
def test_the_kind_of_cluster_is_what_flexo_has_said_or_else_what_the_environment_shows(
    environment: dict[str, str], name: str
) -> None:
    assert registry.find(environment).name == name


def test_a_kind_that_does_not_exist_is_refused_beside_those_that_do() -> None:
    with pytest.raises(NotInAJob, match=rf"{VARIABLE}.*moon.*slurm.*toy"):
        registry.find({VARIABLE: "moon"})


def test_outside_of_any_job_the_user_hears_how_to_submit_one() -> None:
    with pytest.raises(NotInAJob, match="sbatch"):
        registry.find({}).base_job()


@pytest.mark.parametrize(("kind", "notices"), [("slurm", False), ("toy", True)])
def test_every_kind_has_the_whole_interface_and_some_have_more(kind: str, notices: bool) -> None:
    platform = registry.find({VARIABLE: kind})
    assert isinstance(platform, Platform)
    control = platform.control(PLAN, ["train"])
    assert isinstance(control, JobControl)
    assert isinstance(control, PreemptionNotices) is notices


# --- satellites on another cluster -------------------------------------------------------------------------


@dataclass
class Leader:
    """What the manager of satellites needs of its leader; its thread is the test's."""

    cluster: ToyCluster
    manager: SatelliteManager = field(init=False)
    events: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)
    told: list[jobs_pb2.FromLeader] = field(default_factory=list)
    sent_away: list[tuple[str, str]] = field(default_factory=list)
    finishing: bool = False

    def post(self, event: Callable[[], None]) -> None:
        self.events.put(event)

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        self.told.append(message)

    def send_away(self, agent: str, why: str) -> None:
        self.sent_away.append((agent, why))

    def agent_trains(self, agent: str) -> bool:
        return True

    def agent_leaving(self, name: str, reason: str) -> None:
        self.manager.leaves(name, reason)
        self.send_away(name, reason)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline
            self.manager.tick(time.monotonic())
            while not self.events.empty():
                self.events.get()()
            time.sleep(0.01)

    def grants(self, *nodes: str) -> None:
        """One worker on each; the grant is called as its node."""
        grants = [
            jobs_pb2.Grant(grant_id=f"g-{node}", node=node, workers=1, start_within_s=60) for node in nodes
        ]
        self.manager.on_grants(jobs_pb2.Grants(grants=grants))

    def submit(self, node: str) -> str:
        """Have a satellite there: its id."""
        before = self.ids()
        self.grants(*(each.node for each in self.manager.report()), node)
        self.until(lambda: len(self.ids()) > len(before))
        (new,) = self.ids() - before
        return new

    def attach(self, satellite_id: str, node: str) -> str:
        hello = workers_pb2.AgentHello(
            slurm_job_id=int(satellite_id), node=node, slots=1, grant_id=f"g-{node}"
        )
        return self.manager.admit(f"{node}-{satellite_id}", hello)

    def ids(self) -> set[str]:
        return {wire.job_id(each.slurm_job_id) for each in self.manager.report()} - {""}

    def failures(self) -> list[tuple[str, int, str]]:
        failed = [each.grant_failed for each in self.told if each.HasField("grant_failed")]
        return [(each.grant_id, each.reason, each.message) for each in failed]


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Callable[..., Leader]]:
    monkeypatch.setattr(satellite_manager, "POLL_INTERVAL_S", 0.02)
    leaders: list[Leader] = []

    def begin(*, inherited: bool = False) -> Leader:
        environment = {VARIABLE: "toy", "TOY_CLUSTER": request.node.name}
        control = registry.find(environment).control(PLAN, ["train"])
        leader = Leader(toy_platform.CLUSTERS[request.node.name])
        leader.manager = SatelliteManager(control, leader, Trace(""), inherited=inherited)
        leaders.append(leader)
        return leader

    yield begin
    for leader in leaders:
        leader.manager.close()


def test_a_grant_becomes_a_satellite_whose_agent_is_let_in(lead: Callable[..., Leader]) -> None:
    leader = lead()
    satellite_id = leader.submit("attic")
    assert satellite_id == "4001"
    assert leader.cluster.parts[satellite_id].grant.workers == 1
    assert leader.attach(satellite_id, "attic") == ""
    (report,) = leader.manager.report()
    assert report.state == jobs_pb2.SATELLITE_STATE_TRAINING
    assert leader.attach("4999", "cellar") != "", "nobody has granted that one"


def test_a_grant_that_is_taken_back_before_its_agent_comes_is_cancelled(
    lead: Callable[..., Leader],
) -> None:
    leader = lead()
    satellite_id = leader.submit("attic")
    leader.grants()
    leader.until(lambda: leader.cluster.ended == [satellite_id])
    leader.until(lambda: not leader.manager.report())


def test_what_waits_for_a_limit_is_given_back_in_the_clusters_words(lead: Callable[..., Leader]) -> None:
    leader = lead()
    leader.cluster.limit = "you have enough toys"
    leader.grants("attic")
    leader.until(leader.failures)
    assert leader.failures() == [("g-attic", Failed.REASON_REFUSED, "you have enough toys")]
    leader.until(lambda: leader.cluster.ended)


def test_a_new_leader_finds_satellites_and_submits_none_twice(lead: Callable[..., Leader]) -> None:
    first = lead()
    first.cluster.free = {"attic"}
    satellite_id = first.submit("attic")
    first.manager.close()
    second = lead(inherited=True)
    second.grants("attic")
    second.until(lambda: second.manager.complete)
    assert second.ids() == {satellite_id}
    assert not second.manager.everybody_is_here, "it runs, and its agent is not here yet"
    assert second.attach(satellite_id, "attic") == ""
    assert second.manager.everybody_is_here
    assert second.cluster.submitted == 1


def test_a_notice_of_preemption_sends_the_satellites_agent_away_and_flexod_hears_why(
    lead: Callable[..., Leader],
) -> None:
    leader = lead()
    satellite_id = leader.submit("attic")
    leader.attach(satellite_id, "attic")
    leader.cluster.take_back(satellite_id, "a queue that is owed more needs it")
    agent = f"attic-{satellite_id}"
    leader.until(lambda: leader.sent_away == [(agent, "a queue that is owed more needs it")])
    (report,) = leader.manager.report()
    assert report.state == jobs_pb2.SATELLITE_STATE_LEAVING
    leader.manager.gone(agent)
    assert [each[:2] for each in leader.failures()] == [("g-attic", Failed.REASON_PREEMPTED)]


def test_a_notice_that_comes_before_the_agent_ends_the_satellite(lead: Callable[..., Leader]) -> None:
    leader = lead()
    satellite_id = leader.submit("attic")
    leader.cluster.take_back(satellite_id, "needed elsewhere")
    leader.until(lambda: leader.cluster.ended == [satellite_id])
    assert leader.failures() == [("g-attic", Failed.REASON_PREEMPTED, "needed elsewhere")]


@pytest.mark.parametrize("inherited", [False, True])
def test_a_notice_that_is_faster_than_the_satellites_id_is_not_lost(
    lead: Callable[..., Leader], inherited: bool
) -> None:
    """A cluster may say it once only."""
    if inherited:
        lead().submit("attic")
    leader = lead(inherited=inherited)
    leader.cluster.take_back("4001", "needed elsewhere")
    leader.grants("attic")
    leader.until(leader.failures)
    assert leader.failures() == [("g-attic", Failed.REASON_PREEMPTED, "needed elsewhere")]
    leader.until(lambda: leader.cluster.ended == ["4001"])


def test_at_the_end_satellites_are_cancelled_and_the_user_hears_how_where_that_fails(
    lead: Callable[..., Leader], capsys: pytest.CaptureFixture[str]
) -> None:
    leader = lead()
    first, second = leader.submit("attic"), leader.submit("cellar")
    leader.cluster.away = True
    leader.manager.end_all(time.monotonic())
    said = capsys.readouterr().err
    assert f"`toy kill {first} {second}`" in said
    assert "Toyland" in said
    leader.cluster.away = False
    leader.manager.end_all(time.monotonic() + BOUND_S)
    assert leader.cluster.ended == [first, second]


@pytest.fixture
def toy_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a job of one node, which does not grow."""
    monkeypatch.setenv(VARIABLE, "toy")
    monkeypatch.setenv("TOY_JOB", "17")


@pytest.mark.processes
@pytest.mark.usefixtures("toy_job")
def test_flexo_run_runs_on_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.signal, "signal", lambda *_: None)
    assert launcher.main(["touch", str(tmp_path / "started")]) == 0
    assert (tmp_path / "started").exists()


@pytest.mark.usefixtures("toy_job")
def test_flexo_hosts_names_the_hosts_of_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert hosts.main([]) == 0
    assert capsys.readouterr().out == "castle.toyland:1\n"


# --- other releases ----------------------------------------------------------------------------------------


def test_a_plan_is_the_line_that_other_releases_write_and_read() -> None:
    """Agents of one job may be of two releases: one is installed while the job runs."""
    line = (
        '{"base":{"job_id":17,"restart_count":2,"nodes":[{"name":"n1","workers":2}],"shape":{"gpus":1,"cpus":4,'
        '"memory_mib":1500,"gpu_type":"a100"},"minimum":2,"maximum":8,"account":"physics","batch":"",'
        '"declared":false,"heterogeneous":false},"site":{"binds_cpus":true,"signals_reach_all":false,'
        '"controller":"head"},"output":"/home/u/out","daemon":"head:1","leases":"run://head:2#ab"}'
    )
    assert json.loads(PLAN.to_text()) == json.loads(line)
    assert job_plan.from_text(line) == PLAN


def test_a_plan_says_the_size_of_a_unit() -> None:
    plan = replace(PLAN, base=replace(PLAN.base, unit=2))
    assert job_plan.from_text(plan.to_text()) == plan


def test_a_plan_has_the_options_that_satellites_repeat() -> None:
    plan = replace(PLAN, base=replace(PLAN.base, satellite_options=("--qos=high", "--constraint=a|b")))
    assert job_plan.from_text(plan.to_text()) == plan


@pytest.mark.parametrize(("job_id", "number"), [("17", 17), ("", 0)])
def test_ids_are_integers_on_the_wire(job_id: str, number: int) -> None:
    assert wire.job_number(job_id) == number
    assert wire.job_id(number) == job_id


def test_the_supervisor_looks_for_its_node_where_platforms_say_it() -> None:
    assert NODE_OF_THE_SUPERVISOR == NODE_VARIABLE


# --- one room ----------------------------------------------------------------------------------------------

ROOM = Path(horovod_elastic.__file__).parent
TERMS = re.compile(r"slurm|sbatch|squeue|scontrol|\bsrun\b|scancel|spank", re.IGNORECASE)
ON_THE_WIRE = re.compile(r"\bslurm_job_id\b")
HELP = {"launcher.py": launcher.USAGE, "hosts.py": hosts.USAGE}
"""Where users read how to submit a job."""
POINTERS = {
    "platforms/registry.py": (
        "from horovod_elastic.platforms import slurm, yarn\n",
        "register(slurm.KIND)\n",
    ),
    "agent/satellite.py": ('"platforms" / "slurm" / "satellite_script.py"',),
    "script_check/ranks.py": ('"SLURM_PROCID", "SLURM_LOCALID"', '"SLURM_NTASKS", "SLURM_NPROCS"'),
}


def test_nothing_outside_of_its_room_knows_slurm() -> None:
    found = []
    for path in ROOM.rglob("*.py"):
        name = path.relative_to(ROOM).as_posix()
        if name.startswith("platforms/slurm/"):
            continue
        text = ON_THE_WIRE.sub("", path.read_text()).replace(HELP.get(name, "\0"), "")
        for pointer in POINTERS.get(name, ()):
            text = text.replace(pointer, "")
        found += [f"{name}: {line.strip()}" for line in text.splitlines() if TERMS.search(line)]
    assert found == []
