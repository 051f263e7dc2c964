"""What satellites repeat of their base's request on a real cluster, and what is refused at submission."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo_lab import Lab, Profile

BOUND_S = 120
SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
ELASTIC = f"""#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
exec flexo run python {shlex.quote(str(SCRIPT))} --step-seconds 0.2 --epochs 100000
"""
ASKING = ("-n", "1", "--gpus-per-task=1", "--elastic=1-4")


@pytest.fixture(scope="module")
def featured(make_lab: LabFactory) -> Iterator[Lab]:
    """Nodes with features: t1 fast, t2 fast and near, i1 far, and t3 none. Licences: scratch, matlab."""
    lab = make_lab(nodes=3, gpus_per_node=2, infer_nodes=1)
    conf = lab.layout.slurm_conf
    conf.write_text(f"{conf.read_text()}\nLicenses=scratch:2,matlab:2\n")
    lab.restart_slurmctld()
    for node, features in (("t1", "fast"), ("t2", "fast,near"), ("i1", "far")):
        both = (f"AvailableFeatures={features}", f"ActiveFeatures={features}")
        lab.run(["scontrol", "update", f"NodeName={node}", *both])
    yield lab
    lab.down()


@pytest.fixture
def empty(featured: Lab) -> Iterator[Lab]:
    yield featured
    cancel_all_jobs(featured)


def _wait(what: Callable[[], object], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S} s"
        time.sleep(0.5)


def _train(lab: Lab, *options: str, user: str | None = None) -> str:
    """Submit an elastic job that trains, and return its id."""
    submit = ["sbatch", "--parsable", "--output=/dev/null", *options]
    return lab.run(submit, stdin=ELASTIC, user=user).stdout.strip()


def _satellites(lab: Lab, job: str) -> dict[str, dict[str, str]]:
    """The fields of the running satellites of a job, by node."""
    rows = lab.run(
        ["squeue", "--noheader", f"--name=flexo-{job}", "--states=R", "--format=%i"]
    ).stdout.split()
    shown = [lab.run(["scontrol", "show", "job", "--oneliner", row]).stdout for row in rows]
    fields = [dict(re.findall(r"(\w+)=(\S*)", one)) for one in shown]
    return {each["NodeList"]: each for each in fields}


def _why(lab: Lab, job: str) -> str:
    return lab.run(["flexo", "why", job], check=False).stdout


def _read_again(lab: Lab) -> None:
    """Have slurmctld read job_submit.lua again: the file is newer than at its last look."""
    later = lab.layout.job_submit.stat().st_mtime + 10
    os.utime(lab.layout.job_submit, (later, later))


def _refused(lab: Lab, *options: str) -> str:
    done = lab.run(["sbatch", "--parsable", "-H", *options, "--wrap=true"], check=False)
    assert done.returncode != 0, f"accepted: {done}"
    return done.stderr


# --- carried over ---------------------------------------------------------------------------------


@pytest.mark.training
@pytest.mark.slow
def test_a_satellite_starts_only_on_nodes_with_the_features_of_the_constraint(empty: Lab) -> None:
    job = _train(empty, "--elastic=1-6", "--constraint=fast", "--nodelist=t1")
    _wait(lambda: "t2" in _satellites(empty, job), "the job grows onto t2")
    _wait(lambda: "requires other features: fast" in _why(empty, job), "flexo why names the constraint")
    there = _satellites(empty, job)
    assert there.keys() <= {"t1", "t2"}, "t3 is idle, and does not have the feature"
    assert all(each["Features"] == "fast" for each in there.values())


@pytest.mark.training
@pytest.mark.slow
def test_a_constraint_with_or_is_carried_over_whole(empty: Lab) -> None:
    job = _train(empty, "--elastic=1-3", "--constraint=near|far", "--nodelist=t2")
    _wait(lambda: "requires other features: near|far" in _why(empty, job), "flexo why names the constraint")
    _wait(lambda: "t2" in _satellites(empty, job), "the other GPU of t2 is the job's")
    assert _satellites(empty, job).keys() == {"t2"}
    assert _satellites(empty, job)["t2"]["Features"] == "near|far"


@pytest.mark.training
@pytest.mark.slow
def test_a_satellite_does_not_start_on_an_excluded_node(empty: Lab) -> None:
    job = _train(empty, "--elastic=1-6", "--exclude=t2", "--nodelist=t1")
    _wait(lambda: "t3" in _satellites(empty, job), "the job grows onto t3")
    _wait(lambda: "excludes this node" in _why(empty, job), "flexo why names the excluded node")
    there = _satellites(empty, job)
    assert there.keys() <= {"t1", "t3"}, "t2 is idle, and excluded"
    assert all(each["ExcNodeList"] == "t2" for each in there.values())


@pytest.mark.training
@pytest.mark.slow
def test_a_satellite_has_the_qos_of_its_base(spared_lab: LabFactory) -> None:
    lab = spared_lab(nodes=2, gpus_per_node=2, infer_nodes=0, profile=Profile.ACCOUNTING)
    job = _train(lab, "--elastic=1-4", "--qos=urgent", user="games")
    _wait(lambda: _satellites(lab, job), "the job grows")
    assert {each["QOS"] for each in _satellites(lab, job).values()} == {"urgent"}


# --- refused at submission ------------------------------------------------------------------------


@pytest.mark.parametrize("constraint", ["[fast|near]", "fast*1"])
def test_a_constraint_on_several_nodes_together_is_refused(empty: Lab, constraint: str) -> None:
    said = _refused(empty, *ASKING, f"--constraint={constraint}")
    assert f"--constraint='{constraint}'" in said
    assert "one node" in said


def test_a_reservation_is_refused(empty: Lab) -> None:
    made = ["scontrol", "create", "reservation", "ReservationName=class42", "Users=root", "Nodes=t3"]
    empty.run([*made, "StartTime=now", "Duration=60"])
    try:
        assert "--reservation='class42'" in _refused(empty, *ASKING, "--reservation=class42")
        empty.run(["sbatch", "-H", "-n", "1", "--reservation=class42", "--wrap=true"])
    finally:
        cancel_all_jobs(empty)
        empty.run(["scontrol", "delete", "ReservationName=class42"])


def test_licences_are_refused_unless_the_site_says_that_a_job_takes_them_once(empty: Lab) -> None:
    said = _refused(empty, *ASKING, "--licenses=scratch:1")
    assert "--licenses='scratch" in said
    assert "job_licenses" in said
    module = empty.layout.plugin / "job_submit_elastic.lua"
    before = module.read_text()
    try:
        module.write_text(before.replace("job_licenses = {}", 'job_licenses = { "scratch" }'))
        _read_again(empty)
        empty.run(["sbatch", "-H", *ASKING, "--licenses=scratch:1", "--wrap=true"])
        assert "--licenses='matlab" in _refused(empty, *ASKING, "--licenses=scratch:1,matlab:1")
    finally:
        module.write_text(before)
        _read_again(empty)


def test_a_container_is_refused(empty: Lab) -> None:
    assert "--container=/images/torch" in _refused(empty, *ASKING, "--container=/images/torch")


def test_a_job_whose_size_is_fixed_may_ask_for_all_of_it(empty: Lab) -> None:
    fixed = ("-n", "1", "--gpus-per-task=1", "--elastic=1-1")
    for option in ("--constraint=[fast|near]", "--licenses=matlab:1"):
        empty.run(["sbatch", "-H", *fixed, option, "--wrap=true"])


def test_a_pending_elastic_job_does_not_get_a_licence_by_a_change(empty: Lab) -> None:
    job = empty.run(["sbatch", "--parsable", "-H", *ASKING, "--wrap=true"]).stdout.strip()
    done = empty.run(["scontrol", "update", f"JobId={job}", "Licenses=matlab:1"], check=False)
    assert done.returncode != 0
    shown = empty.run(["scontrol", "show", "job", "--oneliner", job]).stdout
    assert "Licenses=(null)" in shown
