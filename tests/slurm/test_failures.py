"""What a real Slurm, a real munged and flexod do when one of them fails or is changed under the others."""

from __future__ import annotations

import json
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import psutil
import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo.clusters.base import ActionRefused
from flexo.clusters.slurm.adapter import SlurmCluster
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.model.queue import JobState, QueuedJob
from flexo_lab import Lab
from flexo_lab.bringup import start_munged
from flexo_protos.credentials import METADATA_KEY, Munge
from flexo_protos.v1 import jobs_pb2 as pb
from flexo_protos.v1 import jobs_pb2_grpc as rpc

ATTACH = "/flexo.v1.JobService/Attach"
BOUND_S = 90
TIMEOUT_S = 3
"""[slurm] timeout_s: how long flexod waits for one command."""


@pytest.fixture(scope="module")
def own_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """A lab whose daemons may be stopped, with a flexod that does not wait long."""
    lab = make_lab(nodes=2, gpus_per_node=2, infer_nodes=0)
    toml = lab.layout.flexo_toml
    toml.write_text(toml.read_text().replace("[slurm]", f"[slurm]\ntimeout_s = {TIMEOUT_S}"))
    lab.restart_flexod()
    yield lab
    lab.down()


@pytest.fixture
def failing(own_lab: Lab) -> Iterator[Lab]:
    """That lab, handed to the next test without jobs."""
    yield own_lab
    cancel_all_jobs(own_lab)


def _until(what: Callable[[], object], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence}: not within {BOUND_S} s"
        time.sleep(0.3)


def _trouble(lab: Lab) -> str:
    said = json.loads(lab.run(["flexo", "status", "--json"], check=False).stdout or "{}")
    return str(said.get("trouble", "no answer"))


def _events(lab: Lab) -> str:
    return lab.run(["flexo", "events", "--kind", "daemon", "--json"], check=False).stdout


def _daemon(lab: Lab, name: str) -> psutil.Process:
    return psutil.Process(int((lab.layout.state / f"{name}.pid").read_text()))


def _submit(lab: Lab, *options: str) -> int:
    usual = ["--parsable", "--output=/dev/null", "--mem=100", "--time=5", "--ntasks=1", "--wrap=sleep 600"]
    return int(lab.run(["sbatch", *usual, *options]).stdout)


def _base(lab: Lab) -> int:
    """A running elastic job of root's, on t1."""
    job_id = _submit(lab, "--hold", "--gpus-per-task=1", "--nodelist=t1", "--time=60")
    # what the job filter writes; here by hand, so that this test stands without it
    lab.run(["scontrol", "update", f"JobId={job_id}", "AdminComment=flexo{workers=1-3}"])
    lab.run(["scontrol", "release", str(job_id)])
    state = ["squeue", "--noheader", "--format=%T", f"--jobs={job_id}"]
    _until(lambda: lab.run(state).stdout.strip() == "RUNNING", "the base runs")
    return job_id


