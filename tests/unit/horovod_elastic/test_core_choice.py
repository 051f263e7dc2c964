"""How a user says which core trains, and that everything of the job hears of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from says import says

from horovod_elastic import launcher
from horovod_elastic.core import choice
from horovod_elastic.job_plan import BaseJob
from horovod_elastic.leader import profiling
from horovod_elastic.platforms.base import Platform
from horovod_elastic.platforms.slurm import commands as slurm_commands
from horovod_elastic.platforms.slurm.commands import clean_environment


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What `flexo run` runs, in a job of one node."""
    ran: list[list[str]] = []

    def run(platform: Platform, base: BaseJob, command: list[str]) -> int:
        ran.append(command)
        return 0

    monkeypatch.setattr(launcher, "run_job", run)
    monkeypatch.setattr(slurm_commands, "ask", lambda command, environment: "JobId=17 AdminComment=(null)")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name in (profiling.OPT_OUT_VARIABLE, choice.VARIABLE):
        monkeypatch.setenv(name, "")
    for name, value in {"ID": "17", "NODELIST": "n1", "GPUS": "0"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.setenv("FLEXO_ELASTIC", "1-2")
    return ran


@pytest.mark.parametrize(
    ("arguments", "command", "core", "profiled"),
    [
        (["train"], ["train"], choice.DEFAULT_CORE, True),
        (["--core=horovod", "train", "--core=torch"], ["train", "--core=torch"], "horovod", True),
        (["--core", "torch", "--", "--core=horovod"], ["--core=horovod"], "torch", True),
        (["--no-profile", "--core=horovod", "train"], ["train"], "horovod", False),
        (["--core=horovod", "--no-profile", "--", "train"], ["train"], "horovod", False),
        (["--core=horovod", "--core=torch", "train"], ["train"], "torch", True),
    ],
)
def test_options_before_the_command_are_flexos_in_any_order_and_after_it_the_scripts(
    commands: list[list[str]], arguments: list[str], command: list[str], core: str, profiled: bool
) -> None:
    assert launcher.main(arguments) == 0
    assert commands == [command]
    assert os.environ[choice.VARIABLE] == core
    assert profiling.allowed() is profiled


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--core=mpi", "train"], "--core=mpi: there is no such core; it is one of torch, horovod"),
        (["--core", "train"], "--core=train: there is no such core"),
        (["--core"], "--core=: there is no such core"),
        (["--cores=torch", "train"], "--cores=torch: no such option"),
        (["--no-profile=no", "train"], "--no-profile=no: no such option"),
        (["-n", "4", "train"], "-n: no such option"),
        (["--elastic=1-4", "train"], "--elastic=1-4 belongs there"),
        (["--elastic-cohost", "train"], "submits the job"),
    ],
)
def test_an_unknown_option_or_core_is_refused_by_name(
    commands: list[list[str]], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.main(arguments) == 2
    assert words in capsys.readouterr().err
    assert commands == []


def test_a_core_chosen_by_the_environment_counts_unless_an_option_says_otherwise(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(choice.VARIABLE, "horovod")
    assert launcher.main(["train"]) == 0
    assert choice.chosen() == "horovod"
    assert launcher.main(["--core=torch", "train"]) == 0
    assert choice.chosen() == "torch"
    monkeypatch.setenv(choice.VARIABLE, "mpi")
    assert launcher.main(["train"]) == 2
    assert says(capsys.readouterr().err, "FLEXO_CORE=mpi", "torch", "horovod")


@pytest.fixture
def no_aggregators(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (choice.AGGREGATORS_VARIABLE, choice.CORES_VARIABLE):
        monkeypatch.setenv(name, "")


@pytest.mark.usefixtures("no_aggregators")
def test_a_pool_or_satellites_are_asked_for_by_an_option_or_the_environment(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launcher.main(["--core=service", "train"]) == 0
    assert not choice.wants_pool()
    assert launcher.main(["--core=service", "--aggregators=pool", "--aggregator-cores=2", "train"]) == 0
    assert choice.wants_pool()
    assert choice.aggregator_cores() == 2
    assert launcher.main(["--core=service", "--aggregators=own", "train"]) == 0
    assert not choice.wants_pool()
    monkeypatch.setenv(choice.AGGREGATORS_VARIABLE, "pool")
    assert launcher.main(["--core=service", "train"]) == 0
    assert choice.wants_pool()
    assert not choice.wants_satellites()
    assert launcher.main(["--core=service", "--aggregators=satellites", "train"]) == 0
    assert choice.wants_satellites()
    assert not choice.wants_pool()
    assert not choice.leaves_choice()
    assert launcher.main(["--core=service", "--aggregators=auto", "train"]) == 0
    assert (choice.leaves_choice(), choice.wants_assignment()) == (True, True)
    assert not choice.wants_satellites()
    assert not choice.wants_pool()
    assert commands == [["train"]] * 6


@pytest.mark.usefixtures("no_aggregators")
@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--aggregators=pool", "train"], {}, ["--aggregators=pool", "needs --core=service", "--core=torch"]),
        (["--core=horovod", "train"], {"FLEXO_AGGREGATORS": "pool"}, ["FLEXO_AGGREGATORS", "--core=service"]),
        (["--aggregators=satellites", "train"], {}, ["--aggregators=satellites", "needs --core=service"]),
        (["--core=service", "--aggregators=mine", "train"], {}, ["--aggregators=mine", *choice.AGGREGATORS]),
        (["train"], {"FLEXO_AGGREGATORS": "mine"}, ["FLEXO_AGGREGATORS=mine", *choice.AGGREGATORS]),
        (["--aggregator-cores=0", "train"], {}, ["--aggregator-cores=0", "from 1"]),
        (["train"], {"FLEXO_AGGREGATOR_CORES": "many"}, ["cores=many", "from 1"]),
    ],
)
def test_aggregators_that_cannot_be_are_refused_by_name(
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    environment: dict[str, str],
    words: list[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launcher.main(arguments) == 2
    assert says(capsys.readouterr().err, *words)
    assert commands == []


def test_the_help_explains_both_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert f"--core={choice.TORCH}|{choice.HOROVOD}" in said


def test_what_the_base_submits_keeps_the_choice() -> None:
    assert clean_environment({choice.VARIABLE: "horovod", "SLURM_JOB_ID": "1"}) == {
        choice.VARIABLE: "horovod"
    }


def newly_imported(statement: str) -> set[str]:
    """Modules that a fresh Python has imported after `statement` and had not before."""
    program = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.processes
def test_to_ask_for_the_choice_imports_next_to_nothing() -> None:
    imported = newly_imported("import horovod_elastic.core.choice")
    assert {name.partition(".")[0] for name in imported} <= {"horovod_elastic", "collections", "__future__"}


@pytest.mark.processes
def test_hooks_import_neither_core_before_it_is_chosen() -> None:
    imported = newly_imported("import horovod_elastic.worker.hooks")
    assert "horovod_elastic.worker.session" in imported
    assert not [name for name in imported if name.startswith(("horovod_elastic.core.c10d", "torch"))]
    assert not [name for name in imported if name.startswith("horovod_elastic.core.native")]
