"""Reads the parts of a base's request that its satellites repeat: QOS, WCKey, constraint and excluded nodes.

slurmctld is asked, and not the environment: the environment has no constraint and no excluded nodes, and the
user may have changed all of them while the job was pending. The plugin refuses elastic jobs whose other
requests satellites could not repeat (job_submit_elastic.lua).
"""

from __future__ import annotations

from collections.abc import Mapping

from horovod_elastic.platforms.base import NotInAJob
from horovod_elastic.platforms.slurm.commands import ask_patiently

_FORMAT = "%q|%w|%x|%f"
"""QOS, WCKey, excluded nodes, features. The features come last, because | stands in them."""
_NOTHING = frozenset({"", "(null)", "N/A"})


def satellite_options(job_id: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The options of sbatch by which satellites repeat the request of the job. Raises NotInAJob."""
    command = ["squeue", "--local", "--noheader", f"--jobs={job_id}", f"--format={_FORMAT}"]
    said = ask_patiently(command, environment).strip("\n")
    if said.count("|") < 3 or "\n" in said:
        wanted = "QOS, WCKey, excluded nodes and features"
        raise NotInAJob(f"{' '.join(command)}: cannot read {wanted} in '{said[:200]}'")
    qos, wckey, excluded, features = (word.strip() for word in said.split("|", 3))
    named = wckey.removeprefix("*")  # a * marks the user's default one
    repeated = (("--qos", qos), ("--wckey", named), ("--exclude", excluded), ("--constraint", features))
    return tuple(f"{option}={value}" for option, value in repeated if value not in _NOTHING)