class Leader:
    """A leader that submits what it is granted, reports it every second, and dials once."""

    def __init__(self, lab: Lab, job_id: int, satellites: dict[str, pb.Satellite] | None = None) -> None:
        self._lab, self._job_id = lab, job_id
        self.satellites = dict(satellites or {})
        self.told: queue.SimpleQueue[frozenset[str]] = queue.SimpleQueue()
        """The grants of each message."""
        self._ended = threading.Event()
        self._channel = grpc.insecure_channel(lab.daemon_address)
        credential = Munge(str(lab.layout.munge_socket)).credential(ATTACH)
        self._answers = rpc.JobServiceStub(self._channel).Attach(
            self._say(), metadata=((METADATA_KEY, credential),)
        )
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def _say(self) -> Iterator[pb.FromLeader]:
        shape = pb.WorkerShape(gpus=1, cpus=1, memory_mib=100)
        workers = pb.WorkerRange(min=1, max=3)
        hello = pb.Hello(job_id=self._job_id, workers=workers, shape=shape, base_nodes=["t1"])
        hello.report.CopyFrom(self._report())
        yield pb.FromLeader(hello=hello)
        while not self._ended.wait(1):
            yield pb.FromLeader(report=self._report())

    def _report(self) -> pb.Report:
        return pb.Report(workers=1, scalable=True, satellites=list(self.satellites.values()))

    def _hear(self) -> None:
        try:
            for message in self._answers:
                if message.WhichOneof("body") == "grants":
                    for grant in message.grants.grants:
                        if grant.grant_id not in self.satellites:
                            self.satellites[grant.grant_id] = self._submitted(grant)
                    self.told.put(frozenset(grant.grant_id for grant in message.grants.grants))
        except grpc.RpcError:
            return

    def _submitted(self, grant: pb.Grant) -> pb.Satellite:
        tag = f"flexo-satellite base={self._job_id} restart=0 grant={grant.grant_id} workers={grant.workers}"
        place = [f"--partition={grant.partition}", f"--nodelist={grant.node}", f"--gres=gpu:{grant.workers}"]
        job_id = _submit(self._lab, "--no-requeue", f"--comment={tag}", *place)
        return pb.Satellite(
            slurm_job_id=job_id,
            grant_id=grant.grant_id,
            node=grant.node,
            workers=grant.workers,
            state=pb.SATELLITE_STATE_TRAINING,
        )

    @property
    def workers(self) -> int:
        """In all satellites."""
        return sum(each.workers for each in self.satellites.values())

    def close(self) -> None:
        self._ended.set()
        self._answers.cancel()
        self._channel.close()
        self._thread.join()


@contextmanager
def _leading(lab: Lab, job_id: int, satellites: dict[str, pb.Satellite] | None = None) -> Iterator[Leader]:
    leader = Leader(lab, job_id, satellites)
    try:
        yield leader
    finally:
        leader.close()


def _told_since(leader: Leader) -> list[frozenset[str]]:
    told = []
    while not leader.told.empty():
        told.append(leader.told.get())
    return told


def test_grants_outlive_a_slurmctld_that_hangs_or_is_killed_and_a_flexod_that_is_killed(failing: Lab) -> None:
    base = _base(failing)
    with _leading(failing, base) as leader:
        _until(lambda: leader.workers == 2, "two workers are granted")
        _until(lambda: _trouble(failing) == "", "all is well")
        _told_since(leader)
        granted = frozenset(leader.satellites)
        slurmctld = _daemon(failing, "slurmctld")
        slurmctld.send_signal(signal.SIGSTOP)
        try:
            _until(lambda: f"did not answer within {TIMEOUT_S} s" in _trouble(failing), "the hang is told")
        finally:
            slurmctld.send_signal(signal.SIGCONT)
        _until(lambda: _trouble(failing) == "", "slurmctld answers again")
        slurmctld.kill()
        slurmctld.wait(10)
        _until(lambda: _trouble(failing).startswith("Slurm does not answer"), "the death is told")
        failing.restart_slurmctld()
        _until(lambda: _trouble(failing) == "", "slurmctld is back")
        assert all(told == granted for told in _told_since(leader))

        failing.restart_flexod(kill=True)
    with _leading(failing, base, leader.satellites) as again:
        assert again.told.get(timeout=BOUND_S) == granted
        time.sleep(5)
        assert frozenset(again.satellites) == granted
        assert all(told == granted for told in _told_since(again))
    ids = {str(each.slurm_job_id) for each in leader.satellites.values()}
    queued = failing.run(["squeue", "--noheader", "--partition=flex", "--states=RUNNING", "--format=%A"])
    assert set(queued.stdout.split()) == ids


