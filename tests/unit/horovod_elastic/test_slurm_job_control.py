"""The command lines with which satellites are submitted and launched; Slurm is a script that records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flexo_protos.resources import Devices, Resources
from horovod_elastic import job_plan
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan, Site
from horovod_elastic.platforms.base import (
    JOB_VARIABLE,
    NODE_VARIABLE,
    VARIABLE,
    BaseState,
    Found,
    GrantedWorkers,
    Refused,
    SatelliteStatus,
)
from horovod_elastic.platforms.slurm.job_control import SUPERVISOR, SlurmJobControl

pytestmark = pytest.mark.processes

HOSTILE = ["two words", 'quo"tes', "it's", "new\nline", "$HOME `id` \\", "--job", "--", "", "ünï", "*"]
COMMAND = ["python", "train.py", *HOSTILE]
GRANT = GrantedWorkers("g1", "n7", 3, "flex", time_limit_s=301, start_within_s=60)
RECORDER = """#!/usr/bin/env python3
import json, os, sys
folder = os.path.dirname(sys.argv[0])
name = os.path.basename(sys.argv[0])
stdin = "" if name == "srun" else sys.stdin.read()
record = {"argv": sys.argv[1:], "stdin": stdin, "environment": dict(os.environ)}
json.dump(record, open(os.path.join(folder, name + ".json"), "w"))
open(os.path.join(folder, name + ".calls"), "a").write(json.dumps(sys.argv[1:]) + "\\n")
answer = os.path.join(folder, name + ".answer")
if os.path.exists(answer):
    out, err, code = json.load(open(answer))
    sys.stdout.write(out); sys.stderr.write(err); sys.exit(code)
"""


class Recorder:
    """Programs named sbatch, squeue, scancel and srun that write down how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sbatch", "squeue", "scancel", "srun"):
            (folder / name).write_text(RECORDER)
            (folder / name).chmod(0o755)
        self.answer("sbatch", "4711\n")

    def answer(self, name: str, out: str, err: str = "", code: int = 0) -> None:
        (self.folder / f"{name}.answer").write_text(json.dumps([out, err, code]))

    def call(self, name: str) -> dict[str, list[str]]:
        loaded: dict[str, list[str]] = json.loads((self.folder / f"{name}.json").read_text())
        return loaded

    def calls(self, name: str) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / f"{name}.calls").read_text().splitlines()]


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Recorder(tmp_path)


def plan_of(shape: Resources | None = None, account: str = "", output: str = "/home/u/out.txt") -> JobPlan:
    shape = shape or Resources(gpus=2, cpus=4, memory_mib=1500, gpu_type="a100")
    base = BaseJob("17", 2, (BaseNode("n1", 2),), shape, 2, 8, account)
    return JobPlan(base, Site(), output, "head:1", "flexod://head:1#ab")


def user(plan: JobPlan | None = None) -> SlurmJobControl:
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "17",
        "SLURM_CONF": "/c",
        "SLURM_MEM_PER_CPU": "1",
        "MINE": "x",
    }
    return SlurmJobControl(plan or plan_of(), environment, COMMAND)


def test_a_satellite_says_everything_itself(recorder: Recorder) -> None:
    assert user(plan_of(account="physics")).submit(GRANT) == "4711"
    assert recorder.call("sbatch")["argv"] == [
        *("--parsable", "--no-requeue", "--export=ALL", "--input=none", "--nodes=1", "--ntasks=1"),
        *("--nodelist=n7", "--partition=flex", "--cpus-per-task=12", "--gres=gpu:a100:6", "--mem=4500M"),
        *("--account=physics", "--time=6", "--job-name=flexo-17"),
        "--comment=flexo-satellite base=17 restart=2 grant=g1 workers=3",
        *("--output=/home/u/out.txt", "--error=/home/u/out.txt", "--open-mode=append"),
    ]


