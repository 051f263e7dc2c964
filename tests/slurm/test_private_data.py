"""Slurm's PrivateData=jobs on a real cluster: flexod and flexo-web hide what squeue hides."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from test_web_on_slurm import browser

from flexo_lab import Lab, Profile

BOUND_S = 90
ADA, BOB = "games", "news"
OPERATOR = "backup"
"""An Operator of Slurm's, who is not flexod's account."""
NOT_THERE = 999_999


@pytest.fixture(scope="module")
def private_lab(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """PrivateData=jobs, and flexo-web's account among the readers."""
    lab = make_lab(nodes=2, infer_nodes=0, web=True, profile=Profile.ACCOUNTING)
    conf, toml = lab.layout.slurm_conf, lab.layout.flexo_toml
    conf.write_text(f"{conf.read_text()}\nPrivateData=jobs,usage\n")
    lab.run(["sacctmgr", "-i", "add", "user", OPERATOR, "account=research", "adminlevel=operator"])
    lab.restart_slurmctld()
    toml.write_text(toml.read_text().replace("[service]", '[service]\nreaders = ["nobody"]'))
    lab.restart_flexod()
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def jobs(private_lab: Lab) -> dict[str, int]:
    """A running elastic job of each user, which flexod has seen."""
    request = ["sbatch", "--parsable", "--comment=elastic=1-2", "--gpus=1", "--output=/dev/null"]
    made = {
        user: int(private_lab.run([*request, "--wrap=sleep 600"], user=user).stdout) for user in (ADA, BOB)
    }
    until(lambda: shown(private_lab, "root") == set(made.values()), "flexod sees both jobs")
    return made


def until(what: Callable[[], object], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S} s"
        time.sleep(0.5)


def shown(lab: Lab, user: str) -> set[int]:
    """The jobs that `flexo jobs` lists for a user."""
    found = json.loads(lab.run(["flexo", "jobs", "--json"], user=user).stdout)
    return {job["job_id"] for job in found["jobs"]}


def test_flexo_lists_for_each_user_what_squeue_lists(private_lab: Lab, jobs: dict[str, int]) -> None:
    for user in (ADA, BOB):
        squeue = private_lab.run(["squeue", "--noheader", "--format=%A"], user=user).stdout
        assert shown(private_lab, user) == {int(each) for each in squeue.split()} == {jobs[user]}
    for user in ("root", "slurm", OPERATOR):
        assert shown(private_lab, user) == set(jobs.values())


def test_another_users_job_is_like_one_that_there_is_not(private_lab: Lab, jobs: dict[str, int]) -> None:
    for command, more in (("why", []), ("scale", ["2"])):
        other, missing = (
            private_lab.run(["flexo", command, str(job), *more], user=ADA, check=False)
            for job in (jobs[BOB], NOT_THERE)
        )
        assert other.returncode == missing.returncode != 0
        assert other.stderr == missing.stderr.replace(str(NOT_THERE), str(jobs[BOB]))
    assert str(jobs[ADA]) in private_lab.run(["flexo", "why", str(jobs[ADA])], user=ADA).stdout


def test_the_pages_hide_it_too(private_lab: Lab, jobs: dict[str, int]) -> None:
    with browser(private_lab, ADA) as entered:
        until(lambda: f"/jobs/{jobs[ADA]}" in entered.get("/").text, "the page shows the own job")
        assert f"/jobs/{jobs[BOB]}" not in entered.get("/").text
        assert entered.get(f"/jobs/{jobs[ADA]}").status_code == 200
        assert entered.get(f"/jobs/{jobs[BOB]}").status_code == 404


def test_after_its_end_a_job_is_its_owners_still(private_lab: Lab, jobs: dict[str, int]) -> None:
    private_lab.run(["scancel", *map(str, jobs.values())])
    ended = ["flexo", "events", "--json", str(jobs[ADA])]

    def kinds(user: str) -> set[str]:
        return {event["kind"] for event in json.loads(private_lab.run(ended, user=user).stdout)["events"]}

    until(lambda: "end" in kinds("root"), "flexod has seen the end")
    assert "end" in kinds(ADA)
    assert kinds(BOB) == set()
    assert private_lab.run(["flexo", "why", str(jobs[ADA])], user=BOB, check=False).returncode != 0
    assert "CANCELLED" in private_lab.run(["flexo", "why", str(jobs[ADA])], user=ADA).stdout
