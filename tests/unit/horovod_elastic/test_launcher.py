"""How `flexo run` keeps the agents of the base: which ends are the job's, and which start an agent again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from says import says

from flexo_protos import lease_place
from flexo_protos.leader_leases.lease import LeaderLease, StoreUnavailable
from flexo_protos.resources import Resources
from horovod_elastic import accelerate_launch, launch_commands, launcher, wire
from horovod_elastic.core import choice
from horovod_elastic.election.lease_client import LeaseClient
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan, Site
from horovod_elastic.launcher import BaseAgents
from horovod_elastic.leader import profiling
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import JobControl, Platform, Refused
from horovod_elastic.platforms.slurm import commands
from horovod_elastic.platforms.slurm.platform import SlurmPlatform

pytestmark = pytest.mark.processes

BOUND_S = 60.0


@dataclass
class Store:
    """Answers with this holder; None: it is away."""

    holder: str | None = ""

    def look(self) -> LeaderLease:
        if self.holder is None:
            raise StoreUnavailable("away")
        return LeaderLease(self.holder, "", 1, 0, 1.0)


@dataclass
class Slurm:
    """Has the next script of a node run where the agent would."""

    scripts: dict[str, list[str]]
    deaf: bool = False
    name: str = "Slurm"
    started: list[tuple[str, bool]] = field(default_factory=list)
    steps: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> subprocess.Popen[bytes]:
        self.started.append((node, again))
        scripts = self.scripts[node]
        step = subprocess.Popen(["sh", "-c", scripts.pop(0) if len(scripts) > 1 else scripts[0]])
        self.steps.append(step)
        return step

    def terminate_base(self) -> None:
        if self.deaf:
            raise Refused("scancel: no answer")
        for step in self.steps:
            step.terminate()


def run(store: Store, **scripts: list[str]) -> tuple[int, Slurm]:
    slurm = Slurm(scripts)
    nodes = tuple(BaseNode(node, 1) for node in scripts)
    return BaseAgents(nodes, cast(JobControl, slurm), cast(LeaseClient, store)).run(), slurm


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(launcher, "OTHERS_END_WITHIN_S", 1.0)
    monkeypatch.setattr(launcher, "TERMINATED_WITHIN_S", 0.5)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def once_there(path: Path) -> str:
    """Shell: wait for the file."""
    return f"while [ ! -e {path} ]; do sleep 0.05; done"


@pytest.mark.parametrize("code", [0, 3, 137])
def test_the_jobs_exit_code_is_what_its_agents_end_with(code: int, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    exit_code, slurm = run(
        Store(wire.over(code)),
        n1=[f"touch {one}; {once_there(two)}; exit {code}"],
        n2=[f"touch {two}; {once_there(one)}; exit {code}"],
    )
    assert exit_code == code
    assert len(slurm.started) == 2


def test_an_agent_that_was_killed_is_started_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ends = tmp_path / "ends"
    exit_code, slurm = run(Store("n2-17-ab"), n1=["kill -KILL $$", f"touch {ends}"], n2=[once_there(ends)])
    assert exit_code == 0
    assert slurm.started.count(("n1", True)) == 1
    said = capsys.readouterr().err
    assert says(said, "n1", "exit code 137", "started again", "1 of 3")


def test_an_agent_that_ends_again_and_again_is_given_up_and_the_others_are_ended() -> None:
    exit_code, slurm = run(Store(""), n1=["exit 70"], n2=["exec sleep 60"])
    assert exit_code == 70
    assert [node for node, _ in slurm.started].count("n1") == 4


def test_an_agent_that_says_it_cannot_work_is_not_started_again() -> None:
    exit_code, slurm = run(Store(""), n1=["sleep 0.5; exit 78"], n2=["exec sleep 60"])
    assert exit_code == 1
    assert [node for node, _ in slurm.started].count("n1") == 1


@pytest.mark.parametrize("holder", ["n2-17-ab", None])
def test_where_an_agent_cannot_work_for_now_the_node_begins_again(holder: str | None) -> None:
    exit_code, slurm = run(Store(holder), n1=["exit 75", "exit 0"])
    assert exit_code == 0
    assert slurm.started == [("n1", False), ("n1", True)]


def test_an_exit_code_of_the_script_that_agents_use_too_is_the_scripts() -> None:
    exit_code, _ = run(Store(wire.over(78)), n1=["exit 78"])
    assert exit_code == 78


@pytest.mark.parametrize(("script", "starts"), [("exit 3", 1), ("kill -KILL $$", 4)])
def test_without_word_of_the_jobs_end_only_a_signal_means_that_the_agent_was_killed(
    script: str, starts: int
) -> None:
    exit_code, slurm = run(Store(None), n1=[script])
    assert exit_code in (3, 137)
    assert len(slurm.started) == starts


def test_an_agent_that_cannot_be_started_for_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, failures = Slurm.launch_base, [BlockingIOError("no more processes")]

    def launch_base(self: Slurm, *args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if failures:
            raise failures.pop()
        return launch(self, *args, **options)

    monkeypatch.setattr(Slurm, "launch_base", launch_base)
    code, slurm = run(Store(), n1=["exit 0"])
    assert (code, slurm.started) == (0, [("n1", True)])


def test_an_error_beside_an_agent_ends_the_job_instead_of_leaving_it_until_its_time_limit(
    tmp_path: Path,
) -> None:
    class Odd(Store):
        def look(self) -> LeaderLease:
            raise KeyError("nobody foresaw this")

    there = tmp_path / "there"
    code, slurm = run(Odd(), n1=[f"{once_there(there)}; exit 137"], n2=[f"touch {there}; exec sleep 60"])
    assert code == 1
    assert sorted(step.wait() for step in slurm.steps) == [-signal.SIGTERM, 137]


AGAINST_A_WALL = """
import sys
sys.path[:0] = {tests!r}
import test_launcher as t
t.launcher.FIRST_PAUSE_S = 0.01
sys.exit(t.run(t.Store(""), n1=["exit 137"] * 2 + ["exit 0"])[0])
"""


@pytest.mark.parametrize("wall", ["a full disk", "a pipe that nobody reads", "closed"])
def test_output_that_cannot_be_written_neither_ends_nor_hangs_a_job(wall: str) -> None:
    """Each agent that is started again is said; the third one ends with 0."""
    code = AGAINST_A_WALL.format(tests=[str(folder) for folder in Path(__file__).parents[:2]])
    unread, stderr = os.pipe()
    if wall == "a full disk":
        stderr = os.open("/dev/full", os.O_WRONLY)
    elif wall == "a pipe that nobody reads":
        os.set_blocking(stderr, False)
        while True:
            try:
                os.write(stderr, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(stderr, True)
    else:
        os.close(unread)
        unread = -1
    ended = subprocess.run([sys.executable, "-c", code], stderr=stderr, timeout=BOUND_S, check=False)
    assert ended.returncode == 0
    for descriptor in {unread, stderr} - {-1}:
        os.close(descriptor)


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_passed_on_and_is_the_exit_code(
    number: int, code: int, deaf: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trapped = tmp_path / "trapped"
    slurm = Slurm({"n1": [f"trap 'exit 143' TERM; touch {trapped}; sleep 60 & wait"]}, deaf)
    agents = BaseAgents((BaseNode("n1", 1),), cast(JobControl, slurm), cast(Any, Store("")))
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(agents.run()))
    thread.start()
    wait_until(lambda: slurm.steps and trapped.exists())
    agents.terminate(number)
    thread.join(BOUND_S)
    assert codes == [code]
    assert ("Ctrl-C" in capsys.readouterr().err) is (number == signal.SIGINT)


def test_an_agent_that_does_not_end_with_the_others_is_ended(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    exit_code, slurm = run(
        Store(wire.over(0)), n1=[once_there(deaf)], n2=[f"trap '' TERM; touch {deaf}; exec sleep 600"]
    )
    assert exit_code == 0
    assert {step.poll() for step in slurm.steps} == {0, -signal.SIGKILL}


def test_a_cluster_without_satellites_for_aggregators_says_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(choice.VARIABLE, choice.SERVICE)
    monkeypatch.setenv(choice.AGGREGATORS_VARIABLE, choice.SATELLITES)
    base = BaseJob("17", 0, (BaseNode("n1", 1),), Resources(1, 1), 1, 4, "")
    plan = JobPlan(base, Site(), "", "127.0.0.1:9", "run://127.0.0.1:9#r7")
    platform = SimpleNamespace(control=lambda *_: SimpleNamespace(name="YARN"))
    with pytest.raises(ValueError, match=r"YARN has no satellites with CPUs only.*own, pool or auto"):
        launcher.keep_agents(cast(Platform, platform), plan, [])


@pytest.mark.parametrize(("text", "daemon"), [("2-2", "127.0.0.1:9"), ("", "")])
def test_of_a_job_of_one_size_flexod_hears_if_it_was_submitted_with_a_range(
    text: str, daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[JobPlan] = []

    class NoAgents:
        def __init__(self, *_: object) -> None: ...

        def run(self) -> int:
            return 0

    monkeypatch.setattr(launcher, "BaseAgents", NoAgents)
    monkeypatch.setattr(SlurmPlatform, "control", lambda _, plan, command: plans.append(plan))
    monkeypatch.setattr(launcher.signal, "signal", lambda *_: None)
    answers = {"squeue": "normal||a100"}
    monkeypatch.setattr(commands, "ask", lambda asked, _: answers.get(asked[0], "NodeAddr=127.0.0.1"))
    monkeypatch.setenv("FLEXO_DAEMON", "127.0.0.1:9")
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "2", "SLURM_NTASKS": "2"}
    platform = registry.find({**job, "SLURM_JOB_GPUS": "0,1", "FLEXO_ELASTIC": text})
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert launcher.run_job(platform, platform.base_job(), []) == 0
    assert os.environ.pop("MASTER_ADDR") == "127.0.0.1", "a node's name may be known to Slurm alone"
    (plan,) = plans
    assert plan.daemon == daemon
    place = lease_place.parse(plan.leases)
    assert place.kind is lease_place.Kind.RUN, "it needs nobody's help to be led"
    assert place.run, "a second `flexo run` of the job begins with term 1 again"


@pytest.mark.parametrize(
    ("arguments", "command", "profiled"),
    [
        (["--no-profile", "--", "train", "--no-profile"], ["train", "--no-profile"], False),
        (["--no-profile", "train"], ["train"], False),
        (["train", "--no-profile"], ["train", "--no-profile"], True),
        (["--", "--no-profile"], ["--no-profile"], True),
    ],
)
def test_no_profile_before_the_command_is_known_to_all_agents_and_after_it_is_the_scripts(
    arguments: list[str], command: list[str], profiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(platform: Platform, base: BaseJob, command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(launcher, "run_job", run)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(profiling.OPT_OUT_VARIABLE, "")
    monkeypatch.setenv(choice.VARIABLE, "")
    for name, value in {"ID": "17", "NODELIST": "n1", "GPUS": "0"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.setenv("FLEXO_ELASTIC", "1-2")
    assert launcher.main(arguments) == 0
    assert commands == [command]
    assert profiling.allowed() is profiled


Launched = list[tuple[BaseJob, list[str]]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """What flexo run would run in an elastic job with two tasks."""
    found: Launched = []

    def run(platform: Platform, base: BaseJob, command: list[str]) -> int:
        found.append((base, command))
        return 0

    monkeypatch.setattr(launcher, "run_job", run)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in [name for name in os.environ if name.startswith(("SLURM_", "FLEXO_"))]:
        del os.environ[name]
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "2", "SLURM_NTASKS": "2"}
    os.environ.update({**job, "SLURM_JOB_GPUS": "0,1", "FLEXO_ELASTIC": "2-4"})
    return found


def test_torchruns_command_is_what_it_would_start_and_its_other_counts_are_said(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "train.py", "--lr=1"]
    assert launcher.main(["--no-profile", *command]) == 0
    ((base, started),) = launched
    assert started == [sys.executable, "-u", "train.py", "--lr=1"]
    assert base.maximum == 4
    assert says(capsys.readouterr().err, "--nproc-per-node=4", "2 tasks")


def test_what_another_launcher_sets_is_in_every_workers_environment(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sharded model keeps the job at its size."""

    def ask(python: str, arguments: object) -> launch_commands.Accelerated:
        return launch_commands.Accelerated(("train.py",), True, (("FSDP_VERSION", "2"),), 2, fixed="FSDP")

    monkeypatch.setattr(accelerate_launch, "ask", ask)
    assert launcher.main(["python", "-m", "accelerate.commands.launch", "--use_fsdp", "train.py"]) == 0
    ((base, started),) = launched
    assert started == ["python", "-u", "train.py"]
    assert (base.minimum, base.maximum, base.elastic) == (2, 2, False)
    assert os.environ["FSDP_VERSION"] == "2"
    assert says(capsys.readouterr().err, "keeps its size", "FSDP")


