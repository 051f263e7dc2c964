"""The reader that uses pyslurm, with a small module in pyslurm's place.

That it sees what Slurm's commands see is tested where the real one is: make test-slurm-matrix.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from captured_outputs import Recorded
from flat_records import make_node
from says import says

from flexo.clusters.base import ClusterUnreachable, Site
from flexo.clusters.slurm.connecting import connect
from flexo.clusters.slurm.from_pyslurm import to_jobs, to_node, why_not_enough
from flexo.clusters.slurm.parse_jobs import tag_in
from flexo.clusters.slurm.parse_nodes import parse_nodes
from flexo.clusters.slurm.reader_pyslurm import PyslurmReader
from flexo.clusters.slurm.releases import Release, read_by_pyslurm
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.clusters.slurm.text import or_empty
from flexo.model.queue import JobState, SatelliteTag
from flexo_protos.resources import Devices

SATELLITES = frozenset({"flex"})

_MODULE = """
import time

__version__ = "{version}"

class Nodes:
    @staticmethod
    def load():
        return {{}}

class Partitions(Nodes):
    pass

class Jobs:
    @staticmethod
    def load():
        {jobs}

class slurmctld:
    class Config:
        @staticmethod
        def load():
            return type("Config", (), {{"accounting_storage_tres": {tracked}}})
"""


class Installed:
    """A folder with a module called pyslurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, version: str = "22.05.1", jobs: str = "return {}", tracked: str = "[]") -> None:
        (self.folder / "pyslurm.py").write_text(_MODULE.format(version=version, jobs=jobs, tracked=tracked))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Installed(folder)


@pytest.fixture
def reader(installed: Installed) -> Iterator[PyslurmReader]:
    reader = PyslurmReader(None, SATELLITES, 2.0)
    yield reader
    reader.close()


def tres(memory: int, **gpus: int) -> SimpleNamespace:
    counts = {name.replace("_", ":"): SimpleNamespace(count=count) for name, count in gpus.items()}
    return SimpleNamespace(mem=SimpleNamespace(count=memory), gres=counts)


def a_node(**changes: object) -> SimpleNamespace:
    fields: dict[str, object] = {
        "name": "t1",
        "state": "MIXED",
        "configured_gres": {"gpu:v100": 4},
        "allocated_gres": {"gpu": 3, "gpu:v100": 3},
        "effective_cpus": 8,
        "allocated_cpus": 3,
        "real_memory": 4000,
        "allocated_memory": 300,
        "memory_reserved_for_system": None,
        "partitions": ["train", "flex"],
        "active_features": ["v100"],
        "owner": None,
        "reason": None,
        "threads_per_core": 1,
    }
    return SimpleNamespace(**(fields | changes))


class Job(SimpleNamespace):
    """A job as pyslurm shows it; reading a comment that is no text fails there."""

    @property
    def comment(self) -> str:
        return str(self.written.decode())


def a_job(**changes: object) -> Job:
    fields: dict[str, object] = {
        "id": 7,
        "state": "RUNNING",
        "state_reason": "None",
        "partition": "flex",
        "user_id": 0,
        "priority": 1,
        "submit_time": 100,
        "start_time": 200,
        "time_limit": 5,
        "allocated_nodes": "t[1-2]",
        "num_nodes": 2,
        "cpus": 2,
        "ntasks": 2,
        "requested_tres": tres(600, gpu=2),
        "allocated_tres": tres(600, gpu=2, gpu_v100=2),
        "tres_per_task": None,
        "gres_per_node": {"gres/gpu": 1},
        "required_nodes": None,
        "excluded_nodes": "u1",
        "constraints": [],
        "resource_sharing": "OK",
        "requeue_count": 1,
        "admin_comment": None,
        "account": None,
        "name": "train",
        "array_id": None,
        "heterogeneous_id": None,
        "written": b"flexo-satellite base=5 restart=0 grant=g workers=2",
    }
    return Job(**(fields | changes))


