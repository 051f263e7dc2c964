"""What Slurm's commands printed on small real clusters of three releases, on each the same jobs.

Nodes: t1-t3 with 4 v100, u1 with 2 v100 and 2 a100, i1 with 4 untyped GPUs (drained, with a reason of two
lines), c1 with none. One job has a comment and a name that forge a line of squeue's output. The names of the
jobs and their places in arrays were added later.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flexo.clusters.slurm.parse_jobs import (
    QueueRecord,
    fields_to_ask,
    parse_excluded_nodes,
    parse_queue,
    to_job,
    to_record,
)
from flexo.model.queue import QueuedJob

RELEASES = ("22.05", "24.11", "26.05")
SEPARATOR = "|nonce123"
SATELLITES = frozenset({"flex", "borrowed"})
_ARRAY_TASKS = {"22.05": (40, 41), "24.11": (27, 28), "26.05": (27, 28)}
_SPECIAL = (
    *("hostile", "satellite", "elastic", "array", "exclusive", "exclusive to a user", "per task"),
    *("per socket", "two types", "big", "held", "array task", "array task 2"),
)
_SQUEUE = """
case "$*" in
  --helpFormat) [ -s {folder}/squeue_help.txt ] && exec cat {folder}/squeue_help.txt
    echo "squeue: unrecognized option '--helpFormat'" >&2; exit 1;;
  *--format=*) echo "$4" >> {folder}/asked_for_excluded; exec cat {folder}/excluded.txt;;
esac
separator=${{SQUEUE_FORMAT2#*:0}}
sed "s/|nonce123/${{separator%%,*}}/g" {folder}/queue.txt
"""
_SCONTROL = """
echo "$*" >> {folder}/scontrol_calls
case "$*" in
  "show node"*) exec cat {folder}/nodes.txt;;
  "show partition"*) exec cat {folder}/partitions.txt;;
  "show config"*) exec cat {folder}/config.txt;;
esac
"""
_FOLDER = Path(__file__).parent / "captured"


def captured(release: str, name: str) -> str:
    """One command's output; "" where that release's command has none."""
    path = _FOLDER / release / f"{name}.txt"
    return path.read_text() if path.exists() else ""


def records_of(release: str) -> list[QueueRecord]:
    """What squeue printed, as records."""
    names = fields_to_ask(captured(release, "squeue_help"))
    return [to_record(one) for one in parse_queue(captured(release, "queue"), names, SEPARATOR)]


def sharing_jobs_of(release: str) -> list[QueuedJob]:
    """Jobs of a cluster that shares GPUs (`spare_nodes.txt` has its node): a job that holds both GPUs and
    consents, the base of an opportunistic job, a satellite that runs, and one that is held."""
    names = fields_to_ask(captured(release, "squeue_help"))
    printed = parse_queue(captured(release, "spare_queue"), names, SEPARATOR)
    return sorted(
        (to_job(to_record(one), frozenset({"shared"})) for one in printed), key=lambda job: job.job_id
    )


def jobs_of(release: str) -> dict[str, QueuedJob]:
    """The jobs of that cluster by what is special about them."""
    excluded = parse_excluded_nodes(captured(release, "excluded"))
    jobs = [to_job(record, SATELLITES) for record in records_of(release)]
    jobs = [replace(job, excluded_nodes=excluded.get(job.job_id, job.excluded_nodes)) for job in jobs]
    # In the order of submission; the array's running tasks got their ids when they started.
    tasks = _ARRAY_TASKS[release]
    ordered = sorted(jobs, key=lambda job: (job.job_id in tasks, job.job_id))
    return dict(zip(_SPECIAL, ordered, strict=True))


class Recorded:
    """A folder with commands that print what a real cluster of one release printed."""

    def __init__(self, folder: Path, release: str) -> None:
        self.folder = folder
        for name in ("nodes", "partitions", "queue", "excluded", "squeue_help", "config", "sdiag"):
            (folder / f"{name}.txt").write_text(captured(release, name))
        self._script("squeue", _SQUEUE)
        self._script("scontrol", _SCONTROL)
        self._script("sdiag", "exec cat {folder}/sdiag.txt")

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.folder / f"{name}.txt"
        path.write_text(path.read_text().replace(old, new))

    def times(self, call: str) -> int:
        return (self.folder / "scontrol_calls").read_text().splitlines().count(call)

    def _script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + text.format(folder=self.folder))
        path.chmod(0o755)