def test_the_satellite_of_an_aggregator_has_one_cpu_and_its_memory_and_no_gpu(recorder: Recorder) -> None:
    assert user().submit_aggregator(replace(GRANT, workers=0)) == "4711"
    options = recorder.call("sbatch")["argv"]
    assert "--cpus-per-task=1" in options
    assert "--mem=375M" in options, "the base has 1500 MiB for 4 CPUs"
    assert "--comment=flexo-satellite base=17 restart=2 grant=g1 workers=0" in options
    assert not [option for option in options if option.startswith(("--gres", "--gpus"))]
    user(plan_of(Resources(1, 2))).submit_aggregator(replace(GRANT, workers=0))
    assert not [option for option in recorder.call("sbatch")["argv"] if option.startswith("--mem")]


def test_a_grant_with_a_qos_is_submitted_with_it(recorder: Recorder) -> None:
    user().submit(replace(GRANT, qos="spare"))
    assert "--qos=spare" in recorder.call("sbatch")["argv"]


def test_a_satellite_repeats_the_base_s_own_request(recorder: Recorder) -> None:
    plan = plan_of()
    asked = ("--qos=high", "--exclude=n[3-4]", "--constraint=a100|h100")
    repeats = user(replace(plan, base=replace(plan.base, satellite_options=asked)))
    repeats.submit(GRANT)
    argv = recorder.call("sbatch")["argv"]
    assert set(asked) < set(argv)
    repeats.submit(replace(GRANT, qos="spare"))
    qos = [option for option in recorder.call("sbatch")["argv"] if option.startswith("--qos=")]
    assert qos[-1] == "--qos=spare", "sbatch takes the last: the site's QOS for satellites wins"


def test_a_satellite_of_a_heterogeneous_job_asks_for_gpus_of_any_type(recorder: Recorder) -> None:
    plan = plan_of()
    mixes = user(replace(plan, base=replace(plan.base, heterogeneous=True)))
    mixes.submit(GRANT)
    assert "--gres=gpu:6" in recorder.call("sbatch")["argv"]
    assert "--gpus=6" in mixes.step(3)
    assert "--gpus=a100:6" in user(plan).step(3)


def test_a_satellite_asks_for_the_other_devices_of_its_workers_too(recorder: Recorder) -> None:
    worker = Resources(1, 2, devices=(Devices("nic"), Devices("spare", "s1")))
    user(plan_of(worker)).submit(GRANT)
    assert "--gres=gpu:3,nic:3,spare:s1:3" in recorder.call("sbatch")["argv"]


def test_what_the_base_did_not_ask_for_the_satellite_does_not_either(recorder: Recorder) -> None:
    user(plan_of(Resources(gpus=0, cpus=1, memory_mib=0, gpu_type=""), output="")).submit(GRANT)
    options = recorder.call("sbatch")["argv"]
    assert not [option for option in options if option.startswith(("--gres", "--mem", "--account", "--qos"))]
    assert "--output=/dev/null" in options


def test_slurms_own_variables_stay_behind_and_the_users_come_along(recorder: Recorder) -> None:
    user().submit(GRANT)
    environment = recorder.call("sbatch")["environment"]
    assert "MINE" in environment
    assert [name for name in environment if name.startswith("SLURM_")] == ["SLURM_CONF"]


def test_the_training_command_arrives_word_for_word(recorder: Recorder, tmp_path: Path) -> None:
    """The script that sbatch got is run by a shell; its srun writes down what it was given."""
    user().submit(GRANT)
    script = tmp_path / "satellite.sh"
    script.write_text(str(recorder.call("sbatch")["stdin"]))
    subprocess.run(["/bin/sh", str(script)], check=True, timeout=30)
    argv = recorder.call("srun")["argv"]
    assert argv[argv.index("--") + 1 :] == COMMAND
    assert argv[: argv.index(sys.executable)] == [
        *("--nodes=1", "--ntasks=1", "--export=ALL", "--mem=0", "--cpu-bind=none"),
        *("--kill-on-bad-exit=0", "--whole", "--gpus=a100:6"),
    ]
    agent = argv[argv.index(sys.executable) + 1 : argv.index("--")]
    assert agent == [
        *("-I", "-S", str(SUPERVISOR), "--slots", "3"),
        *("--job", plan_of().to_text(), "--grant", "g1"),
    ]
    assert job_plan.from_text(agent[agent.index("--job") + 1]) == plan_of()


