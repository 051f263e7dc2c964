"""Training jobs on a real YARN: submitted, grown, shrunk for others, and ended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from applications import SMALL_MIB, Application, wait_for
from thorough import rare
from yarn_jobs import ENVIRONMENT, FLEXO, SCRIPTS, YarnJob, submit

from flexo_lab.yarn import YarnLab, wait_for_nodes
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records
from flexo_yarn.application_master import Ask


@pytest.fixture
def flexod(lab: YarnLab) -> Iterator[YarnLab]:
    """The lab, with flexod."""
    lab.start_flexod()
    yield lab
    lab.start_flexod()


def check_total(job: YarnJob) -> None:
    """Each batch counts once: the state that all share is a sum over them."""
    for event in job.events("done"):
        assert event["total"] == sum(range(event["steps"])), event


def ordinary_with_gpus(lab: YarnLab) -> Application:
    """An ordinary application that asks for three GPUs, and gets them.

    `make bench-yarn` measures how soon. YARN kills what has not made room 15 s after its notice, and then
    steps are lost.
    """
    ordinary = Application.submit(lab, "default", user="games")
    ordinary.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 3)))
    ordinary.wait_until("its container", lambda: ordinary.held)
    return ordinary


@pytest.mark.thorough
def test_a_job_of_one_size_trains_on_gpus_of_its_own_and_its_output_is_collected(
    lab: YarnLab, tmp_path: Path
) -> None:
    job = submit(lab, tmp_path, "counting.py", "--batches", "30", options=("--workers", "6", "--gpus", "1"))
    job.check_finished()
    check_total(job)
    seen = {(event["node"], event["gpus"]) for event in job.events("before")}
    assert len(seen) == 6, seen  # no two workers of a node have the same GPU
    logs = lab.layout.directory / "logs"
    wait_for(
        "YARN's collection of logs",
        lambda: list(logs.rglob(f"*{records.application_text(job.application)}*/*")),
    )


@pytest.mark.parametrize(("moment", "code"), [rare("at once", 3), ("in the loop", 3)])
def test_a_script_that_fails_ends_the_application_with_its_exit_code(
    lab: YarnLab, tmp_path: Path, moment: str, code: int
) -> None:
    job = submit(lab, tmp_path, "counting.py", "--fail", moment, options=("--workers", "2"))
    report = job.wait()
    assert (report.state, report.final_status) == (pb.FINISHED, pb.APP_FAILED)
    assert str(code) in report.diagnostics
    job.check_nothing_left()


@pytest.mark.thorough
def test_python_comes_in_an_archive(lab: YarnLab, tmp_path: Path) -> None:
    """The archive's Python is a script that runs the tests' own: a whole PyTorch would be gigabytes."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(ENVIRONMENT)}/bin/python "$@"\n')
    python.chmod(0o755)
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "bin", "bin")
    job = submit(lab, tmp_path, "counting.py", "--batches", "5", options=("--workers", "2"), env=str(archive))
    job.check_finished()


def test_a_job_grows_and_shrinks_in_time_for_an_ordinary_application(flexod: YarnLab, tmp_path: Path) -> None:
    job = submit(flexod, tmp_path, "counting.py", elastic="2-8")
    job.wait_for_size(8)
    ordinary = ordinary_with_gpus(flexod)
    job.wait_until("fewer workers", lambda: job.sizes()[-1] < 8)
    job.stop()
    job.check_finished()
    check_total(job)
    job.check_steps()
    ordinary.end()


@pytest.mark.parametrize(
    "launcher",
    [["torchrun", "--nproc-per-node=2"], rare(["python"])],
)
def test_a_script_of_torch_distributed_grows_and_shrinks(
    flexod: YarnLab, tmp_path: Path, launcher: list[str]
) -> None:
    options = "--gpus", "1", "--memory", "2G", "--file", "generations.py"
    job = submit(flexod, tmp_path, "plain_ddp.py", elastic="2-6", options=options, launcher=launcher)

    def size() -> int:
        """Of the last step with effect."""
        steps = [(each["time"], each["size"]) for each in job.events("step") if each["world"]]
        return max(steps, default=(0, 0))[1]

    job.wait_until("six workers", lambda: size() == 6)
    ordinary = ordinary_with_gpus(flexod)
    job.wait_until("fewer workers", lambda: size() < 6)
    job.stop()
    assert job.wait().final_status == pb.APP_SUCCEEDED, job.output()[-6000:]
    ordinary.end()


@pytest.mark.thorough
def test_without_flexod_yarn_itself_takes_satellites_and_the_job_lets_them_go_as_planned(
    flexod: YarnLab, tmp_path: Path
) -> None:
    job = submit(flexod, tmp_path, "counting.py", elastic="2-8")
    job.wait_for_size(8)
    flexod.stop_flexod(kill=True)
    ordinary = ordinary_with_gpus(flexod)
    job.wait_until("fewer workers", lambda: job.sizes()[-1] < 8)
    job.stop()
    job.check_finished()
    check_total(job)
    job.check_steps()
    ordinary.end()


def test_who_kills_the_application_leaves_nothing(flexod: YarnLab, tmp_path: Path) -> None:
    job = submit(flexod, tmp_path, "counting.py", elastic="2-4")
    job.wait_for_size(4)
    Application.kill(flexod, job.application)
    assert job.wait().state == pb.KILLED
    job.check_nothing_left()


