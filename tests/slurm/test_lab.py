"""The lab is the real cluster that it says it is, and nothing of it stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from thorough import rare

from flexo_lab import (
    Lab,
    LabBusy,
    LabCommandFailed,
    LabError,
    LabExists,
    LabSpec,
    NoSuchLab,
    Profile,
    all_labs,
    bring_up,
    take_down,
)
from flexo_lab.layout import Layout
from flexo_lab.status import status_of

LabFactory = Callable[..., Lab]
FLEXO = str(Path(sys.executable).parent / "flexo")


def submit(lab: Lab, script: str, *options: str, user: str = "games") -> str:
    """Submit a batch script; the job's id."""
    done = lab.run(["sbatch", "--parsable", *options], user=user, stdin=f"#!/bin/sh\n{script}\n")
    return done.stdout.strip()


def state_of(lab: Lab, job: str) -> str:
    text = lab.run(["scontrol", "--oneliner", "show", "job", job]).stdout
    found = re.search(r"JobState=(\S+)", text)
    assert found
    return found[1]


def wait_for(what: Callable[[], bool], seconds: float = 90) -> float:
    """Wait until it is so; how long that took."""
    since = time.monotonic()
    while not what():
        assert time.monotonic() - since < seconds, f"not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - since


def processes_naming(directory: Path) -> dict[int, str]:
    """What /proc shows of a lab, without the lab's own way of looking: pid and command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{directory}/".encode() in command + environment:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode()
    return found


def test_a_lab_comes_up_with_all_nodes_idle_and_their_gpus(lab: Lab) -> None:
    status = status_of(lab.name)
    assert [(node.name, node.state, node.gpus) for node in status.nodes] == [
        ("t1", "idle", 4),
        ("t2", "idle", 4),
        ("t3", "idle", 4),
        ("i1", "idle", 4),
    ]
    assert status.missing == ()


def test_the_partitions_are_tiered_and_preempted_as_the_design_says(lab: Lab) -> None:
    partitions = {each.name: each for each in status_of(lab.name).partitions}
    assert {
        name: (each.priority_tier, each.preempt_mode, each.nodes) for name, each in partitions.items()
    } == {
        "infer": (20, "OFF", "i1"),
        "train": (10, "OFF", "t[1-3]"),
        "flex": (1, "CANCEL", "t[1-3]"),
        "borrowed": (1, "REQUEUE", ""),
    }


def test_a_job_of_an_ordinary_user_gets_the_gpus_that_it_asked_for(lab: Lab) -> None:
    command = ["srun", "--gres=gpu:2", "sh", "-c", "id -un; echo $CUDA_VISIBLE_DEVICES"]
    assert lab.run(command, user="games").stdout.split() == ["games", "0,1"]


def test_jobs_on_one_node_get_different_gpus(lab: Lab) -> None:
    first = submit(lab, "sleep 60", "-w", "t1", "--gres=gpu:3")
    wait_for(lambda: state_of(lab, first) == "RUNNING")
    second = ["srun", "-w", "t1", "--gres=gpu:1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert lab.run(second, user="games").stdout.strip() == "3"


def test_slurm_itself_takes_a_flex_job_back_and_tells_its_step_first(lab: Lab) -> None:
    told, trapped = lab.scratch / "told", lab.scratch / "trapped"
    trap = f"trap 'touch {told}; exit 0' TERM; touch {trapped}; while :; do sleep 0.1; done"
    flexible = submit(lab, f'srun sh -c "{trap}"', "-p", "flex", "-w", "t1", "--gres=gpu:4")
    wait_for(lambda: state_of(lab, flexible) == "RUNNING")
    wait_for(trapped.exists)
    since = time.monotonic()
    rigid = submit(lab, "sleep 60", "-p", "train", "-w", "t1", "--gres=gpu:4")
    wait_for(lambda: state_of(lab, rigid) == "RUNNING")
    assert told.exists()
    assert state_of(lab, flexible) in ("COMPLETED", "PREEMPTED", "CANCELLED")
    assert time.monotonic() - since < 20  # the grace time


def test_an_elastic_request_reaches_the_controller(lab: Lab) -> None:
    job = submit(lab, "sleep 5", "-n", "2", "--gpus-per-task=1", "--elastic=2-8")
    assert "flexo{workers=2-8}" in lab.run(["scontrol", "show", "job", job]).stdout


def test_a_failing_command_says_what_slurm_said(lab: Lab) -> None:
    with pytest.raises(LabCommandFailed, match=r"sbatch .*status 1: .*invalid partition"):
        submit(lab, "true", "-p", "nowhere")


def test_a_name_that_is_up_is_refused_and_the_lab_stays_up(lab: Lab) -> None:
    with pytest.raises(LabExists, match=f"'{lab.name}' is up already"):
        bring_up(LabSpec(name=lab.name))
    assert status_of(lab.name).missing == ()


def test_flexod_runs_as_slurm_user_and_comes_back_after_a_kill(lab: Lab) -> None:
    (process,) = lab.flexod_processes()
    assert process.username() == "slurm"
    lab.restart_flexod(kill=True)
    (successor,) = lab.flexod_processes()
    assert successor.pid != process.pid


def test_the_shell_runs_one_command_on_the_lab(lab: Lab) -> None:
    done = subprocess.run(
        [FLEXO, "lab", "shell", lab.name, "--", "sinfo", "--noheader", "--format=%R"],
        capture_output=True,
        text=True,
        env={**os.environ, "SLURM_CONF": "/nowhere/slurm.conf"},
        check=True,
    )
    assert done.stdout.split() == ["train", "flex", "infer", "borrowed"]


def test_status_as_json_says_where_everything_is(lab: Lab) -> None:
    done = subprocess.run(
        [FLEXO, "lab", "status", lab.name, "--json"], capture_output=True, text=True, check=True
    )
    status = json.loads(done.stdout)
    assert status["environment"]["SLURM_CONF"] == str(lab.directory / "slurm.conf")
    assert status["flexod"] == {"address": lab.daemon_address, "alive": True}
    assert len(status["nodes"]) == 4


def test_two_labs_live_side_by_side_and_one_goes_without_the_other(lab: Lab, make_lab: LabFactory) -> None:
    other = make_lab(nodes=1, gpus_per_node=1, infer_nodes=0, gpu_type="v100", flexod=False)
    assert not lab.ports.all() & other.ports.all()
    job = submit(other, "sleep 60", "--gres=gpu:v100:1")
    wait_for(lambda: state_of(other, job) == "RUNNING")
    assert lab.run(["squeue", "--noheader"]).stdout == ""
    other.down()
    assert [node.state for node in status_of(lab.name).nodes] == ["idle"] * 4
    assert lab.run(["srun", "hostname"], user="news").returncode == 0


def test_down_leaves_no_process_and_no_file_of_a_lab_with_jobs(make_lab: LabFactory) -> None:
    lab = make_lab(nodes=2, infer_nodes=0, flexod=False)
    deaf = "trap '' TERM INT HUP; while :; do sleep 1; done"
    pid_file = lab.scratch / "escaped"
    escape = f"env -i setsid sh -c 'echo $$ >{pid_file}; {deaf.replace(chr(39), chr(34))}' &"
    for script in (deaf, f'srun sh -c "{deaf}"', f"{escape} sleep 600"):
        job = submit(lab, script, "--gres=gpu:1")
        wait_for(lambda job=job: state_of(lab, job) == "RUNNING")  # type: ignore[misc]
    reader = subprocess.Popen(["tail", "-f", lab.layout.logs / "slurmctld.log"], stdout=subprocess.DEVNULL)
    wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
    escaped = int(pid_file.read_text())
    assert len(processes_naming(lab.directory)) > 5

    lab.down()

    reader.wait(timeout=60)
    assert processes_naming(lab.directory) == {}
    wait_for(lambda: not Path(f"/proc/{escaped}").exists())  # init collects what has ended
    assert not lab.directory.exists()
    assert lab.name not in all_labs()
    with pytest.raises(NoSuchLab):
        Lab.load(lab.name)
    lab.down()  # again: nothing to do, no error


def _heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and so would a lab of tests that run there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def half_up() -> Iterator[tuple[subprocess.Popen[bytes], Layout]]:
    """`flexo lab up` of a lab with many nodes, caught when slurmctld is there and slurmds are coming."""
    layout = Layout.of(f"test-{os.getpid()}-half")
    command = [FLEXO, "lab", "up", layout.name, "--nodes", "24", "--no-flexod"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_heed_interrupts
    )
    try:
        wait_for(lambda: any("slurmd -f" in text for text in processes_naming(layout.directory).values()))
        yield process, layout
    finally:
        process.kill()
        process.wait()
        take_down(layout.name)


@pytest.mark.parametrize("lost", ["nothing", rare("lab.json"), rare("slurm.conf"), "all files"])
def test_down_clears_away_what_a_killed_up_left(
    make_lab: LabFactory, half_up: tuple[subprocess.Popen[bytes], Layout], lost: str
) -> None:
    process, layout = half_up
    process.kill()
    process.wait()
    assert processes_naming(layout.directory)
    if lost == "all files":
        # more than once, because what runs there still writes there
        wait_for(lambda: subprocess.run(["rm", "-rf", layout.directory]).returncode == 0)
    elif lost != "nothing":
        (layout.directory / lost).unlink()

    assert take_down(layout.name) is True

    assert processes_naming(layout.directory) == {}
    assert not layout.directory.exists()


def test_a_lab_that_is_coming_up_is_neither_brought_up_nor_taken_down_by_others(
    make_lab: LabFactory, half_up: tuple[subprocess.Popen[bytes], Layout]
) -> None:
    process, layout = half_up
    process.send_signal(signal.SIGSTOP)  # it stays half up
    try:
        with pytest.raises(LabBusy, match="just being brought up"):
            bring_up(LabSpec(name=layout.name))
        with pytest.raises(LabBusy, match="just being brought up"):
            take_down(layout.name, patience_s=0.2)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, rare(signal.SIGTERM), rare(signal.SIGHUP)])
def test_an_interrupted_up_takes_the_lab_down_again(
    make_lab: LabFactory, half_up: tuple[subprocess.Popen[bytes], Layout], number: signal.Signals
) -> None:
    process, layout = half_up
    process.send_signal(number)
    assert process.wait(timeout=120) == 130
    assert processes_naming(layout.directory) == {}
    assert not layout.directory.exists()


def test_up_clears_away_what_a_killed_up_of_the_same_name_left(
    make_lab: LabFactory, half_up: tuple[subprocess.Popen[bytes], Layout]
) -> None:
    process, layout = half_up
    process.kill()
    process.wait()
    fresh = bring_up(LabSpec(name=layout.name, nodes=1, infer_nodes=0, flexod=False))
    assert [node.name for node in status_of(fresh.name).nodes] == ["t1"]


SPY = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { close(open("%s", O_CREAT | O_WRONLY, 0644)); }
"""


