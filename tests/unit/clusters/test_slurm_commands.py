"""How Slurm's commands are run and what becomes of their failures: with small scripts in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from says import says
from small_scripts import script

from flexo.clusters.base import ActionRefused, ClusterUnreachable, MayNotAct
from flexo.clusters.slurm.commands import SlurmCommands

pytestmark = pytest.mark.processes


def test_a_command_prints_what_is_read(commands_in: Path) -> None:
    script(commands_in, "squeue", 'echo "$@"')
    assert SlurmCommands(None, 5).read("squeue", "--all", "a b") == "--all a b\n"


def test_the_callers_own_settings_for_slurms_commands_are_not_handed_on(
    commands_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_STATES", "SLURM_CLUSTERS", "SLURM_JOB_ID", "SCONTROL_ALL", "LC_ALL"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("SLURM_JWT", "token")
    script(commands_in, "squeue", "env")
    seen = SlurmCommands(Path("/etc/green.conf"), 5).read("squeue", variables={"SQUEUE_FORMAT2": "x"})
    lines = set(seen.splitlines())
    assert {"SLURM_CONF=/etc/green.conf", "LC_ALL=C", "SLURM_TIME_FORMAT=%s", "SLURM_JWT=token"} <= lines
    assert "SQUEUE_FORMAT2=x" in lines
    assert "=mine" not in seen


def test_bytes_that_are_no_text_are_read_all_the_same(commands_in: Path) -> None:
    script(commands_in, "squeue", r"printf 'a\377b'")
    assert SlurmCommands(None, 5).read("squeue") == "a\N{REPLACEMENT CHARACTER}b"


def test_a_refused_action_is_told_with_the_command_to_replay_and_slurms_words(commands_in: Path) -> None:
    script(commands_in, "scontrol", "echo 'Invalid job id specified for job 7' >&2; exit 1")
    with pytest.raises(ActionRefused) as refusal:
        SlurmCommands(Path("/etc/a green.conf"), 5).act("scontrol", "update", "JobId=7")
    command = "`SLURM_CONF='/etc/a green.conf' scontrol update JobId=7`"
    assert says(str(refusal.value), command, "Invalid job id specified for job 7")


@pytest.mark.parametrize(
    "words",
    [
        "slurm_update error: Unable to contact slurm controller (connect failure)",
        "Socket timed out on send/recv operation",
        "Protocol authentication error",
        "squeue: fatal: Could not establish a configuration source",
        "Zero Bytes were transmitted or received",
        "Slurm backup controller in standby mode",
    ],
)
def test_an_action_that_nobody_answered_was_not_refused(commands_in: Path, words: str) -> None:
    script(commands_in, "scontrol", f"echo '{words}' >&2; exit 1")
    with pytest.raises(ClusterUnreachable, match="scontrol update JobId=7"):
        SlurmCommands(None, 5).act("scontrol", "update", "JobId=7")


def test_a_failed_read_is_a_cluster_that_cannot_be_reached(commands_in: Path) -> None:
    script(commands_in, "squeue", "exit 3")
    with pytest.raises(ClusterUnreachable, match="exit status 3"):
        SlurmCommands(None, 5).read("squeue")


def test_a_command_that_hangs_is_ended_in_time_and_leaves_no_process(commands_in: Path) -> None:
    script(commands_in, "squeue", f"echo $$ > {commands_in}/pid; exec sleep 600")
    with pytest.raises(ClusterUnreachable, match=r"did not answer within 2 s"):
        SlurmCommands(None, 2.0).read("squeue")
    assert not Path("/proc", (commands_in / "pid").read_text().strip()).exists()


def test_what_waits_for_the_answer_only_begins_while_the_command_still_prints(commands_in: Path) -> None:
    script(
        commands_in, "squeue", f"echo one; while [ ! -e {commands_in}/begun ]; do sleep 0.05; done; echo two"
    )
    said = SlurmCommands(None, 20).read("squeue", answered=(commands_in / "begun").touch)
    assert said == "one\ntwo\n"


@pytest.mark.parametrize(("text", "times"), [("exit 0", 1), ("echo 7; exec sleep 0.1", 1), ("exit 3", 0)])
def test_what_waits_for_the_answer_begins_once_and_not_without_one(
    commands_in: Path, text: str, times: int
) -> None:
    script(commands_in, "squeue", text)
    begun: list[int] = []
    with contextlib.suppress(ClusterUnreachable):
        SlurmCommands(None, 5).read("squeue", answered=lambda: begun.append(1))
    assert len(begun) == times


def test_what_waits_for_the_answer_of_a_command_that_hangs_does_not_begin(commands_in: Path) -> None:
    script(commands_in, "squeue", f"echo $$ > {commands_in}/pid; exec sleep 600")
    begun: list[int] = []
    with pytest.raises(ClusterUnreachable, match=r"did not answer within 1 s"):
        SlurmCommands(None, 1.0).read("squeue", answered=lambda: begun.append(1))
    assert not begun
    assert not Path("/proc", (commands_in / "pid").read_text().strip()).exists()


def test_a_command_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterUnreachable, match=r"squeue.*No such file"):
        SlurmCommands(None, 5).read("squeue")


def test_without_the_right_to_act_no_changing_command_is_started_and_reading_goes_on(
    commands_in: Path,
) -> None:
    def replaced() -> None:
        raise MayNotAct("the one at b:1 is active")

    script(commands_in, "scontrol", f'echo "$@" >> {commands_in}/done')
    commands = SlurmCommands(None, 5, may_act=replaced)
    with pytest.raises(MayNotAct, match="b:1"):
        commands.act("scontrol", "requeue", "7")
    commands.read("scontrol", "show", "node")
    assert (commands_in / "done").read_text() == "show node\n"


@pytest.mark.parametrize("what", ["changes", "reads", "reads and tells"])
def test_a_command_that_runs_when_the_right_to_act_is_lost_is_killed(commands_in: Path, what: str) -> None:
    """As soon as it runs, another flexod takes over. It would go on for ten minutes."""
    pid = commands_in / "pid"

    def check() -> None:
        if pid.exists():
            raise MayNotAct("the one at b:1 is active")

    script(commands_in, "scontrol", f"echo $$ > {pid}; exec sleep 600")
    commands = SlurmCommands(None, 600, may_act=check)
    begun: list[int] = []
    asked: dict[str, Callable[[], str]] = {
        "changes": lambda: commands.act("scontrol", "requeue", "7", lines="some input"),
        "reads": lambda: commands.read("scontrol", "show", "job"),
        "reads and tells": lambda: commands.read("scontrol", "show", answered=lambda: begun.append(1)),
    }
    with pytest.raises(MayNotAct, match="b:1"):
        asked[what]()
    assert not begun
    assert not Path("/proc", pid.read_text().strip()).exists()


def test_a_command_that_takes_its_time_is_given_all_of_its_input_and_read_to_its_end(
    commands_in: Path,
) -> None:
    script(commands_in, "scontrol", "sleep 0.3; head -c 100000 /dev/zero | tr '\\0' x; sleep 0.3; cat")
    said = SlurmCommands(None, 60).act("scontrol", lines="some input")
    assert said == "x" * 100_000 + "some input"