def test_gpus_in_use_that_are_tracked_with_their_type_are_not_counted_twice() -> None:
    assert to_node(a_node()) == make_node(
        "t1", 4, 3, 8, 3, 4000, 300, frozenset({"train", "flex"}), "v100", frozenset({"v100"})
    )


def test_a_drained_node_is_unusable_in_the_words_that_the_commands_have_for_it() -> None:
    node = to_node(a_node(state="IDLE+DRAIN", reason="broken  fan\nState=IDLE"))
    assert node.unusable == "IDLE+DRAIN: broken fan"


def test_a_running_satellite_is_read_with_its_tag() -> None:
    (job,) = to_jobs([a_job()], SATELLITES)
    assert (job.state, job.nodes, job.resources.gpus, job.requests[0].unit.gpus) == (
        JobState.RUNNING,
        ("t1", "t2"),
        2,
        1,
    )
    assert (job.resources.memory_mib, job.time_limit_s, job.started_at) == (600, 300, 200.0)
    assert (job.resources.gpu_type, job.excluded_nodes) == ("v100", frozenset({"u1"}))
    assert isinstance(job.satellite, SatelliteTag)


def test_jobs_that_have_ended_are_left_out() -> None:
    assert to_jobs([a_job(state="CANCELLED"), a_job(state="COMPLETED")], SATELLITES) == ()


def test_idle_gpus_have_a_type_and_those_in_use_of_several_types_have_none_as_in_what_commands_print() -> (
    None
):
    captured = (
        "NodeName=t1 CPUAlloc=0 CPUTot=8 Gres={gres} GresUsed={used} RealMemory=4000 AllocMem=0 State=IDLE"
    )
    for gres, used, configured, allocated in (
        ("gpu:v100:4", "gpu:v100:0(IDX:N/A)", {"gpu:v100": 4}, {}),
        (
            *("gpu:a100:2,gpu:h100:2", "gpu:a100:1(IDX:0),gpu:h100:0(IDX:N/A)"),
            *({"gpu:a100": 2, "gpu:h100": 2}, {"gpu": 1, "gpu:a100": 1}),
        ),
    ):
        (node,) = parse_nodes(captured.format(gres=gres, used=used))
        shown = to_node(a_node(configured_gres=configured, allocated_gres=allocated))
        assert (shown.allocated.gpus, shown.allocated.gpu_type) == (
            node.allocated.gpus,
            node.allocated.gpu_type,
        )


def test_a_comment_that_is_no_text_is_read_as_commands_print_it() -> None:
    (job,) = to_jobs([a_job(written=b"flexo-satellite base=5 restart=0 grant=g workers=2 \xff")], SATELLITES)
    (torn,) = to_jobs([a_job(written=b"\xff")], SATELLITES)
    for each, comment in (
        (job, "flexo-satellite base=5 restart=0 grant=g workers=2 \ufffd"),
        (torn, "\ufffd"),
    ):
        assert each.satellite == tag_in(comment, ("flex",), SATELLITES)


@pytest.mark.parametrize("name", ["N/A", "(null)", "None", "a|b\nc", "train"])
def test_a_jobs_name_that_slurm_prints_for_no_name_is_none_with_either_reader(name: str) -> None:
    (job,) = to_jobs([a_job(name=name)], SATELLITES)
    assert job.name == or_empty(name)


def test_devices_asked_for_by_task_count_beside_those_asked_for_by_node() -> None:
    per_task = tres(0, **{"gres/spare_s1": 1})
    (job,) = to_jobs([a_job(gres_per_node={"gres/spare:s0": 1}, tres_per_task=per_task)], SATELLITES)
    assert job.resources.devices == (Devices("spare", "s0", 2), Devices("spare", "s1", 2))


def test_parts_of_an_array_or_of_a_heterogeneous_job_are_no_whole_jobs() -> None:
    several = ({}, {"array_id": 7}, {"heterogeneous_id": 7})
    assert [to_jobs([a_job(**each)], SATELLITES)[0].is_whole for each in several] == [True, False, False]


