"""`flexo run` where nothing changes: places, exit codes, failures; what a cluster without flexod gets."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_jobs import SCRIPTS, SOMEBODY, Job, Submit
from thorough import rare

HOSTILE = ["two words", 'quo"tes', "it's", "new\nline", "$HOME `id` \\", "--leader", "--", ""]
FLEXO = Path(sys.executable).parent / "flexo"


@dataclass(frozen=True)
class Jobs:
    """All submitted at once: they do not disturb each other."""

    uneven: Job
    two_gpus: Job
    fails_at_once: Job
    fails_before_the_loop: Job
    fails_halfway: Job
    fails_in_the_loop: Job
    no_such_command: Job
    no_horovod: Job
    no_flexod: Job


@pytest.fixture(scope="module")
def jobs(submit: Submit) -> Jobs:
    pair = ("-n", "2", "--gpus-per-task=1")
    return Jobs(
        uneven=submit("rigid.py", *HOSTILE, options=("-N", "2", "-n", "3", "--gpus-per-task=1")),
        two_gpus=submit("rigid.py", options=("-n", "2", "--gpus-per-task=2", "-N", "1")),
        fails_at_once=submit("counting.py", "--fail", "at once", options=pair),
        fails_before_the_loop=submit(
            "counting.py", "--fail", "before the loop", "--fail-on-rank", "1", options=pair
        ),
        fails_halfway=submit("rigid.py", "--fail-on-rank", "1", options=pair),
        fails_in_the_loop=submit("counting.py", "--fail", "in the loop"),
        no_such_command=submit("counting.py", launch=f"{quote(FLEXO)} run /no/such/program"),
        no_horovod=submit("counting.py", options=pair, launch=f"{quote(FLEXO)} run sh -c 'echo worker here'"),
        no_flexod=submit(
            "counting.py", "--batches", "80", elastic="1-4", environment=("FLEXO_DAEMON=127.0.0.1:9",)
        ),
    )


def quote(path: str | Path) -> str:
    """`path` for a shell: the folder of this checkout may have any name."""
    return shlex.quote(str(path))


def rigid(core: str) -> str:
    """As a user would start it, in the job's folder."""
    program = f"{quote(sys.executable)} {quote(SCRIPTS / 'rigid.py')}"
    return f"{quote(FLEXO)} run {core} {program} --log-dir $PWD/logs"


def copy_of_horovods_python(folder: Path) -> None:
    """The package as it is without anything that was compiled."""
    spec = importlib.util.find_spec("horovod")
    assert spec is not None
    assert spec.origin is not None
    without = shutil.ignore_patterns("*.so", "metadata.json", "__pycache__")
    shutil.copytree(Path(spec.origin).parent, folder / "horovod", ignore=without)


@pytest.mark.thorough
def test_workers_of_uneven_nodes_know_their_places(jobs: Jobs) -> None:
    done = sorted(jobs.uneven.check_done(3), key=lambda event: event["rank"])
    assert done[0]["ranks"] == [0, 1, 2]
    assert done[0]["hosts"] == ["t1", "t1", "t2"]
    assert [event["local_rank"] for event in done] == [0, 1, 0]
    assert [event["local_size"] for event in done] == [2, 2, 1]
    assert [event["cross_rank"] for event in done] == [0, 0, 1]
    assert [event["cross_size"] for event in done] == [2, 1, 2]


def test_the_script_gets_its_arguments_as_they_were_given(jobs: Jobs) -> None:
    assert all(event["argv"] == HOSTILE for event in jobs.uneven.check_done(3))


def test_a_worker_with_two_gpus_sees_its_own_two(jobs: Jobs) -> None:
    done = jobs.two_gpus.check_done(2)
    assert sorted(event["gpus"] for event in done) == ["0,1", "2,3"]


@pytest.mark.native
def test_a_job_trains_the_same_with_and_without_horovods_native_library(
    submit: Submit, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of two ranks: a sum of two is the same in any order, bit for bit."""
    pair = ("-n", "2", "--gpus-per-task=1")
    python_only = tmp_path_factory.mktemp("python_only")
    copy_of_horovods_python(python_only)
    on_horovod = submit("rigid.py", options=pair, launch=rigid("--core=horovod"))
    no_native_library = submit(
        "rigid.py", options=pair, launch=rigid("--core torch"), environment=(f"PYTHONPATH={python_only}",)
    )
    theirs, ours = on_horovod.check_done(2), no_native_library.check_done(2)
    assert ours[0]["parameters"] == theirs[0]["parameters"]
    assert not any("python_only" in event["horovod"] for event in theirs)
    assert all("python_only" in event["horovod"] for event in ours)


@pytest.mark.parametrize(
    "name", [rare("fails_at_once"), "fails_before_the_loop", rare("fails_halfway"), "fails_in_the_loop"]
)
def test_the_scripts_exit_code_is_the_jobs(jobs: Jobs, name: str) -> None:
    job: Job = getattr(jobs, name)
    assert job.wait() == 3, job.output()
    job.check_nothing_left()


def test_a_command_that_does_not_exist_ends_like_in_a_shell(jobs: Jobs) -> None:
    assert jobs.no_such_command.wait() == 127
    assert "/no/such/program cannot be run" in jobs.no_such_command.output()


@pytest.mark.thorough
def test_a_program_without_horovod_runs_once_for_every_task(jobs: Jobs) -> None:
    assert jobs.no_horovod.wait() == 0
    assert jobs.no_horovod.output().count("worker here") == 2


def test_without_flexod_it_trains_at_its_base_size_and_says_so_once(jobs: Jobs) -> None:
    jobs.no_flexod.check_finished()
    assert jobs.no_flexod.sizes() == [1]
    assert jobs.no_flexod.output().count("no flexod at 127.0.0.1:9") == 1
    assert jobs.no_flexod.steps_committed() == list(range(1, 81))


def test_an_ordinary_user_can_run_an_elastic_job(submit: Submit) -> None:
    job = submit("counting.py", elastic="1-2", user=SOMEBODY)
    job.wait_for_size(2)
    job.stop()
    job.check_finished()
    job.check_steps()
