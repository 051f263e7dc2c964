"""A Slurm cluster behind flexo's `Cluster` interface: `connect` makes one."""

from flexo.clusters.slurm.adapter import SlurmCluster, connect
from flexo.clusters.slurm.borrowed import BorrowedPartition

__all__ = ["BorrowedPartition", "SlurmCluster", "connect"]
