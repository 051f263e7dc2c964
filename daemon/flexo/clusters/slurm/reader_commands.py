"""Reads Slurm with its own commands: one process for the nodes, one for the jobs, one for the partitions.

As text and not as JSON, because of what it costs the controller: all of 20,000 jobs take 86 ms under its
lock as text and 6.8 s as JSON (docs/architecture.md, "Reading costs too").

How releases differ in what they print: releases.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

from flexo.clusters.base import ClusterUnreachable
from flexo.clusters.slurm.commands import CommandFailed, SlurmCommands
from flexo.clusters.slurm.hostlist import BadHostlist
from flexo.clusters.slurm.parse_jobs import (
    EXCLUDED_NODES,
    QueueRecord,
    fields_to_ask,
    format_for,
    parse_excluded_nodes,
    parse_queue,
    tag_in,
    to_job,
)
from flexo.clusters.slurm.parse_nodes import parse_nodes, parse_partitions
from flexo.clusters.slurm.text import BadValue, number
from flexo.model import JobState, Node, Partition, SlurmJob

T = TypeVar("T")

_SQUEUE = ("squeue", "--all", "--local", "--noheader")


class CommandReader:
    """The Reader that works with every release."""

    def __init__(self, commands: SlurmCommands, satellite_partitions: frozenset[str]) -> None:
        self._commands = commands
        self._satellite_partitions = satellite_partitions
        self._excluded_nodes: dict[int, frozenset[str]] = {}
        self._seen: dict[tuple[QueueRecord, frozenset[str]], SlurmJob] = {}
        """The jobs of the last look: most of a long queue is printed as before, and not read again."""

    @property
    def name(self) -> str:
        """`Slurm's commands`."""
        return "Slurm's commands"

    def look(self) -> tuple[tuple[SlurmJob, ...], tuple[Node, ...]]:
        """All jobs that wait, run or are ending; all nodes, with the GPUs in use (-d), hidden ones too (-a).

        What waits of a job array is one job. Slurm is asked for the nodes while its jobs are read.
        """
        records = _understood(self._queue)
        with ThreadPoolExecutor(1) as beside:
            nodes = beside.submit(self._nodes)
            try:
                return _understood(lambda: self._jobs(records)), nodes.result()
            finally:
                del nodes  # its error, raised here, would hold this frame, and this frame it: all records

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, hidden ones too."""
        output = self._commands.read("scontrol", "show", "partition", "-a", "-o")
        return _understood(lambda: parse_partitions(output))

    def _nodes(self) -> tuple[Node, ...]:
        output = self._commands.read("scontrol", "show", "node", "-a", "-d", "-o")
        return _understood(lambda: parse_nodes(output))

    def _jobs(self, records: list[QueueRecord]) -> tuple[SlurmJob, ...]:
        if EXCLUDED_NODES not in self._fields:
            self._learn_excluded_nodes(records)
        none: frozenset[str] = frozenset()
        seen, self._seen = self._seen, {}
        for record in records:
            excluded = self._excluded_nodes.get(number(record.job_id), none)
            printed = record, excluded
            job = seen.get(printed) or to_job(record, excluded, self._satellite_partitions)
            self._seen[printed] = job
        return tuple(self._seen.values())

    def _queue(self) -> list[QueueRecord]:
        names = self._fields
        # In the environment and not in an argument, where every user of this host could read it in time.
        separator = f"|{secrets.token_urlsafe(6)}"
        variables = {"SQUEUE_FORMAT2": format_for(names, separator)}
        output = self._commands.read(*_SQUEUE, "--noconvert", variables=variables)
        return parse_queue(output, names, separator)

    @cached_property
    def _fields(self) -> tuple[str, ...]:
        """What this squeue can print: a new release of Slurm is noticed when flexod starts again."""
        try:
            return fields_to_ask(self._commands.run(("squeue", "--helpFormat"), {}))
        except CommandFailed as failure:
            if "unrecognized option" not in failure.said:
                raise ClusterUnreachable(str(failure)) from failure
            return fields_to_ask("")

    def _learn_excluded_nodes(self, records: list[QueueRecord]) -> None:
        """Ask for the waiting jobs not known yet, and forget those that wait no more.

        Not for satellites, of which many may be new at once: each names its one node.
        """
        waiting = {
            number(record.job_id)
            for record in records
            if record.state == JobState.PENDING.value and not self._is_satellite(record)
        }
        known = {job_id: nodes for job_id, nodes in self._excluded_nodes.items() if job_id in waiting}
        new = waiting - known.keys()
        if new:
            # One job costs the controller 0.3 ms, any list of jobs as much as all jobs.
            which = f"--jobs={next(iter(new))}" if len(new) == 1 else "--states=PENDING"
            read = parse_excluded_nodes(self._excluded_nodes_of(which))
            known |= {job_id: read.get(job_id, frozenset()) for job_id in new}
        self._excluded_nodes = known

    def _is_satellite(self, record: QueueRecord) -> bool:
        partitions = tuple(record.partitions.split(","))
        return tag_in(record.comment, partitions, self._satellite_partitions) is not None

    def _excluded_nodes_of(self, which: str) -> str:
        try:
            return self._commands.run((*_SQUEUE, which, "--format=%A %x"), {})
        except CommandFailed as failure:
            if "invalid job id" in failure.said.lower():
                return ""  # the one job asked about has ended meanwhile
            raise ClusterUnreachable(str(failure)) from failure


def _understood(parse: Callable[[], T]) -> T:
    """What `parse` makes of Slurm's words. An answer that makes no sense is no answer."""
    try:
        return parse()
    except (BadValue, BadHostlist) as error:
        raise ClusterUnreachable(f"Slurm's answer was not understood: {error}") from error
