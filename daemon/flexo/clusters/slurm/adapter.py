"""SlurmCluster: what the controller needs of a Slurm cluster, put together from a Reader and commands.

Reads come from pyslurm where it fits, else from Slurm's commands; changes always go through commands,
which every administrator can replay by hand.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flexo.clusters.base import (
    ActionRefused,
    ClusterState,
    ClusterTraits,
    ClusterUnreachable,
    JobEnd,
    Priority,
    UserShares,
)
from flexo.clusters.slurm.borrowed import BorrowedPartition, let_have
from flexo.clusters.slurm.commands import Ended, MayAct, SlurmCommands, always, nobody_counts
from flexo.clusters.slurm.ends import read_ends
from flexo.clusters.slurm.parse_config import parse_traits
from flexo.clusters.slurm.priorities import set_priorities
from flexo.clusters.slurm.reader import Reader
from flexo.clusters.slurm.reader_commands import CommandReader
from flexo.clusters.slurm.reader_pyslurm import PyslurmReader, is_installed
from flexo.clusters.slurm.shares import read_shares
from flexo.model import Allocate, Drop, JobKey, Node, Partition, SlurmJob

_PARTITIONS_STAY_S = 60.0
"""How long a partition's tier and state are taken as read; its nodes are read with the nodes each time."""


class SlurmCluster:
    """Implements flexo.clusters.base.Cluster. Only `extend` and `ends` are for several threads at once."""

    def __init__(
        self,
        slurm_conf: Path | None,
        satellite_partitions: frozenset[str],
        timeout_s: float = 10.0,
        reader: Reader | None = None,
        borrowed: BorrowedPartition | None = None,
        ended: Ended = nobody_counts,
        may_act: MayAct = always,
    ) -> None:
        """`slurm_conf` None: the cluster of this host. `timeout_s` bounds each single command.

        A tag in a job's comment counts only in `satellite_partitions`. `reader` None: Slurm's commands.
        `borrowed` None: no servers are lent.
        """
        self._borrowed = borrowed
        self._commands = SlurmCommands(slurm_conf, timeout_s, ended, may_act)
        self._reader = reader or CommandReader(self._commands, satellite_partitions)
        self._partitions: tuple[Partition, ...] = ()
        self._partitions_read_at = 0.0
        self._jobs: tuple[SlurmJob, ...] = ()
        """Of the last look."""
        self.read_with = self._reader.name
        """What reads the cluster's state, for people."""

    def traits(self) -> ClusterTraits:
        """What holds while slurmctld runs."""
        config = self._commands.read("scontrol", "show", "config")
        return parse_traits(config, self._commands.read("sdiag"))

    def observe(self) -> ClusterState:
        """One look, as the reader takes it."""
        at, started = time.time(), time.monotonic()
        jobs, nodes = self._reader.look()
        jobs = self._jobs = with_earlier_records(jobs, self._jobs)
        partitions = self._partitions_of(nodes)
        read_cost_s = time.monotonic() - started
        return ClusterState(
            at, without_exclusive_nodes(nodes, jobs), partitions, without_foreign_tags(jobs), read_cost_s
        )

    def extend(self, satellite_job_ids: Sequence[int], seconds_from_now: int) -> None:
        """Set the jobs' ends. Slurm refuses it for a job that has ended or is being preempted, and we do."""
        jobs = ",".join(map(str, satellite_job_ids))
        self._commands.act("scontrol", "update", f"JobId={jobs}", f"EndTime=now+{seconds_from_now}seconds")

    def cancel(self, satellite_job_id: int) -> None:
        """End a job; no error if it has ended meanwhile."""
        self._commands.act("scancel", "--quiet", str(satellite_job_id))

    def requeue(self, job_id: int) -> None:
        """Preempt a running base. Slurm's own word keeps a job that has just ended from running again."""
        self._commands.act("scontrol", "requeue", "Incomplete", str(job_id))

    def ends(self, keys: Collection[JobKey]) -> Mapping[JobKey, JobEnd]:
        """How jobs ended, as far as slurmctld or accounting knows."""
        return read_ends(self._commands, keys)

    def lend(self, nodes: frozenset[str]) -> None:
        """Edit the borrowed partition; a reconfigure or restart of slurmctld forgets it."""
        if self._borrowed is None:
            raise ActionRefused("no partition is set up to lend servers into")
        let_have(self._commands, self._borrowed, nodes)

    def prioritize(self, priorities: Sequence[Priority]) -> None:
        """Set priorities of pending jobs; a job that has started meanwhile keeps its own."""
        set_priorities(self._commands, priorities)

    def user_shares(self) -> UserShares:
        """Users' fairshare factors, as slurmctld has them."""
        started = time.monotonic()
        shares = read_shares(self._commands)
        return UserShares(shares, time.monotonic() - started)

    def allocate(self, allocations: Sequence[Allocate], drops: Sequence[Drop]) -> None:
        """Not on Slurm, where it is Slurm that starts jobs, and satellites that resize them."""
        raise ActionRefused("Slurm starts and ends jobs itself")

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