def test_a_launcher_that_cannot_be_one_of_flexos_is_a_usage_error(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.main(["deepspeed", "train.py"]) == 2
    assert says(capsys.readouterr().err, "flexo run: deepspeed")
    assert launched == []


def test_the_rules_for_batches_and_rates_are_told_to_workers(launched: Launched) -> None:
    assert launcher.main(["--batch-rule=grow", "--scale-lr", "sqrt", "train"]) == 0
    assert launched[0][1] == ["train"]
    assert os.environ["FLEXO_BATCH_RULE"] == "grow"
    assert os.environ["FLEXO_SCALE_LR"] == "sqrt"


@pytest.mark.parametrize(("option", "number"), [("--reproducible", "4"), ("--reproducible=6", "6")])
def test_the_number_of_virtual_workers_is_told_to_all(launched: Launched, option: str, number: str) -> None:
    assert launcher.main([option, "train", "--epochs=3"]) == 0
    assert launched[0][1] == ["train", "--epochs=3"]
    assert os.environ["FLEXO_REPRODUCIBLE"] == number


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch-rule=double"], ["--batch-rule=double", "keep or grow"]),
        (["--scale-lr=cubic"], ["--scale-lr=cubic", "linear or sqrt"]),
        (["--scale-lr=linear"], ["--scale-lr", "--batch-rule=grow"]),
        (["--scale-lr=linear", "--batch-rule=keep"], ["--scale-lr", "--batch-rule=grow"]),
        (["--reproducible", "--batch-rule=keep"], ["--reproducible", "--batch-rule"]),
        (["--reproducible=few"], ["--reproducible=few", "number"]),
        (["--reproducible=0"], ["--reproducible=0", "number"]),
        (["--reproducible="], ["--reproducible=:", "number"]),
        (["--reproducible=1"], ["--reproducible=1", "at least 4", "maximum"]),
        (["--reproducible", "--elastic-unit=2"], ["--reproducible", "--elastic-unit=2", "exclude"]),
    ],
)
def test_rules_that_cannot_be_are_usage_errors(
    options: list[str], words: list[str], launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.main([*options, "train"]) == 2
    assert says(capsys.readouterr().err, *words)
    assert launched == []


@pytest.fixture
def opportunistic(launched: Launched) -> Launched:
    """The same in an opportunistic job."""
    del os.environ["FLEXO_ELASTIC"]
    os.environ["FLEXO_ELASTIC_OPPORTUNISTIC"] = "2-8"
    return launched


def test_an_opportunistic_job_has_a_worker_for_each_of_its_minimum_at_first(
    opportunistic: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"]
    assert launcher.main(command) == 0
    ((base, _),) = opportunistic
    assert (base.opportunistic, base.elastic, base.workers, base.founders) == (True, True, 0, 2)
    assert "--nproc-per-node" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--elastic-unit=2", "--reproducible"])
def test_what_an_opportunistic_job_cannot_keep_is_a_usage_error(
    option: str, opportunistic: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.main([option, "train"]) == 2
    assert says(capsys.readouterr().err, option, "opportunistic", "--elastic")
    assert opportunistic == []


def test_an_opportunistic_job_without_flexod_is_a_usage_error(
    opportunistic: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launcher.main(["train"]) == 0
    ((base, command),) = opportunistic
    monkeypatch.undo()
    monkeypatch.setattr(launcher, "daemon_address", lambda: None)
    with pytest.raises(ValueError, match="FLEXO_DAEMON"):
        launcher.run_job(cast(Platform, None), base, command)


def test_the_size_of_a_unit_is_part_of_the_plan(launched: Launched) -> None:
    assert launcher.main(["--elastic-unit=2", "train"]) == 0
    assert launcher.main(["train"]) == 0
    assert [base.unit for base, _ in launched] == [2, 1]


@pytest.mark.parametrize(
    ("option", "size", "words"),
    [
        ("--elastic-unit=0", "2-4", ["--elastic-unit=0", "from 1"]),
        ("--elastic-unit=two", "2-4", ["--elastic-unit=two", "from 1"]),
        ("--elastic-unit=3", "2-4", ["--elastic-unit=3", "n1", "2 tasks", "multiple of 3"]),
        ("--elastic-unit=2", "1-4", ["--elastic-unit=2", "minimum", "1", "multiple of 2"]),
        ("--elastic-unit=2", "2-5", ["--elastic-unit=2", "maximum", "5", "multiple of 2"]),
    ],
)
def test_sizes_that_are_no_whole_units_are_usage_errors(
    option: str, size: str, words: list[str], launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ["FLEXO_ELASTIC"] = size
    assert launcher.main([option, "train"]) == 2
    assert says(capsys.readouterr().err, *words)
    assert launched == []
