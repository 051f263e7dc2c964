"""An elastic job on this Slurm, from sbatch to its end: satellites, take-back and leases, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo_lab import Lab
from matrix.stand_in import StandIn, field, state, submit, wait

TIME_LIMIT_S = 60
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def elastic_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """Two nodes with two GPUs each, and satellites with short leases."""
    lab = make_lab(nodes=2, gpus_per_node=2, infer_nodes=0, flexod=False)
    toml = lab.layout.flexo_toml
    toml.write_text(toml.read_text().replace("[controller]", f"[controller]\nlease_s = {TIME_LIMIT_S}"))
    lab.start_flexod()
    yield lab
    lab.down()


@pytest.fixture
def quiet_lab(elastic_lab: Lab) -> Iterator[Lab]:
    """That lab, with flexod and without jobs."""
    elastic_lab.start_flexod()
    yield elastic_lab
    cancel_all_jobs(elastic_lab)


def test_an_elastic_job_grows_and_an_ordinary_job_takes_a_node_back(quiet_lab: Lab) -> None:
    job = StandIn.submitted(quiet_lab, "1-4")
    job.wait_for_workers(4)
    assert set(job.satellites().values()) == {"t1", "t2"}
    assert field(quiet_lab, job.job_id, "AdminComment") == "flexo{workers=1-4}"
    other = next(node for node in ("t1", "t2") if node != field(quiet_lab, job.job_id, "NodeList"))

    ordinary = submit(quiet_lab, f"--nodelist={other}", "--gres=gpu:2")
    wait(lambda: state(quiet_lab, ordinary) == "RUNNING", "the ordinary job has its node")
    job.wait_for_workers(2)
    assert other not in job.satellites().values()
    assert other not in job.working().values()
    assert state(quiet_lab, job.job_id) == "RUNNING"
    assert json.loads(quiet_lab.run(["flexo", "status", "--json"]).stdout)["trouble"] == ""
    job.finish()


def test_slurm_alone_takes_satellites_back_when_flexod_is_dead(quiet_lab: Lab) -> None:
    job = StandIn.submitted(quiet_lab, "1-4")
    job.wait_for_workers(4)
    other = next(node for node in ("t1", "t2") if node != field(quiet_lab, job.job_id, "NodeList"))
    (taken,) = (satellite for satellite, node in job.satellites().items() if node == other)
    quiet_lab.stop_flexod(kill=True)
    ordinary = submit(quiet_lab, f"--nodelist={other}", "--gres=gpu:2")
    wait(lambda: state(quiet_lab, ordinary) == "RUNNING", "the ordinary job has its node")
    assert field(quiet_lab, taken, "PreemptTime") not in ("", "None")
    job.wait_for_workers(2)
    job.finish()


def test_a_satellite_s_output_is_the_job_s_and_its_comment_says_whose_it_is(quiet_lab: Lab) -> None:
    job = StandIn.submitted(quiet_lab, "1-2")
    job.wait_for_workers(2)
    (satellite,) = job.satellites()
    assert field(quiet_lab, satellite, "StdOut") == str(job.folder / f"{job.job_id}.out")
    shown = quiet_lab.run(["squeue", "--noheader", f"--jobs={satellite}", "--format=%k"]).stdout
    assert shown.startswith(f"flexo-satellite base={job.job_id} restart=0 grant=")
    assert field(quiet_lab, satellite, "Requeue") == "0"
    job.finish()
    assert [path.name for path in job.folder.glob("*.out")] == [f"{job.job_id}.out"]


def test_leases_are_extended_by_flexod_and_run_out_without_it(quiet_lab: Lab) -> None:
    job = StandIn.submitted(quiet_lab, "1-2")
    job.wait_for_workers(2)
    (satellite,) = job.satellites()
    first = field(quiet_lab, satellite, "EndTime")
    wait(
        lambda: field(quiet_lab, satellite, "EndTime") not in ("", first),
        "the lease is extended",
        2 * TIME_LIMIT_S,
    )
    quiet_lab.stop_flexod(kill=True)
    wait(lambda: not job.satellites(), "the satellite ends", 4 * TIME_LIMIT_S)
    job.wait_for_workers(1)
    job.finish()
