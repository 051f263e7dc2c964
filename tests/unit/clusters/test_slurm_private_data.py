"""What Slurm's PrivateData hides of that which flexo shows."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest
from small_scripts import script

from flexo.clusters.base import Privacy
from flexo.clusters.slurm.commands import SlurmCommands
from flexo.clusters.slurm.privacy import PrivacyReader, parse_operators, parse_privacy

CONFIG = "PrivateData             = {}\nSlurmUser               = slurm(64030)\n"


@pytest.mark.parametrize(
    ("said", "jobs", "nodes"),
    [
        ("none", False, False),
        ("jobs", True, False),
        ("accounts,events,jobs,nodes,partitions,reservations,usage,users", True, True),
        ("Jobs, Usage", True, False),
        ("usage,users", False, False),
        ("(null)", False, False),
    ],
)
def test_jobs_and_nodes_are_hidden_where_private_data_names_them(said: str, jobs: bool, nodes: bool) -> None:
    found = parse_privacy(CONFIG.format(said))
    assert (found.jobs, found.nodes) == (jobs, nodes)


def test_slurms_own_user_sees_everything() -> None:
    assert parse_privacy(CONFIG.format("jobs")).readers == frozenset({"64030"})


def test_without_the_setting_nothing_is_hidden() -> None:
    assert parse_privacy("") == Privacy()


def test_operators_and_administrators_see_everything_and_nobody_else() -> None:
    said = "ada|None\nbob|Operator\neve|Administrator\nmallory|Operator|None\n|Operator\noperator|\n"
    assert parse_operators(said) == ("bob", "eve")


@pytest.fixture
def slurm(commands_in: Path) -> Path:
    """A Slurm that hides jobs, with slurmdbd, of which games is an Operator."""
    (commands_in / "config").write_text(
        CONFIG.format("jobs") + "AccountingStorageType   = accounting_storage/slurmdbd\n"
    )
    (commands_in / "operators").write_text("games|Operator\nnews|None\nnobody-of-this-name|Operator\n")
    for name, file in (("scontrol", "config"), ("sacctmgr", "operators")):
        script(commands_in, name, f"echo {name} >> {commands_in}/asked; exec cat {commands_in}/{file}")
    return commands_in


def asked(slurm: Path) -> list[str]:
    return (slurm / "asked").read_text().split()


@pytest.mark.processes
def test_slurm_is_asked_again_when_its_answers_are_old(slurm: Path) -> None:
    now = [0.0]
    reader = PrivacyReader(SlurmCommands(None, 5), lambda: now[0])
    games = str(pwd.getpwnam("games").pw_uid)
    assert reader.read() == Privacy(jobs=True, readers=frozenset({"64030", games}))
    now[0] = 29.0
    reader.read()
    assert asked(slurm) == ["scontrol", "sacctmgr"]
    (slurm / "config").write_text(CONFIG.format("none"))
    now[0] = 31.0
    assert not reader.read().jobs
    assert asked(slurm) == ["scontrol", "sacctmgr", "scontrol"]


@pytest.mark.processes
def test_while_slurmdbd_is_away_the_operators_of_its_last_answer_count(slurm: Path) -> None:
    now = [0.0]
    reader = PrivacyReader(SlurmCommands(None, 5), lambda: now[0])
    known = reader.read().readers
    (slurm / "operators").unlink()
    now[0] = 400.0
    assert reader.read().readers == known
