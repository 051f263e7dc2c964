"""Finds out how jobs ended. slurmctld knows for MinJobAge, after that only Slurm's accounting, where there is
one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flexo.clusters.base import ClusterUnreachable, JobEnd
from flexo.clusters.slurm.commands import CommandFailed, SlurmCommands
from flexo.clusters.slurm.text import BadValue, epoch, number, or_empty
from flexo.model.queue import JobKey

_QUEUE = ("JobID", "RestartCnt", "State", "StartTime", "EndTime", "exit_code")
_ACCOUNTS = "JobIDRaw,State,Start,End,ExitCode"
_LASTING = frozenset({"PENDING", "RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "CONFIGURING", "REQUEUED"})


def read_ends(commands: SlurmCommands, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
    """The ends of the jobs in `keys`, as far as known. Raises ClusterUnreachable if slurmctld does not
    answer."""
    found = _by_slurmctld(commands, keys)
    missing = [key for key in keys if key not in found]
    return {**_by_accounting(commands, missing), **found} if missing else found


def _by_slurmctld(commands: SlurmCommands, keys: Collection[JobKey]) -> dict[JobKey, JobEnd]:
    """The ends that slurmctld knows. No user writes any of these fields."""
    fields = ",".join(f"{name}:0|" for name in _QUEUE)
    jobs = ",".join(sorted({str(key.job_id) for key in keys}))
    options = ("--all", "--local", "--noheader", "--states=all", f"--jobs={jobs}", f"--Format={fields}")
    try:
        return parse_queue(commands.run(("squeue", *options), {}), keys)
    except CommandFailed as failure:
        if "invalid job id" in failure.said.lower():
            return {}
        raise ClusterUnreachable(str(failure)) from failure


def _by_accounting(commands: SlurmCommands, keys: Collection[JobKey]) -> dict[JobKey, JobEnd]:
    jobs = ",".join(sorted({str(key.job_id) for key in keys}))
    options = ("--noheader", "--parsable2", "--allocations", "--duplicates", f"--jobs={jobs}")
    try:
        return parse_accounts(commands.run(("sacct", *options, f"--format={_ACCOUNTS}"), {}), keys)
    except (CommandFailed, ClusterUnreachable):
        return {}  # there is no accounting, or it does not answer


def parse_queue(text: str, keys: Collection[JobKey]) -> dict[JobKey, JobEnd]:
    """Parse ``5|0|CANCELLED|1795461181|1795461184|15|``. A job with a later run in the list was requeued."""
    found: dict[JobKey, JobEnd] = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) < len(_QUEUE):
            continue
        try:
            listed = JobKey(number(words[0]), number(words[1]))
        except BadValue:
            continue
        state = words[2]
        for key in keys:
            if key.job_id != listed.job_id:
                continue
            if key.restart_count < listed.restart_count:
                found[key] = JobEnd("REQUEUED", known_by="slurmctld")
            elif key == listed and state not in _LASTING:
                times = epoch(words[3]), epoch(words[4])
                found[key] = JobEnd(state, *times, exit_code(words[5]), known_by="slurmctld")
    return found


def parse_accounts(text: str, keys: Collection[JobKey]) -> dict[JobKey, JobEnd]:
    """Parse ``5|CANCELLED by 0|1795461181|1795461184|0:15``: one line for each run of a job, in order."""
    runs: dict[int, list[Sequence[str]]] = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) == _ACCOUNTS.count(",") + 1 and words[0].isdecimal():
            runs.setdefault(int(words[0]), []).append(words)
    found: dict[JobKey, JobEnd] = {}
    for key in keys:
        of_job = runs.get(key.job_id, [])
        if key.restart_count < len(of_job):
            _, state, started, ended, code = of_job[key.restart_count]
            word = state.partition(" ")[0]
            if word not in _LASTING - {"REQUEUED"}:
                times = epoch(started), epoch(ended)
                found[key] = JobEnd(word, *times, exit_code(code), known_by="accounting")
    return found


def exit_code(text: str) -> str:
    """Exit status and signal as Slurm writes them, ``3:0``. squeue prints what wait(2) returns instead."""
    if text.isdecimal():
        return f"{int(text) >> 8}:{int(text) & 0x7F}"
    return or_empty(text)
