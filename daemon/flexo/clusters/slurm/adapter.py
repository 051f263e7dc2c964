"""SlurmCluster: a Slurm cluster for the controller, put together from a Reader and commands.

Reads come from pyslurm where it fits, else from Slurm's commands. Changes always go through commands, which
every administrator can replay by hand.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from flexo.clusters.base import (
    ActionRefused,
    ClusterState,
    ClusterTraits,
    ClusterUnreachable,
    JobEnd,
    Priority,
    Site,
    UserShares,
)
from flexo.clusters.slurm.borrowed import let_have
from flexo.clusters.slurm.commands import CommandFailed, SlurmCommands
from flexo.clusters.slurm.ends import read_ends
from flexo.clusters.slurm.held_gpus import held_gpus
from flexo.clusters.slurm.parse_config import parse_traits
from flexo.clusters.slurm.priorities import BAND, set_priorities
from flexo.clusters.slurm.privacy import PrivacyReader
from flexo.clusters.slurm.reader import Reader
from flexo.clusters.slurm.reader_commands import CommandReader
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.clusters.slurm.shares import read_shares
from flexo.model.nodes import Node, NodeCondition, Partition
from flexo.model.queue import JobKey, QueuedJob

_PARTITIONS_STAY_S = 60.0
"""The time for which a partition's tier and state are reused. Its nodes are read with the nodes each time."""