def bring_up_again(name: str) -> None:
    bring_up(LabSpec(name=name))


def ask_slurm(name: str) -> None:
    Lab.load(name).run(["squeue"], check=False)


@pytest.mark.parametrize("act", [take_down, bring_up_again, status_of, ask_slurm])
def test_root_loads_no_plugin_of_a_user_who_made_the_labs_folder_first(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]
) -> None:
    """He has a slurm.conf, a library where it says that plugins are, and a process called slurmctld."""
    loaded = tmp_path / "loaded"
    with tempfile.TemporaryDirectory(prefix="fl-", dir="/var/tmp") as place:
        Path(place).chmod(0o1777)
        monkeypatch.setenv("FLEXO_LABS", f"{place}/labs")
        stolen = Path(place, "labs", "lab")
        (stolen / "scratch").mkdir(parents=True)
        (stolen / "spy.c").write_text(SPY % loaded)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", stolen / "auth_munge.so", stolen / "spy.c"], check=True
        )
        conf = lab.layout.slurm_conf.read_text() + f"PluginDir={stolen}\n"
        (stolen / "slurm.conf").write_text(conf)
        record = replace(lab.record, spec=replace(lab.spec, name="lab"))
        record.write(stolen / "lab.json")
        shutil.copy("/bin/sleep", stolen / "slurmctld")
        for path in (stolen.parent, stolen, *stolen.iterdir()):
            shutil.chown(path, "games")
        his = subprocess.Popen([stolen / "slurmctld", "300"], user="games", cwd=stolen)
        try:
            refused = ""
            try:
                act("lab")
            except LabError as error:
                refused = str(error)
            assert not loaded.exists()
            assert "belongs to games" in refused
            assert his.poll() is None
        finally:
            his.kill()
            his.wait()


