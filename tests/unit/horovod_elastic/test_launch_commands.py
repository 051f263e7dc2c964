"""Commands of torchrun and Accelerate under `flexo run`: what stays of them, and what is said of the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from says import says

from horovod_elastic import accelerate_launch, launch_commands
from horovod_elastic.launch_commands import Accelerated, Launch, Tasks

PAIR = Tasks(workers=2, nodes=1)


def nobody(python: str, arguments: Sequence[str]) -> Accelerated:
    raise AssertionError("Accelerate is not asked")


def read(*command: str, tasks: Tasks = PAIR, ask: launch_commands.Ask = nobody) -> Launch:
    return launch_commands.read(command, tasks, ask)


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs of a Python environment, and nothing else, in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchrun", "accelerate", "accelerate-launch"):
        program = folder / name
        program.write_text("#!/opt/env/bin/python3.12\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    for variable in ("OMP_NUM_THREADS", launch_commands.PYTHON_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--nproc-per-node=7"],
        ["python3", "-u", "-W", "ignore", "-m", "pkg.train"],
        ["python", "-c", "import torch.distributed.run", "-m", "torch.distributed.run"],
        ["python", "train.py", "-m", "torch.distributed.run"],
        ["python", "-"],
        ["./train.sh", "torchrun"],
        ["accelerate", "env"],
    ],
)
def test_a_command_without_a_launcher_stays_as_it_is(command: list[str]) -> None:
    assert read(*command) == Launch(tuple(command))


def test_a_script_that_is_no_program_is_refused_with_the_command_that_would_run_it(
    tmp_path: Path, programs: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()\n")
    with pytest.raises(ValueError, match=f"flexo run python {script}"):
        read(str(script))
    script.chmod(0o755)  # then it is a program
    assert read(str(script)) == Launch((str(script),))


@pytest.mark.parametrize(
    "begin",
    [
        ["torchrun"],
        ["/opt/env/bin/python3.12", "-m", "torch.distributed.run"],
        ["/opt/env/bin/python3.12", "-Wignore", "-um", "torch.distributed.run"],
        ["/opt/env/bin/python3.12", "-X", "dev", "-mtorch.distributed.run"],
        ["/opt/env/bin/python3.12", "-m", "torch.distributed.launch", "--use-env"],
    ],
)
def test_torchruns_script_and_arguments_stay_and_its_own_options_go(begin: list[str]) -> None:
    command = ["--standalone", "--nproc-per-node", "2", "train.py", "--lr=0.1", "--nnodes", "9", "--", "a b"]
    launch = read(*begin, *command)
    expected = (
        "/opt/env/bin/python3.12",
        "-u",
        "train.py",
        *("--lr=0.1", "--nnodes", "9", "--", "a b"),
    )
    assert launch.command == expected
    assert launch.notes == ()
    assert launch.variables == (("OMP_NUM_THREADS", "1"),)


def test_torchruns_usual_options_on_clusters_are_dropped_without_a_word() -> None:
    launch = read(
        *("torchrun", "--nnodes=2", "--nproc_per_node=2", "--node_rank=0", "--rdzv_id", "7"),
        *("--rdzv-backend=c10d", "--rdzv_endpoint=n1:29500", "--max-restarts=3", "--master_addr=n1"),
        *("--master_port", "29500", "--monitor-interval=5", "--start-method=spawn", "train.py"),
        tasks=Tasks(4, 2),
    )
    assert launch.command[2:] == ("train.py",)
    assert launch.notes == ()


def test_torchruns_options_may_be_abbreviated_as_in_torchrun() -> None:
    assert read("torchrun", "--nproc_per=2", "--no-py", "./train").command == ("./train",)


@pytest.mark.parametrize("flag", ["-m", "--module"])
def test_torchrun_runs_modules(flag: str) -> None:
    assert read("torchrun", flag, "pkg.train", "-m", "x").command[1:] == ("-u", "-m", "pkg.train", "-m", "x")


def test_torchrun_without_python_starts_the_program_itself() -> None:
    assert read("torchrun", "--no-python", "./train", "x").command == ("./train", "x")
    with pytest.raises(ValueError, match=r"--no-python.*--module"):
        read("torchrun", "--no-python", "-m", "pkg.train")


def test_torchruns_python_can_be_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch_commands.PYTHON_VARIABLE, "/other/python")
    assert read("torchrun", "train.py").command[0] == "/other/python"


def test_the_python_beside_a_launcher_is_taken_where_its_first_line_names_none(programs: Path) -> None:
    (programs / "torchrun").write_text('#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$0")/python" "$0"\n')
    assert read("torchrun", "train.py").command[0] == "python3"
    (programs / "python").touch()
    assert read("torchrun", "train.py").command[0] == str(programs / "python")


def test_a_launcher_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=r"torchrun.*no such program.*/nowhere"):
        read("torchrun", "train.py")


@pytest.mark.processes
def test_the_old_launcher_tells_each_script_its_local_rank(tmp_path: Path) -> None:
    """A shell puts the rank into the command line: only the worker's own process knows it."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    launch = read(str(python), "-m", "torch.distributed.launch", "--nproc_per_node=2", "a b.py", "$x", "it's")
    environment = {"PATH": "/usr/bin:/bin", "LOCAL_RANK": "1"}
    done = subprocess.run(launch.command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "-u|a b.py|--local-rank=1|$x|it's|"


@pytest.mark.parametrize(
    ("options", "tasks", "asked"),
    [
        (["--nproc-per-node=4"], Tasks(2, 1), "4"),
        (["--nproc-per-node=2"], Tasks(2, 2), "4"),
        (["--nproc-per-node=2", "--nnodes=1"], Tasks(4, 2), "2"),
        (["--nproc-per-node=8", "--nnodes=2:4"], Tasks(8, 1), "16 to 32"),
    ],
)
def test_a_count_that_contradicts_the_jobs_tasks_gets_one_line(
    options: list[str], tasks: Tasks, asked: str
) -> None:
    (note,) = read("torchrun", *options, "train.py", tasks=tasks).notes
    assert says(note, options[0], f"{asked} processes", f"{tasks.workers} tasks", "one worker for each task")


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        (["--nproc-per-node=2"], Tasks(2, 1)),
        (["--nproc-per-node=2"], Tasks(4, 2)),
        (["--nproc-per-node=2", "--nnodes=1:4"], Tasks(4, 2)),
        (["--nproc-per-node=gpu", "--nnodes=7"], Tasks(2, 1)),
        (["--nproc-per-node=auto"], Tasks(2, 1)),
        (["--nnodes=2"], Tasks(8, 2)),
        ([], Tasks(8, 2)),
    ],
)
def test_a_count_that_agrees_or_says_nothing_gets_no_line(options: list[str], tasks: Tasks) -> None:
    assert read("torchrun", *options, "train.py", tasks=tasks).notes == ()


