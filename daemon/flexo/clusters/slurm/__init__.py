"""A Slurm cluster behind flexo's `Cluster` interface: `connect` makes one."""

from flexo.clusters.slurm.adapter import SlurmCluster, connect

__all__ = ["SlurmCluster", "connect"]
