"""How servers are put into the borrowed partition and bases requeued: one command each, and no stray word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flexo.clusters.base import ActionRefused, Borrowed, ClusterUnreachable, Site
from flexo.clusters.slurm.adapter import SlurmCluster

pytestmark = pytest.mark.processes

COMMAND = """#!/usr/bin/env python3
import json, sys
with open("{folder}/calls", "a") as calls:
    calls.write(json.dumps([sys.argv[0].rsplit("/", 1)[-1], *sys.argv[1:]]) + "\\n")
sys.stderr.write({words!r})
sys.exit({status})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """First on PATH: scontrol and a helper that only note how they were called."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    answer(tmp_path)
    return tmp_path


def answer(folder: Path, words: str = "", status: int = 0) -> None:
    for name in ("scontrol", "helper"):
        text = COMMAND.format(folder=folder, words=words, status=status)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def calls(folder: Path) -> list[list[str]]:
    path = folder / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cluster(*command: str) -> SlurmCluster:
    return SlurmCluster(site=Site(Borrowed("borrowed", command)))


def test_slurmuser_edits_the_partition_itself(folder: Path) -> None:
    cluster().lend(frozenset({"i2", "i10", "i1"}))
    cluster().lend(frozenset())
    assert calls(folder) == [
        ["scontrol", "update", "PartitionName=borrowed", "Nodes=i1,i10,i2"],
        ["scontrol", "update", "PartitionName=borrowed", "Nodes="],
    ]


def test_satellites_may_have_a_partition_of_their_own_on_lent_servers(folder: Path) -> None:
    borrowed = Borrowed("borrowed", satellite_partition="borrowed-flex")
    SlurmCluster(site=Site(borrowed)).lend(frozenset({"i1"}))
    assert calls(folder) == [
        ["scontrol", "update", "PartitionName=borrowed-flex", "Nodes=i1"],
        ["scontrol", "update", "PartitionName=borrowed", "Nodes=i1"],
    ]


def test_another_account_has_the_helper_edit_it(folder: Path) -> None:
    cluster("helper", "--quickly").lend(frozenset({"i2", "i1"}))
    cluster("helper").lend(frozenset())
    assert calls(folder) == [
        ["helper", "--quickly", "set", "borrowed", "i1,i2"],
        ["helper", "set", "borrowed", ""],
    ]


@pytest.mark.parametrize("name", ["i1,i2", "i[1-2]", "-i1", "+i1", "", "i1 Default=YES", "i1\n"])
def test_what_is_not_the_name_of_one_node_never_reaches_a_command(folder: Path, name: str) -> None:
    with pytest.raises(ActionRefused, match="name of a node"):
        cluster().lend(frozenset({"i1", name}))
    assert calls(folder) == []


def test_without_a_borrowed_partition_nothing_is_lent(folder: Path) -> None:
    with pytest.raises(ActionRefused, match="no partition"):
        SlurmCluster().lend(frozenset({"i1"}))
    assert calls(folder) == []


def test_a_refused_edit_says_what_was_tried_in_the_helpers_words(folder: Path) -> None:
    answer(folder, "flexo-partition: 'i9' is not a node of the partition 'infer'", 2)
    with pytest.raises(ActionRefused, match=r"helper set borrowed i9.*'i9'.*'infer'"):
        cluster("helper").lend(frozenset({"i9"}))


def test_a_slurmctld_that_is_away_is_told_from_a_refusal_through_the_helper_too(folder: Path) -> None:
    answer(folder, "flexo-partition: scontrol update: Unable to contact slurm controller", 1)
    with pytest.raises(ClusterUnreachable):
        cluster("helper").lend(frozenset({"i1"}))


def test_only_a_job_that_has_not_ended_is_requeued(folder: Path) -> None:
    cluster().requeue("17")
    assert calls(folder) == [["scontrol", "requeue", "Incomplete", "17"]]


def test_a_base_that_cannot_be_requeued_is_a_refusal_in_slurms_words(folder: Path) -> None:
    answer(folder, "Requested operation is presently disabled for job 17", 1)
    with pytest.raises(ActionRefused, match="presently disabled for job 17"):
        cluster().requeue("17")