def test_options_with_a_visible_effect_under_torchrun_only_are_named() -> None:
    (note,) = read("torchrun", "-r", "3", "--tee=3", "--log-dir=/tmp/x", "train.py").notes
    assert says(note, "--log-dir", "--redirects", "--tee", "no effect", "output")


def test_torchruns_role_is_what_the_script_reads() -> None:
    assert ("ROLE_NAME", "trainer") in read("torchrun", "--role=trainer", "train.py").variables


def test_the_users_number_of_threads_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert read("torchrun", "train.py").variables == ()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["torchrun", "--no-such-option", "train.py"], ["torchrun", "--no-such-option"]),
        (["torchrun", "--nproc-per-node=2"], ["torchrun", "training_script"]),
        (["torchrun", "--nnodes=two", "--nproc-per-node=1", "train.py"], ["--nnodes=two", "MIN:MAX"]),
        (["torchrun", "--virtual-local-rank", "train.py"], ["--virtual-local-rank", "not supported"]),
        (["deepspeed", "--num_gpus=2", "train.py"], ["deepspeed", "python train.py"]),
        (["/usr/bin/mpirun", "-np", "2", "python", "train.py"], ["mpirun", "python train.py"]),
        (["horovodrun", "-np", "2", "python", "train.py"], ["horovodrun", "python train.py"]),
    ],
)
def test_what_cannot_be_launched_is_refused_by_name(command: list[str], words: list[str]) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the words are checked below
        read(*command)
    assert says(str(refused.value), *words)