@pytest.mark.thorough
def test_a_resourcemanager_that_is_killed_costs_a_job_nothing(flexod: YarnLab, tmp_path: Path) -> None:
    job = submit(flexod, tmp_path, "counting.py", elastic="2-4")
    job.wait_for_size(4)
    flexod.kill("rm")
    flexod.start("rm")
    wait_for_nodes(flexod)
    went = time.time()
    job.wait_until("batches", lambda: any(event["time"] > went for event in job.events("commit")))
    assert job.sizes() == [2, 4]
    job.stop()
    job.check_finished()
    check_total(job)
    job.check_steps()


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_nodes_that_come_back_late_to_a_restarted_resourcemanager_cost_no_worker(
    flexod: YarnLab, tmp_path: Path
) -> None:
    """NodeManagers look for it every 30 s by default: one node has the base, the other one satellites."""
    job = submit(flexod, tmp_path, "counting.py", elastic="2-4")
    job.wait_for_size(4)
    for late in flexod.spec.node_names:
        (manager,) = flexod.processes_of(late)
        manager.suspend()
        try:
            flexod.kill("rm")
            flexod.start("rm")
            wait_for("the other node", lambda: flexod_sees(flexod, nodes=1))
            time.sleep(12)  # flexod looks every 5 s at the latest
        finally:
            manager.resume()
        wait_for_nodes(flexod)
        wait_for("all nodes", lambda: flexod_sees(flexod, nodes=2))
        time.sleep(6)
        assert job.sizes() == [2, 4], f"{late} was late"
    job.stop()
    job.check_finished()
    check_total(job)
    job.check_steps()


def flexod_sees(lab: YarnLab, nodes: int) -> bool:
    """Whether flexod has looked since, and has seen so many nodes."""
    shown = lab.run([FLEXO, "status", "--json"], check=False)
    return shown.returncode == 0 and bool(json.loads(shown.stdout)["nodes"] == nodes)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--elastic", "4-2"), "--elastic=4-2"),
        (("--elastic", "0-2"), "--elastic=0-2"),
        (("--elastic-batch", "8-16"), "--elastic"),
        (("--memory", "much"), "--memory=much"),
        (("--gpus", "99"), "99 GPUs"),
        (("--queue", "nowhere"), "nowhere"),
        (("--queue", "root.flex"), "satellites"),
        (("--file", "/no/such/file"), "/no/such/file"),
        (("--export", "1=2"), "--export=1=2"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    lab: YarnLab, arguments: tuple[str, ...], named: str
) -> None:
    command = [FLEXO, "yarn", "submit", *arguments, "--env", ENVIRONMENT, "--", "python", "counting.py"]
    done = lab.run(command, check=False, cwd=SCRIPTS)
    assert done.returncode in (1, 2)
    assert named in done.stderr


def test_an_applicationmaster_that_is_killed_is_replaced_and_no_worker_notices(
    flexod: YarnLab, tmp_path: Path
) -> None:
    job = submit(flexod, tmp_path, "counting.py", elastic="3-8")  # two containers of the base are on one node
    job.wait_for_size(8)
    workers, (before,) = job.workers(), job.masters()
    os.kill(before, signal.SIGKILL)
    job.wait_until("another attempt", lambda: job.report().current_attempt_id.attempt_id == 2)
    wait_for("its process", lambda: len(masters := job.masters()) == 1 and masters != [before])
    went = time.time() + 5
    job.wait_until("batches", lambda: any(event["time"] > went for event in job.events("commit")))
    assert job.workers() == workers, job.findings()
    ordinary = ordinary_with_gpus(flexod)
    job.wait_until("fewer workers", lambda: job.sizes()[-1] < 8)
    job.stop()
    job.check_finished()
    check_total(job)
    job.check_steps()
    ordinary.end()


@pytest.mark.thorough
def test_a_container_that_is_killed_is_replaced_in_the_base_and_given_back_in_a_satellite(
    flexod: YarnLab, tmp_path: Path
) -> None:
    job = submit(flexod, tmp_path, "counting.py", elastic="2-8")
    job.wait_for_size(8)
    os.kill(job.supervisors(b"--grant")[0], signal.SIGKILL)
    job.wait_until("fewer workers", lambda: job.sizes()[-1] < 8)
    os.kill(job.supervisors(b"--base")[0], signal.SIGKILL)
    job.wait_until("another container", lambda: len(job.supervisors(b"--again")) == 1)
    size = job.sizes()[-1]
    job.wait_until("its worker", lambda: job.sizes()[-1] != size)
    job.stop()
    job.check_finished()
    check_total(job)


def end_node(lab: YarnLab, host: str) -> None:
    """Everything on a node ends at once, as when it loses its power: its NodeManager, and all containers."""
    lab.kill(
        next(
            name for number, name in enumerate(lab.spec.node_names, 1) if lab.yarn_layout.node(number) == host
        )
    )
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("NM_HOST") == host:
                process.kill()


@pytest.mark.thorough
def test_a_job_whose_applicationmasters_node_is_lost_trains_again(flexod: YarnLab, tmp_path: Path) -> None:
    job = submit(flexod, tmp_path, "counting.py", elastic="2-4")
    job.wait_for_size(4)
    lost = job.report().host
    try:
        end_node(flexod, lost)
        job.wait_until("another attempt", lambda: job.report().current_attempt_id.attempt_id == 2, 240)
        since = time.time()
        job.wait_until("a whole base, and growth", lambda: len(job.committing(4, since)) == 4, bound_s=240)
        job.stop()
        job.check_finished()
    finally:
        for node in flexod.spec.node_names:
            if not flexod.processes_of(node):
                flexod.start(node)
        wait_for_nodes(flexod)
