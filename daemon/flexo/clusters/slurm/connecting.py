"""Chooses how to read a Slurm cluster: with pyslurm if it is installed, fits and shows enough; else with
commands."""

from __future__ import annotations

import structlog

from flexo.clusters.base import ClusterUnreachable, Site
from flexo.clusters.slurm.adapter import SlurmCluster, satellite_partitions
from flexo.clusters.slurm.reader_pyslurm import PyslurmReader, is_installed
from flexo.clusters.slurm.releases import Release
from flexo.clusters.slurm.settings import SlurmSettings

_log = structlog.get_logger("flexo.clusters")


def connect(settings: SlurmSettings, site: Site) -> SlurmCluster:
    """Connect to the cluster. slurmctld need not answer: while it is away, flexod reads with commands.

    `read_with` of the result names the reader, and why it was chosen.
    """
    cluster = _connect(settings, site)
    _log.info(f"the cluster is read with {cluster.read_with}")
    return cluster


def _connect(settings: SlurmSettings, site: Site) -> SlurmCluster:
    with_commands = SlurmCluster(settings, site)
    if not is_installed():
        return with_commands
    satellites = satellite_partitions(settings, site)
    reader = PyslurmReader(settings.conf, satellites, settings.timeout_s, site.call_ended)
    reason = _why_not(reader, with_commands)
    if reason:
        reader.close()
        with_commands.read_with = f"Slurm's commands (pyslurm is installed, but {reason})"
        return with_commands
    return SlurmCluster(settings, site, reader)


def _why_not(reader: PyslurmReader, cluster: SlurmCluster) -> str:
    try:
        wanted, reads = cluster.traits().version, reader.reads()
        if reads is None or reads != Release.found_in(wanted):
            return f"{reader.version()} is not made for Slurm {wanted}"
        return reader.why_not_enough()
    except ClusterUnreachable as error:
        return str(error)
