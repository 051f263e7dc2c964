"""Which GPUs a job may really open where cgroups constrain devices, beside the job that holds all of them.

The device files have no driver. A job that the cgroup lets through is told so (ENXIO), others that they may
not (EPERM).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabFactory, cancel_all_jobs
from test_shared_gpus import SATELLITE, as_slurm_user, spare_gpus

from flexo.clusters.slurm.releases import Release
from flexo_lab import Lab, processes
from flexo_lab.requirements import installed_release, program
from matrix.stand_in import field, state, submit, wait

pytestmark = pytest.mark.timeout(300)
DEVICES = Path("/sys/fs/cgroup/devices")
"""The controller of cgroup v1; that of v2 is a program in the kernel, and has no folder."""
SHARES = installed_release() >= Release(23, 2)
"""Whether this Slurm lets a job open the device files of a GRES without a plugin of its own, and keeps such a
GRES from jobs that do not ask for it (Flags=explicit)."""
TRY = """
for gpu in 0 1; do
  python3 -c 'import errno, os, sys
try: os.open(sys.argv[1], os.O_RDONLY)
except OSError as error: print(errno.errorcode[error.errno])' {devices}/nvidia$gpu | sed "s/^/nvidia$gpu /"
done > {out}.new
echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" >> {out}.new
mv {out}.new {out}
exec sleep 600
"""


@pytest.fixture(scope="module")
def constrained_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """One node with two GPUs that can be shared, and device cgroups."""
    if not os.access(DEVICES / "cgroup.procs", os.W_OK):
        pytest.skip(f"needs the devices controller of cgroup v1 ({DEVICES})")
    lab = make_lab(nodes=1, gpus_per_node=2, infer_nodes=0, sharing=True, flexod=False)
    try:
        _constrain_devices(lab)
        yield lab
    finally:
        lab.down()
        for folder, _, _ in os.walk(DEVICES / "slurm_t1", topdown=False):
            Path(folder).rmdir()


def _constrain_devices(lab: Lab) -> None:
    layout = lab.layout
    text = layout.slurm_conf.read_text()
    layout.slurm_conf.write_text(text.replace("TaskPlugin=task/none", "TaskPlugin=task/cgroup"))
    layout.cgroup_conf.write_text("CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n")
    slurmds = {daemon.pid for daemon in processes.daemons_of(lab.directory) if daemon.name == "slurmd"}
    found = [each for each in processes.belonging_to(lab.directory) if each.pid in slurmds]
    processes.end(found, patience_s=20)
    lab.restart_slurmctld()
    command = [program("slurmd"), "-f", str(layout.slurm_conf), "-N", "t1"]
    processes.start_daemonizing(command, layout.logs / "slurmd-t1.out", lab.environment())
    wait(lambda: "idle" in lab.run(["sinfo", "-h", "-o", "%T"]).stdout, "the node is back")


@pytest.fixture
def quiet(constrained_lab: Lab) -> Iterator[Lab]:
    """That lab without jobs."""
    yield constrained_lab
    cancel_all_jobs(constrained_lab)


def tries(lab: Lab, *options: str, release: bool = False) -> tuple[int, Path]:
    """A job that tries to open both GPUs, and the file that will say with what result."""
    out = lab.scratch / f"opened-{time.monotonic_ns()}"
    job_id = submit(lab, *options, script=TRY.format(devices=lab.layout.devices / "t1", out=out))
    if release:
        as_slurm_user(lab, "scontrol", "release", str(job_id))
    return job_id, out


def opened(out: Path) -> set[str]:
    """The GPUs that the job could open. Each other one has to be forbidden, not missing."""
    wait(out.exists, "the job has tried")
    said = dict(line.split() for line in out.read_text().splitlines() if line.startswith("nvidia"))
    assert set(said.values()) <= {"ENXIO", "EPERM"}
    assert set(said) == {"nvidia0", "nvidia1"}
    return {gpu for gpu, result in said.items() if result == "ENXIO"}


def test_a_spare_gpu_opens_exactly_its_device_beside_the_job_that_holds_all(quiet: Lab) -> None:
    guarantee, guarantees = tries(quiet, "-n2", "-c1", "--gpus-per-task=1", "--elastic-cohost")
    assert opened(guarantees) == {"nvidia0", "nvidia1"}
    satellite, satellites = tries(quiet, *SATELLITE, release=True)
    assert opened(satellites) == ({"nvidia1"} if SHARES else set())
    assert "CUDA_VISIBLE_DEVICES=\n" in satellites.read_text(), "Slurm knows nothing of CUDA there"
    assert state(quiet, guarantee) == state(quiet, satellite) == "RUNNING"
    other = [*SATELLITE]
    other[other.index("--gres=spare:s1:1")] = "--gres=spare:s0:1"
    _, others = tries(quiet, *other, release=True)
    assert opened(others) == ({"nvidia0"} if SHARES else set())


def test_a_plain_neighbour_opens_nothing(quiet: Lab) -> None:
    _, out = tries(quiet, "-n1", "-c1")
    assert opened(out) == set()


@pytest.mark.parametrize("gpus", [(), ("--gres=gpu:2",)])
def test_an_exclusive_neighbour_does_not_take_the_spare_gpus_from_23_02_on(
    quiet: Lab, gpus: tuple[str, ...]
) -> None:
    neighbour, out = tries(quiet, "--exclusive", "-n1", *gpus)
    wait(out.exists, "the job has tried")
    assert field(quiet, neighbour, "NumCPUs") == "8"
    assert spare_gpus(quiet) == {0: not SHARES, 1: not SHARES}


def test_the_doctor_finds_all_in_order_but_the_limits_of_slurmdbd(quiet: Lab) -> None:
    found = json.loads(quiet.run(["flexo", "doctor", "--json"], check=False).stdout)["findings"]
    levels = {each["check"]: each["level"] for each in found if each["check"].startswith("sharing.")}
    assert levels.pop("sharing.qos") == "warning"  # this lab has no slurmdbd
    assert levels.pop("sharing.release") == ("ok" if SHARES else "problem")
    assert set(levels.values()) == {"ok"}
    checks = ("devices", "files", "lua", "hold", "prolog")
    assert {f"sharing.{check}" for check in checks} <= levels.keys()