def connect(
    slurm_conf: Path | None,
    satellite_partitions: frozenset[str],
    timeout_s: float,
    borrowed: BorrowedPartition | None = None,
    ended: Ended = nobody_counts,
    may_act: MayAct = always,
) -> SlurmCluster:
    """The cluster, read with pyslurm where that is installed, fits and is enough; else with commands.

    `read_with` of what is returned says which, and why. Needs no slurmctld: while it is away, commands it is.
    """
    with_commands = SlurmCluster(
        slurm_conf, satellite_partitions, timeout_s, borrowed=borrowed, ended=ended, may_act=may_act
    )
    if not is_installed():
        return with_commands
    reader = PyslurmReader(slurm_conf, satellite_partitions, timeout_s, ended)
    reason = _why_not(reader, with_commands)
    if reason:
        reader.close()
        with_commands.read_with = f"Slurm's commands (pyslurm is installed, but {reason})"
        return with_commands
    return SlurmCluster(slurm_conf, satellite_partitions, timeout_s, reader, borrowed, ended, may_act)


def _why_not(reader: PyslurmReader, cluster: SlurmCluster) -> str:
    try:
        wanted, has = cluster.traits().version, reader.version()
        if wanted.split(".")[:2] != has.split(".")[:2]:
            return f"{has} is not made for Slurm {wanted}"
        return reader.why_not_enough()
    except ClusterUnreachable as error:
        return str(error)


def without_exclusive_nodes(nodes: Iterable[Node], jobs: Iterable[SlurmJob]) -> tuple[Node, ...]:
    """The nodes, those that a job holds for itself alone made unusable."""
    holders = {name: job.job_id for job in jobs if job.exclusive for name in job.nodes}
    return tuple(
        replace(node, unusable=f"held exclusively by job {holders[node.name]}", held_by=holders[node.name])
        if node.name in holders and not node.unusable
        else node
        for node in nodes
    )


def with_earlier_records(jobs: tuple[SlurmJob, ...], before: Iterable[SlurmJob]) -> tuple[SlurmJob, ...]:
    """The jobs, those that cannot be read as the look before had them."""
    unread = {job.job_id for job in jobs if job.unreadable}
    if not unread:
        return jobs
    known = {job.job_id: job for job in before if job.job_id in unread}
    return tuple(
        replace(known.get(job.job_id, job), unreadable=job.unreadable) if job.unreadable else job
        for job in jobs
    )


def without_foreign_tags(jobs: tuple[SlurmJob, ...]) -> tuple[SlurmJob, ...]:
    """The jobs, without the tags of those that name another user's job as their base.

    A base that is gone has no user any more: that tag stays, so that the satellite can be cleaned up.
    """
    owners = {job.job_id: job.user_id for job in jobs}
    return tuple(
        replace(job, satellite=None)
        if job.satellite and owners.get(job.satellite.base.job_id, job.user_id) != job.user_id
        else job
        for job in jobs
    )
