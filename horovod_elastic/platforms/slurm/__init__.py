"""A job's access to Slurm. A satellite is a small preemptible Slurm job of the same user."""

from horovod_elastic.platforms.base import Kind
from horovod_elastic.platforms.slurm.environment import JOB_ID
from horovod_elastic.platforms.slurm.job_control import KIND_NAME
from horovod_elastic.platforms.slurm.platform import SlurmPlatform

KIND = Kind(KIND_NAME, recognizes=lambda environment: JOB_ID in environment, open=SlurmPlatform)