def test_an_agent_of_the_base_runs_in_a_step_of_the_base(recorder: Recorder) -> None:
    user().launch_base("n1", 2).wait(timeout=30)
    argv = recorder.call("srun")["argv"]
    assert argv[:3] == ["--jobid=17", "--nodelist=n1", "--job-name=flexo-agent"]
    assert "--gpus=a100:4" in argv
    assert argv[argv.index("--") - 1] == "--base"
    assert argv[argv.index("--") + 1 :] == COMMAND
    user().launch_base("n1", 2, again=True).wait(timeout=30)
    argv = recorder.call("srun")["argv"]
    assert argv[: argv.index("--")][-2:] == ["--base", "--again"]


def test_what_is_started_knows_its_cluster_its_node_and_its_job(recorder: Recorder) -> None:
    user().submit(GRANT)
    user().launch_base("n1", 2).wait(timeout=30)
    for command, node in (("sbatch", "n7"), ("srun", "n1")):
        environment = recorder.call(command)["environment"]
        assert {VARIABLE: "slurm", NODE_VARIABLE: node, JOB_VARIABLE: "17"}.items() <= environment.items()


def test_the_user_is_told_scancel() -> None:
    assert user().how_to_cancel(["5", "6"]) == "scancel 5 6"


@pytest.mark.parametrize("answer", ["4711", "4711;cluster\n"])
def test_the_answers_of_sbatch(recorder: Recorder, answer: str) -> None:
    recorder.answer("sbatch", answer)
    assert user().submit(GRANT) == "4711"


@pytest.mark.parametrize(
    ("out", "err", "code", "said"),
    [
        ("", "sbatch: error: QOSMaxSubmitJobPerUserLimit", 1, "QOSMaxSubmitJobPerUserLimit"),
        ("", "", 3, "exit code 3"),
        ("Welcome!\n4711", "", 0, "where a job id was expected"),
        ("", "Invalid job id", 1, "where a job id was expected"),
    ],
)
def test_refusals_are_passed_on_in_slurms_own_words(
    recorder: Recorder, out: str, err: str, code: int, said: str
) -> None:
    recorder.answer("sbatch", out, err, code)
    with pytest.raises(Refused, match=said):
        user().submit(GRANT)


def test_a_slurm_that_is_not_there_is_a_refusal(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Refused, match="sbatch"):
        user().submit(GRANT)


def test_the_queue_is_read(recorder: Recorder) -> None:
    recorder.answer("squeue", "5|PD|Resources\n6|R|None\n7|PD|QOSMaxGRESPerUser\n")
    found = user().status(["5", "6", "7", "8"])
    mine = [f"--user={os.getuid()}", "--name=flexo-17"]
    argv = recorder.call("squeue")["argv"]
    assert argv[-3:] == [*mine, "--jobs=5,6,7,8"]
    assert "--all" in argv, "else those in a hidden partition do not exist"
    assert found == {
        "5": SatelliteStatus(placed=False, reason="Resources"),
        "6": SatelliteStatus(placed=True, reason="None"),
        "7": SatelliteStatus(placed=False, reason="QOSMaxGRESPerUser", blocked=True),
    }


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("AssocGrpGRES", True),
        ("AssocMaxJobsLimit", True),
        ("QOSMaxJobsPerUserLimit", True),
        ("QOSUsageThreshold", True),
        ("MaxGRESPerAccount", True),
        ("MaxJobsPerAccount", True),
        ("AccountNotAllowed", True),
        ("AccountingPolicy", True),
        ("InvalidQOS", True),
        ("PartitionTimeLimit", True),
        ("JobHeldAdmin", False),
        ("JobHeldUser", False),
        ("Priority", False),
        ("Resources", False),
        ("ReqNodeNotAvail, UnavailableNodes:t1", False),
        ("Reservation", False),
        ("Licenses", False),
        ("BeginTime", False),
    ],
)
def test_limits_are_told_from_a_cluster_that_is_full(recorder: Recorder, reason: str, limit: bool) -> None:
    recorder.answer("squeue", f"5|PD|{reason}\n6|R|{reason}\n")
    found = user().status(["5", "6"])
    assert (found["5"].blocked, found["6"].blocked) == (limit, False)


