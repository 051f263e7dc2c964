"""Priorities set with scontrol and shares read with sshare: with small scripts in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_scripts import script

from flexo.clusters.base import ActionRefused, ClusterUnreachable, Priority, UserShare
from flexo.clusters.slurm.commands import SlurmCommands
from flexo.clusters.slurm.priorities import set_priorities
from flexo.clusters.slurm.shares import parse_shares, read_shares

pytestmark = pytest.mark.processes


@pytest.fixture
def commands(commands_in: Path) -> SlurmCommands:
    return SlurmCommands(None, 5)


def test_all_priorities_are_told_to_one_scontrol(commands: SlurmCommands, tmp_path: Path) -> None:
    script(tmp_path, "scontrol", f"cat > {tmp_path}/said")
    set_priorities(commands, (Priority("7", 4_294_900_000), Priority("8", 5)))
    said = (tmp_path / "said").read_text()
    assert said == "update JobId=7 Priority=4294900000\nupdate JobId=8 Priority=5\n"


def test_a_job_that_has_started_or_ended_meanwhile_is_no_refusal(
    commands: SlurmCommands, tmp_path: Path
) -> None:
    words = [
        "Job is no longer pending execution for job 7",
        "Invalid job id specified for job 8",
        "Job/step already completing or completed for job 9",
    ]
    script(tmp_path, "scontrol", "\n".join(f"echo '{each}' >&2" for each in words) + "\nexit 1")
    set_priorities(commands, (Priority("7", 5),))


def test_other_words_are_a_refusal_and_only_those_are_told(commands: SlurmCommands, tmp_path: Path) -> None:
    words = ["Job is no longer pending execution for job 7", "Access/permission denied for job 8"]
    script(tmp_path, "scontrol", "\n".join(f"echo '{each}' >&2" for each in words) + "\nexit 1")
    with pytest.raises(ActionRefused, match=r"^`scontrol` failed: Access/permission denied for job 8$"):
        set_priorities(commands, (Priority("7", 5), Priority("8", 6)))


def test_while_nobody_answers_no_priority_was_refused(commands: SlurmCommands, tmp_path: Path) -> None:
    script(tmp_path, "scontrol", "echo 'Unable to contact slurm controller for job 7' >&2; exit 1")
    with pytest.raises(ClusterUnreachable, match="contact slurm controller"):
        set_priorities(commands, (Priority("7", 5),))


def test_shares_are_read_for_users_and_the_best_account_counts() -> None:
    text = "|\n|\nada|0.200000\n|\nada|0.900000\nbob|1.700000\neve|nan\nmallory|\n"
    assert parse_shares(text) == (UserShare("ada", 0.9), UserShare("bob", 1.0))


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (
            "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1",
            "accounting_storage",
        ),
        ("echo '|'", "knows no user's fairshare factor"),
    ],
)
def test_a_cluster_that_keeps_no_shares_refuses(
    commands: SlurmCommands, tmp_path: Path, does: str, says: str
) -> None:
    script(tmp_path, "sshare", does)
    with pytest.raises(ActionRefused, match=says):
        read_shares(commands)