def test_the_configuration_is_read_again_and_a_mistake_in_it_is_told(failing: Lab) -> None:
    toml = failing.layout.flexo_toml
    good = toml.read_text()
    (flexod,) = failing.flexod_processes()
    try:
        toml.write_text(good.replace("[controller]", "[controller]\nlease_s = 7"))
        flexod.send_signal(signal.SIGHUP)
        _until(
            lambda: re.search(r"flexo\.toml:\d+: \[controller\] time_limit_s = 7", _trouble(failing)),
            "a mistake",
        )
        toml.write_text(good.replace("[controller]", "[controller]\nlease_s = 600"))
        flexod.send_signal(signal.SIGHUP)
        _until(lambda: _trouble(failing) == "", "a good file is taken over")
        assert "taken over: [controller] time_limit_s" in _events(failing)
    finally:
        toml.write_text(good)
        flexod.send_signal(signal.SIGHUP)
    _until(lambda: _events(failing).count("taken over: [controller] time_limit_s") == 2, "and taken back")
    assert failing.flexod_processes() == [flexod]


def test_without_munged_flexod_waits_and_a_new_key_needs_no_restart(failing: Lab) -> None:
    munged = psutil.Process(int((failing.layout.munge / "munged.pid").read_text()))
    (flexod,) = failing.flexod_processes()
    munged.kill()
    munged.wait(10)
    # flexod can tell nobody: who asks needs MUNGE, too
    log = failing.layout.logs / "flexod.log"
    _until(lambda: "Slurm does not answer" in log.read_text(errors="replace"), "it is logged")
    (failing.layout.munge / "munge.key").unlink()
    start_munged(failing.layout, failing.environment())
    _until(lambda: _trouble(failing) == "", "all is well with the new key")
    assert failing.flexod_processes() == [flexod]


def test_what_administrators_do_to_satellites_is_seen_as_it_is(failing: Lab) -> None:
    # a base that flexod does not look after: nobody else changes anything
    base = _submit(failing, "--time=60")
    tag = f"--comment=flexo-satellite base={base} restart=0 grant=g1 workers=1"
    satellite = _submit(failing, "--partition=flex", "--no-requeue", "--gres=gpu:1", "--nodelist=t2", tag)
    cluster = SlurmCluster(SlurmSettings(conf=failing.layout.slurm_conf))

    def seen(job_id: int = satellite) -> QueuedJob:
        return next(job for job in cluster.observe().jobs if job.job_id == job_id)

    _until(lambda: seen().state is JobState.RUNNING, "the satellite runs")
    refused = failing.run(["scontrol", "requeue", str(satellite)], check=False)
    assert refused.returncode != 0
    failing.run(["scontrol", "suspend", str(satellite)])
    _until(lambda: seen().state is JobState.SUSPENDED, "it is suspended")
    with pytest.raises(ActionRefused):
        cluster.extend([str(satellite)], 300)
    failing.run(["scontrol", "resume", str(satellite)])
    _until(lambda: seen().state is JobState.RUNNING, "it is resumed")

    failing.run(["scontrol", "update", "PartitionName=flex", "State=DOWN"])
    try:
        assert not next(part for part in _fresh(failing).observe().partitions if part.name == "flex").up
        cluster.extend([str(satellite)], 300)
        waiting = _submit(failing, "--partition=flex", "--hold")
        assert seen(waiting).state is JobState.PENDING
        assert seen(waiting).reason.startswith("JobHeld")
        assert seen().state is JobState.RUNNING
    finally:
        failing.run(["scontrol", "update", "PartitionName=flex", "State=UP"])

    begin = ["StartTime=now", "Duration=10", "Users=root", "Flags=MAINT,IGNORE_JOBS", "Nodes=t2"]
    name = failing.run(["scontrol", "create", "reservation", *begin]).stdout.split()[-1]
    try:
        node = lambda: next(each for each in cluster.observe().nodes if each.name == "t2")  # noqa: E731
        _until(lambda: "MAINT" in node().unusable, "the maintenance is seen")
        assert seen().state is JobState.RUNNING
    finally:
        cancel_all_jobs(failing)
        failing.run(["scontrol", "delete", f"ReservationName={name}"])


def _fresh(lab: Lab) -> SlurmCluster:
    """One that has not read the partitions a moment ago."""
    return SlurmCluster(SlurmSettings(conf=lab.layout.slurm_conf))