def test_jobs_that_slurm_has_forgotten_are_not_in_the_queue(recorder: Recorder) -> None:
    recorder.answer("squeue", "", "slurm_load_jobs error: Invalid job id specified", 1)
    assert user().status(["5"]) == {}


def test_cancelling_nothing_asks_nobody(recorder: Recorder) -> None:
    user().cancel([])
    assert user().status([]) == {}
    assert not (recorder.folder / "scancel.json").exists()
    assert not (recorder.folder / "squeue.json").exists()


def test_only_jobs_that_are_called_as_satellites_are_cancelled(recorder: Recorder) -> None:
    """slurmctld forgets what it had not written down when it was killed, and uses the numbers again."""
    recorder.answer("squeue", "5|R|None\n")
    user().cancel(["5", "6"], within_s=0)
    assert recorder.calls("squeue")[0][-2:] == ["--name=flexo-17", "--jobs=5,6"]
    assert all(set(argv) & {"5", "6"} == {"5"} for argv in recorder.calls("scancel"))
    assert recorder.call("scancel")["argv"] == ["--quiet", "5"]


def test_a_satellite_that_runs_is_asked_to_end_before_it_is_cancelled(recorder: Recorder) -> None:
    recorder.answer("squeue", "5|R|None\n6|PD|Resources\n7|CG|None\n")
    user().cancel(["5", "6", "7"], within_s=0)
    assert recorder.calls("scancel") == [
        ["--quiet", "--state=PENDING", "6"],
        ["--quiet", "--batch", "--signal=USR1", "5"],
        ["--quiet", "5", "6"],
    ]


def test_what_is_asked_of_slurm_survives_the_sigterm_that_ends_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm sends it to all processes of the step, so to a squeue of the leader's as well."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "squeue").write_text("#!/bin/sh\nkill -TERM $$\necho '5|R|None'\n")
    (tmp_path / "squeue").chmod(0o755)
    assert user().status(["5"]) == {"5": SatelliteStatus(placed=True, reason="None")}
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_satellites_are_found_by_their_comment(recorder: Recorder) -> None:
    tag = "flexo-satellite base=17 restart=2 grant=g7 workers=3"
    strangers = ["8|R||", "9|R|n7|" + tag + " x", "10|R|n7|" + tag.replace("=17", "=170"), "x|R|n7|" + tag]
    former = "11|R|n7|" + tag.replace("restart=2", "restart=1")
    waiting = "6|PD|n8|" + tag.replace("g7", "g8")
    recorder.answer("squeue", "\n".join(["5|R|n7|" + tag, waiting, *strangers, former, "", "|"]) + "\n")
    assert user().find() == [Found("5", "g7", "n7", 3), Found("6", "g8", "n8", 3, runs=False)]
    assert recorder.call("squeue")["argv"] == [
        *("--all", "--noheader", "--format=%i|%t|%n|%k", f"--user={os.getuid()}", "--name=flexo-17")
    ]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("17|R|None\n", BaseState.RUNS),
        ("17|CF|None\n", BaseState.RUNS),
        ("17|SI|None\n", BaseState.RUNS),
        ("17|RS|None\n", BaseState.RUNS),
        ("17|S|None\n", BaseState.SUSPENDED),
        ("17|ST|None\n", BaseState.SUSPENDED),
        ("17|CG|None\n", BaseState.ENDED),
        ("", BaseState.ENDED),
    ],
)
def test_what_has_become_of_the_base_is_seen_in_the_queue(
    answer: str, state: BaseState, recorder: Recorder
) -> None:
    recorder.answer("squeue", answer)
    assert user().base_state() is state
    assert recorder.call("squeue")["argv"][-1] == "--jobs=17"


def test_only_the_steps_of_the_bases_agents_are_terminated(recorder: Recorder) -> None:
    recorder.answer("squeue", "17.0|flexo-agent\n17.1|hostname\n17.2|flexo-agent\n")
    user().terminate_base()
    assert recorder.call("squeue")["argv"] == [
        "--all",
        "--noheader",
        "--steps",
        "--jobs=17",
        "--format=%i|%j",
    ]
    assert recorder.call("scancel")["argv"] == ["--quiet", "--signal=TERM", "17.0", "17.2"]
