"""Calls of Slurm's commands from a job, without the variables that Slurm put into the job's environment."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping

from horovod_elastic.platforms.base import ANSWERS_WITHIN_S, NotInAJob

# A job's variables, each of which would break the jobs and steps that it submits and launches, or hide these
# from squeue.
_POISON = re.compile(
    r"(SLURM_|SBATCH_|SRUN_|SALLOC_|SQUEUE_|SPANK_|_SLURM|SLURMD_|PMI|PMIX|OMPI_|FLEXO_ELASTIC)"
    r"|(CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK)$"
)
_KEEP = frozenset({"SLURM_CONF", "SLURM_TIME_FORMAT"})
RESTARTS_WITHIN_S = 300.0
"""Longest time that a job that starts waits for slurmctld."""
PAUSE_S = 1.0


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without Slurm's variables for this job, so that the job can submit and launch others."""
    return {
        name: value for name, value in environment.items() if name in _KEEP or _POISON.match(name) is None
    }


def ask_patiently(command: list[str], environment: Mapping[str, str]) -> str:
    """Call `ask`, but wait while slurmctld is down: jobs start while it restarts. Raises NotInAJob."""
    deadline = time.monotonic() + RESTARTS_WITHIN_S
    again = True  # retry once in any case: slurmctld may be up again by the time of the ping
    while True:
        try:
            return ask(command, environment)
        except NotInAJob as error:
            no_slurm = isinstance(error.__cause__, FileNotFoundError)
            if no_slurm or time.monotonic() > deadline or not (again or _slurmctld_is_down(environment)):
                raise
        again = False
        time.sleep(PAUSE_S)


def _slurmctld_is_down(environment: Mapping[str, str]) -> bool:
    command, clean = ["scontrol", "ping"], clean_environment(environment)
    try:
        said = subprocess.run(
            command, env=clean, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "DOWN" in said and " UP" not in said


def ask(command: list[str], environment: Mapping[str, str] | None) -> str:
    """The output of a Slurm command, run without Slurm's variables in `environment`. Raises NotInAJob."""
    try:
        done = subprocess.run(
            command,
            env=None if environment is None else clean_environment(environment),
            capture_output=True,
            text=True,
            errors="replace",  # users name their jobs in whatever encoding they like
            timeout=ANSWERS_WITHIN_S,
            check=True,
        )
    except FileNotFoundError as error:
        raise NotInAJob(f"{command[0]} is not on PATH: is this a node of a Slurm cluster?") from error
    except subprocess.CalledProcessError as error:
        raise NotInAJob(f"{' '.join(command)}: {error.stderr.strip() or 'failed'}") from error
    except subprocess.TimeoutExpired as error:
        raise NotInAJob(f"{' '.join(command)}: no answer within {ANSWERS_WITHIN_S} s") from error
    return done.stdout
