"""Limits of QOS keep the spare GRES for satellites, whatever job_submit.lua does: Lua is not a limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo_lab import Lab, Profile
from flexo_lab.accounting import QOS
from matrix.stand_in import field, state, submit, wait

pytestmark = pytest.mark.timeout(600)
WITHOUT_CHECKS = """
function slurm_job_submit(job_desc, part_list, submit_uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
"""
SPARE = ("-n1", "-c1", "--gres=spare:s1:1")


@pytest.fixture(scope="module")
def limited_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """One node with two GPUs that can be shared, QOS as documented, and no check in job_submit.lua."""
    spec = {"nodes": 1, "gpus_per_node": 2, "infer_nodes": 0, "sharing": True, "flexod": False}
    lab = make_lab(profile=Profile.ACCOUNTING, **spec)
    for words in (
        ("modify", "qos", f"normal,{QOS}", "set", "MaxTRESPerJob=gres/spare=0", "Flags=DenyOnLimit"),
        ("add", "qos", "shared", "MaxTRESPerJob=gres/spare=1"),
    ):
        lab.run(["sacctmgr", "--immediate", "--quiet", *words])
    lab.run(["scontrol", "update", "PartitionName=shared", "QOS=shared"])
    lab.layout.job_submit.write_text(WITHOUT_CHECKS)
    yield lab
    lab.down()


@pytest.fixture
def quiet(limited_lab: Lab) -> Iterator[Lab]:
    """That lab without jobs."""
    yield limited_lab
    cancel_all_jobs(limited_lab)


def refusal(lab: Lab, *options: str) -> str:
    done = lab.run(["sbatch", *options, "--wrap=true"], user="games", check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("options", [(), (f"--qos={QOS}",), ("-p", "flex")])
def test_other_partitions_refuse_the_spare_gres(quiet: Lab, options: tuple[str, ...]) -> None:
    assert "QOSMaxGRESPerJob" in refusal(quiet, *SPARE, *options)
    assert not refusal(quiet, "-n1", "--gres=gpu:1", *options)


def test_the_qos_of_the_partition_lets_satellites_have_one(quiet: Lab) -> None:
    satellite = submit(quiet, "-p", "shared", *SPARE)
    wait(lambda: state(quiet, satellite) == "RUNNING", "the satellite runs")
    assert field(quiet, satellite, "QOS") == "normal"
    assert "QOSMaxGRESPerJob" in refusal(quiet, "-p", "shared", "-n1", "--gres=spare:2")