def test_pyslurm_reads_the_release_of_its_version_and_with_a_newer_library_another() -> None:
    assert read_by_pyslurm("25.11.2", 44) == read_by_pyslurm("25.11.2", 0) == Release(25, 11)
    assert read_by_pyslurm("25.11.2", 45) == Release(26, 5)
    assert read_by_pyslurm("25.5.0", 43) == read_by_pyslurm("25.05.0", 43) == Release(25, 5)
    assert read_by_pyslurm("22.05.1", 45) == Release(22, 5)
    assert read_by_pyslurm("of nobody", 45) is None


def test_a_site_that_does_not_track_its_gpus_is_told_what_is_missing() -> None:
    config = SimpleNamespace(accounting_storage_tres=["cpu", "gres/gpu"])
    missing = why_not_enough(config, [a_node()])
    assert says(missing, "AccountingStorageTRES", "gres/gpu and gres/gpu:v100")
    config.accounting_storage_tres.append("gres/gpu:v100")
    assert why_not_enough(config, [a_node()]) == ""
    assert "in pieces" in why_not_enough(config, [a_node(configured_gres={"gpu:v100": 4, "shard": 8})])


def test_a_question_to_pyslurm_is_answered_from_its_own_process(
    installed: Installed, reader: PyslurmReader
) -> None:
    installed.write()
    assert reader.name == "pyslurm 22.05.1"
    assert reader.look() == ((), ())
    assert "pyslurm" not in sys.modules


def test_an_answer_that_does_not_come_in_time_ends_that_process_and_the_next_question_starts_another(
    installed: Installed, reader: PyslurmReader
) -> None:
    installed.write(jobs="time.sleep(60)")
    with pytest.raises(ClusterUnreachable, match=r"pyslurm \(jobs\) did not answer within 2 s"):
        reader.look()
    assert reader.partitions() == ()


def test_an_error_of_pyslurm_is_told_in_its_words(installed: Installed, reader: PyslurmReader) -> None:
    installed.write(jobs="raise RuntimeError('Unable to contact slurm controller')")
    with pytest.raises(ClusterUnreachable, match="RuntimeError: Unable to contact slurm controller"):
        reader.look()
    assert reader.partitions() == ()


def test_a_libslurm_that_ends_the_process_ends_only_its_own(
    installed: Installed, reader: PyslurmReader
) -> None:
    installed.write(jobs=f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    with pytest.raises(ClusterUnreachable, match="its process ended"):
        reader.look()
    assert reader.partitions() == ()


def test_a_pyslurm_that_cannot_be_loaded_says_why(installed: Installed, reader: PyslurmReader) -> None:
    (installed.folder / "pyslurm.py").write_text("raise ImportError('libslurm.so.38: cannot open')")
    with pytest.raises(ClusterUnreachable, match=r"not be loaded.*ImportError.*libslurm\.so\.38"):
        reader.partitions()


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Recorded(tmp_path, "22.05")


@pytest.mark.processes
def test_pyslurm_of_slurms_own_release_is_taken(installed: Installed, recorded: Recorded) -> None:
    installed.write(version="22.05.3")
    assert connect(SlurmSettings(timeout_s=5.0), Site()).read_with == "pyslurm 22.05.3"


@pytest.mark.processes
def test_pyslurm_of_another_release_is_left_alone_and_it_is_said(
    installed: Installed, recorded: Recorded
) -> None:
    installed.write(version="25.11.2")
    cluster = connect(SlurmSettings(timeout_s=5.0), Site())
    assert says(cluster.read_with, "Slurm's commands", "pyslurm", "25.11.2", "Slurm 22.05.8")
    assert len(cluster.observe().jobs) == 13


def test_without_pyslurm_slurms_commands_read(recorded: Recorded) -> None:
    assert connect(SlurmSettings(timeout_s=5.0), Site()).read_with == "Slurm's commands"