# --- accelerate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "python"),
    [
        (["accelerate", "launch"], "/opt/env/bin/python3.12"),
        (["accelerate-launch"], "/opt/env/bin/python3.12"),
        (["python", "-m", "accelerate.commands.launch"], "python"),
    ],
)
def test_accelerates_own_python_says_what_its_launcher_would_start(begin: list[str], python: str) -> None:
    asked = []

    def ask(python: str, arguments: Sequence[str]) -> Accelerated:
        asked.append((python, list(arguments)))
        return Accelerated(("train.py", "x"), True, (("ACCELERATE_MIXED_PRECISION", "bf16"),), 2)

    launch = read(*begin, "--mixed_precision=bf16", "train.py", "x", ask=ask)
    assert asked == [(python, ["--mixed_precision=bf16", "train.py", "x"])]
    assert launch == Launch((python, "-u", "train.py", "x"), (("ACCELERATE_MIXED_PRECISION", "bf16"),))


def test_what_accelerate_asks_for_and_does_not_get_is_said() -> None:
    def ask(python: str, arguments: Sequence[str]) -> Accelerated:
        return Accelerated(("./train",), False, (), 8, missed=("--gpu_ids",), fixed="FSDP")

    launch = read("accelerate", "launch", "./train", ask=ask)
    assert launch.command == ("./train",)
    assert launch.fixed == "FSDP"
    assert says(launch.notes[0], "num_processes=8", "8 processes", "2 tasks")
    assert says(launch.notes[1], "--gpu_ids", "no effect")


def asked_of(python: Path, text: str) -> Accelerated:
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)
    return accelerate_launch.ask(str(python), ["train.py"])


@pytest.mark.processes
def test_a_python_without_accelerate_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(ValueError, match=r"accelerate launch.*my-python.*No module named accelerate"):
        asked_of(tmp_path / "my-python", "echo warning >&2; echo No module named accelerate >&2; exit 1")


@pytest.mark.processes
def test_the_answer_is_found_among_other_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    answer = (
        '{"command": ["train.py"], "python": true, "variables": [["A", "b"]], "processes": 0,'
        ' "missed": [], "fixed": ""}'
    )
    found = asked_of(tmp_path / "python", f"echo hello; echo 'flexo-accelerate: {answer}'")
    assert found == Accelerated(("train.py",), True, (("A", "b"),), 0)


# --- with the real Accelerate, where it is installed ------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Launch]:
    """Reads commands of the Accelerate in this Python; its default configuration is tmp_path/cfg.yaml."""
    pytest.importorskip("accelerate")
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def launch(*arguments: str) -> Launch:
        return read(sys.executable, "-m", "accelerate.commands.launch", *arguments, ask=accelerate_launch.ask)

    return launch


@pytest.mark.processes
def test_accelerates_options_become_variables(real: Callable[..., Launch]) -> None:
    launch = real("--cpu", "--mixed-precision=bf16", "--num_processes=4", "-m", "pkg.train", "--cpu")
    assert launch.command == (sys.executable, "-u", "-m", "pkg.train", "--cpu")
    variables = dict(launch.variables)
    assert variables["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert variables["ACCELERATE_USE_CPU"] == "True"
    assert not variables.keys() & {"MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "PATH"}
    assert says(launch.notes[0], "num_processes=4", "2 tasks")


@pytest.mark.processes
def test_accelerates_configuration_file_counts(real: Callable[..., Launch], tmp_path: Path) -> None:
    config = tmp_path / "cfg.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\n"
        "num_machines: 2\nnum_processes: 2\nmachine_rank: 0\nmain_process_ip: n1\n"
        "main_process_port: 29500\nuse_cpu: false\nfsdp_config:\n  fsdp_version: 2\n"
    )
    launch = real("--config_file", str(config), "train.py")
    assert "FSDP" in launch.fixed
    assert dict(launch.variables)["FSDP_VERSION"] == "2"
    assert launch.notes == ()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--use_deepspeed", "train.py"], ["DeepSpeed", "--use_deepspeed"]),
        (["--use_megatron_lm", "train.py"], ["Megatron-LM"]),
        (["--tpu", "train.py"], ["TPUs"]),
        (["--no-such-option", "train.py"], ["--no-such-option"]),
        (["--mixed_precision=fp17", "train.py"], ["fp17", "bf16"]),
        (["--config_file=/no/such/file", "train.py"], ["/no/such/file"]),
    ],
)
def test_what_accelerate_cannot_launch_here_is_refused_by_name(
    real: Callable[..., Launch], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the words are checked below
        real(*arguments)
    assert says(str(refused.value), "accelerate launch", *words)