def test_production_has_slurms_default_scheduler_settings(make_lab: LabFactory) -> None:
    lab = make_lab(nodes=1, infer_nodes=0, profile=Profile.PRODUCTION, flexod=False)
    shown = lab.run(["scontrol", "show", "config"]).stdout
    assert re.search(r"^SchedulerParameters\s*= \(null\)$", shown, re.MULTILINE)
    assert re.search(r"^SchedulerType\s*= sched/backfill$", shown, re.MULTILINE)
    assert re.search(r"^KillWait\s*= 30 sec$", shown, re.MULTILINE)
    lab.down()


@pytest.fixture(scope="module")
def accounting(make_lab: LabFactory) -> Iterator[Lab]:
    lab = make_lab(nodes=1, infer_nodes=0, profile=Profile.ACCOUNTING, flexod=False)
    yield lab
    lab.down()


def test_accounting_knows_its_users_and_refuses_others(accounting: Lab) -> None:
    job = submit(accounting, "true", "--qos=urgent", user="games")
    assert "Account=research QOS=urgent" in accounting.run(["scontrol", "show", "job", job]).stdout
    with pytest.raises(LabCommandFailed, match="Invalid account"):
        submit(accounting, "true", user="lp")


def test_an_operator_extends_and_cancels_jobs_of_others_but_may_not_edit_partitions(accounting: Lab) -> None:
    job = submit(accounting, "sleep 600", "--time=5", user="games")
    wait_for(lambda: state_of(accounting, job) == "RUNNING")
    with pytest.raises(LabCommandFailed, match="Invalid user id"):
        accounting.run(["scontrol", "update", f"JobId={job}", "TimeLimit=10"], user="news")

    accounting.run(["scontrol", "update", f"JobId={job}", "TimeLimit=10"], user="daemon")
    assert "TimeLimit=00:10:00" in accounting.run(["scontrol", "show", "job", job]).stdout
    with pytest.raises(LabCommandFailed, match="Invalid user id"):
        accounting.run(["scontrol", "update", "PartitionName=borrowed", "Nodes=t1"], user="daemon")
    accounting.run(["scancel", job], user="daemon")
    wait_for(lambda: state_of(accounting, job) == "CANCELLED")


def test_what_ran_is_in_the_database(accounting: Lab) -> None:
    job = submit(accounting, "true", "--wait", user="news")
    command = [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "-j",
        job,
        "--format=User,Account,State",
    ]
    wait_for(lambda: accounting.run(command).stdout.strip() == "news|teaching|COMPLETED")