class SlurmCluster:
    """A Cluster that lends, prioritizes, requeues, counts users' shares and knows how jobs ended.

    Only `extend` and `ends` are for several threads at once.
    """

    software = "Slurm"

    def __init__(
        self, settings: SlurmSettings | None = None, site: Site | None = None, reader: Reader | None = None
    ) -> None:
        """`settings` None: the settings of an empty file. `site` None: no servers are lent, and calls are not
        counted.

        `reader` None: a reader that uses Slurm's commands.
        """
        self._settings = SlurmSettings() if settings is None else settings
        site = Site() if site is None else site
        self._borrowed = site.borrowed
        self._commands = SlurmCommands(
            self._settings.conf, self._settings.timeout_s, site.call_ended, site.may_act
        )
        self._reader = reader or CommandReader(self._commands, satellite_partitions(self._settings, site))
        self._partitions: tuple[Partition, ...] = ()
        self._partitions_read_at = 0.0
        self._privacy = PrivacyReader(self._commands)
        self._jobs: tuple[QueuedJob, ...] = ()
        """The jobs of the last poll."""
        self.read_with = self._reader.name
        """The reader of the cluster's state, for people."""

    def traits(self) -> ClusterTraits:
        """The properties that hold while slurmctld runs."""
        config = self._commands.read("scontrol", "show", "config")
        return replace(
            parse_traits(config, self._commands.read("sdiag")),
            software=self.software,
            resume_command="scontrol resume",
            satellite_partition=self._settings.satellite_partition,
            satellite_qos=self._settings.satellite_qos,
        )

    def observe(self) -> ClusterState:
        """Poll Slurm with the reader."""
        at, started = time.time(), time.monotonic()
        jobs, nodes = self._reader.look()
        jobs = self._jobs = with_earlier_records(jobs, self._jobs)
        partitions, privacy = self._partitions_of(nodes), self._privacy.read()
        read_cost_s = time.monotonic() - started
        usable = without_exclusive_nodes(nodes, jobs)
        return ClusterState(at, usable, partitions, without_foreign_tags(jobs), read_cost_s, privacy=privacy)

    def extend(self, time_limits: Sequence[str], seconds_from_now: int) -> None:
        """Set the ends of jobs: in Slurm each job has a time limit of its own.

        Slurm refuses it for a job that has ended or is being preempted, and so does this method.
        """
        jobs = ",".join(time_limits)
        self._commands.act("scontrol", "update", f"JobId={jobs}", f"EndTime=now+{seconds_from_now}seconds")

    def cancel(self, job: str) -> None:
        """End a job; no error if it has ended meanwhile."""
        self._commands.act("scancel", "--quiet", job)

    def requeue(self, job: str) -> None:
        """Preempt a running base job. Slurm's word `Incomplete` keeps a job that has just ended from running
        again."""
        self._commands.act("scontrol", "requeue", "Incomplete", job)

    def ends(self, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
        """The ends of the jobs in `keys`, as far as slurmctld or accounting knows them."""
        return read_ends(self._commands, keys)

    def gpus_of(self, job: str, nodes: Collection[str]) -> frozenset[tuple[str, int]]:
        """The GPUs that a job holds on its nodes, as slurmctld records them (GRES=gpu:2(IDX:0-1)).

        Empty if slurmctld has forgotten the job since the poll.
        """
        try:
            shown = self._commands.run(("scontrol", "--details", "show", "job", "--oneliner", job), {})
        except CommandFailed as failure:
            if "invalid job id" in failure.said.lower():
                return frozenset()
            raise ClusterUnreachable(str(failure)) from failure
        return held_gpus(shown, nodes)

    def release(self, job: str) -> None:
        """Release a job that the plugin has held (job_submit_elastic.lua). It keeps its place by its age."""
        self._commands.act("scontrol", "release", job)

    def lend(self, nodes: frozenset[str]) -> None:
        """Edit the borrowed partition. A reconfigure or restart of slurmctld forgets the edit."""
        if self._borrowed is None or self._borrowed.static:
            raise ActionRefused("no partition is set up to lend servers into")
        let_have(self._commands, self._borrowed, nodes)

    def in_band(self, priority: int) -> bool:
        """Whether flexod may have set `priority`."""
        return priority in BAND

    def arrange(self, now: Sequence[int]) -> list[int]:
        """The new priorities of jobs in their start order."""
        return BAND.arrange(now)

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        """Set priorities of pending jobs; a job that has started meanwhile keeps its own."""
        set_priorities(self._commands, priorities)

    def user_shares(self) -> UserShares:
        """Users' fairshare factors, as slurmctld has them."""
        started = time.monotonic()
        shares = read_shares(self._commands)
        return UserShares(shares, time.monotonic() - started)

    def _partitions_of(self, nodes: tuple[Node, ...]) -> tuple[Partition, ...]:
        named = {name for node in nodes for name in node.partitions}
        fresh = time.monotonic() - self._partitions_read_at < _PARTITIONS_STAY_S
        if not fresh or not named <= {partition.name for partition in self._partitions}:
            self._partitions = self._reader.partitions()
            self._partitions_read_at = time.monotonic()
        return tuple(
            replace(
                partition, nodes=frozenset(node.name for node in nodes if partition.name in node.partitions)
            )
            for partition in self._partitions
        )


def satellite_partitions(settings: SlurmSettings, site: Site) -> frozenset[str]:
    """The partitions to which satellites are submitted. A tag in a job's comment counts only there."""
    lent = site.borrowed.partitions if site.borrowed is not None else ()
    return frozenset({settings.satellite_partition, *lent, site.shared_partition}) - {""}


def without_exclusive_nodes(nodes: Iterable[Node], jobs: Iterable[QueuedJob]) -> tuple[Node, ...]:
    """The nodes. A node that a job holds for itself alone is made unusable."""
    holders = {name: job.job_id for job in jobs if job.exclusive for name in job.nodes}
    return tuple(
        replace(
            node,
            unusable=f"held exclusively by job {holders[node.name]}",
            conditions=frozenset({NodeCondition.EXCLUSIVE}),
        )
        if node.name in holders and not node.unusable
        else node
        for node in nodes
    )


def with_earlier_records(jobs: tuple[QueuedJob, ...], before: Iterable[QueuedJob]) -> tuple[QueuedJob, ...]:
    """The jobs. For a job that cannot be read, the record of the poll before takes its place."""
    unread = {job.job_id for job in jobs if job.unreadable}
    if not unread:
        return jobs
    known = {job.job_id: job for job in before if job.job_id in unread}
    return tuple(
        replace(known.get(job.job_id, job), unreadable=job.unreadable) if job.unreadable else job
        for job in jobs
    )


def without_foreign_tags(jobs: tuple[QueuedJob, ...]) -> tuple[QueuedJob, ...]:
    """The jobs, without the tags of jobs that name another user's job as their base.

    If the base job is gone, its user is not known: the tag stays, so that the satellite can be cleaned up.
    """
    owners = {job.job_id: job.owner for job in jobs}
    return tuple(
        replace(job, satellite=None)
        if job.satellite and owners.get(job.satellite.base.job_id, job.owner) != job.owner
        else job
        for job in jobs
    )
