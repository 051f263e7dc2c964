"""How Slurm says that jobs ended: slurmctld first, then accounting, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_scripts import script

from flexo.clusters.base import ClusterUnreachable, KnowsEnds
from flexo.clusters.slurm.adapter import SlurmCluster
from flexo.clusters.slurm.ends import exit_code, parse_accounts, parse_queue
from flexo.model.queue import JobKey

QUEUE = """5|0|CANCELLED|1795461181|1795461184|15|
4|0|COMPLETED|1795461181|1795461182|0|
3|0|FAILED|1795461181|1795461181|768|
7|0|RUNNING|1795461181|1795471181|0|
8|1|PENDING|N/A|N/A|0|
"""
"""As squeue of 22.05.8 printed the first three."""
ACCOUNTS = """3|FAILED|1795461181|1795461181|3:0
5|CANCELLED by 0|1795461181|1795461184|0:15
8|REQUEUED|1795461181|1795461190|0:0
8|COMPLETED|1795461200|1795461300|0:0
9|RUNNING|1795461200|Unknown|0:0
"""


def keys(*job_ids: int) -> list[JobKey]:
    return [JobKey(job_id) for job_id in job_ids]


def test_slurmctld_says_how_when_and_with_which_exit_code() -> None:
    found = parse_queue(QUEUE, keys(3, 4, 5))
    assert {key.job_id: (end.state, end.exit_code) for key, end in found.items()} == {
        3: ("FAILED", "3:0"),
        4: ("COMPLETED", "0:0"),
        5: ("CANCELLED", "0:15"),
    }
    assert (found[JobKey(5)].started_at, found[JobKey(5)].ended_at) == (1795461181, 1795461184)


def test_a_job_that_runs_has_no_end_and_one_that_was_requeued_has() -> None:
    found = parse_queue(QUEUE, [*keys(7, 8), JobKey(8, 1)])
    assert {key: end.state for key, end in found.items()} == {JobKey(8): "REQUEUED"}


def test_accounting_has_a_line_for_each_run_of_a_job() -> None:
    found = parse_accounts(ACCOUNTS, [*keys(3, 5, 8, 9, 10), JobKey(8, 1), JobKey(8, 2)])
    assert {str(key): (end.state, end.exit_code) for key, end in found.items()} == {
        "3": ("FAILED", "3:0"),
        "5": ("CANCELLED", "0:15"),
        "8": ("REQUEUED", "0:0"),
        str(JobKey(8, 1)): ("COMPLETED", "0:0"),
    }


@pytest.mark.parametrize(
    ("printed", "said"), [("768", "3:0"), ("15", "0:15"), ("0", "0:0"), ("3:0", "3:0"), ("N/A", "")]
)
def test_exit_codes_are_told_as_slurm_writes_them(printed: str, said: str) -> None:
    assert exit_code(printed) == said


@pytest.mark.processes
def test_accounting_is_asked_only_for_those_that_slurmctld_has_forgotten(commands_in: Path) -> None:
    (commands_in / "queue").write_text(QUEUE)
    (commands_in / "accounts").write_text(ACCOUNTS)
    script(commands_in, "squeue", f"cat {commands_in}/queue")
    script(commands_in, "sacct", f'echo "$@" >> {commands_in}/asked; cat {commands_in}/accounts')
    cluster = SlurmCluster()
    assert isinstance(cluster, KnowsEnds)
    found = cluster.ends([*keys(3), JobKey(8, 1)])
    assert found[JobKey(3)].known_by == "slurmctld"
    assert (found[JobKey(8, 1)].state, found[JobKey(8, 1)].known_by) == ("COMPLETED", "accounting")
    assert "--jobs=8 " in (commands_in / "asked").read_text()


@pytest.mark.processes
def test_a_cluster_without_accounting_does_not_know_and_one_that_is_away_is_asked_again(
    commands_in: Path,
) -> None:
    script(commands_in, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    script(commands_in, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    cluster = SlurmCluster()
    assert cluster.ends(keys(999)) == {}
    script(commands_in, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ClusterUnreachable):
        cluster.ends(keys(999))
