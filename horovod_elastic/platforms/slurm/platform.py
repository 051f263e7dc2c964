"""The Platform for Slurm: a process's job, from its environment and from scontrol."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from horovod_elastic.job_plan import BaseJob, JobPlan, Site
from horovod_elastic.platforms.base import Allocation
from horovod_elastic.platforms.slurm import environment as environments
from horovod_elastic.platforms.slurm import inherited, preemption
from horovod_elastic.platforms.slurm.commands import ask_patiently
from horovod_elastic.platforms.slurm.job_control import SlurmJobControl


class SlurmPlatform:
    """Platform over Slurm; `environment` is that of this process."""

    name = "Slurm"

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def allocation(self) -> Allocation:
        """The Slurm job of this process, on this node."""
        return environments.allocation(self._environment)

    def base_job(self) -> BaseJob:
        """The Slurm job whose batch script this process is."""
        return environments.base_job(environments.with_recorded_options(self._environment))

    def site(self) -> Site:
        """Slurm's own configuration."""
        shown = ask_patiently(["scontrol", "show", "config"], self._environment)
        settings = dict(re.findall(r"^(\S+)\s*= (.*)$", shown, re.MULTILINE))
        return Site(
            # If Slurm does not bind tasks, srun warns about the option not to bind them.
            binds_cpus=re.search("affinity|cgroup", settings.get("TaskPlugin", "")) is not None,
            # With proctrack/cgroup a signal to a step reaches only the processes that Slurm started.
            signals_reach_all="cgroup" not in settings.get("ProctrackType", ""),
            controller=settings.get("SlurmctldHost[0]", "").partition("(")[0].strip(),
        )

    def node_address(self, node: str) -> str:
        """The address at which Slurm reaches `node`: its NodeAddr."""
        return self._shown_of_node(node, "NodeAddr")

    def host_name(self, node: str) -> str:
        """The host that `node` is on: its NodeHostName."""
        return self._shown_of_node(node, "NodeHostName")

    def output_path(self, job_id: str) -> str:
        """The file that the base's standard output goes to."""
        shown = ask_patiently(["scontrol", "show", "job", job_id, "--oneliner"], self._environment)
        match = re.search(r" StdOut=(.*?)(?: Power=| \w+=|$)", shown)
        return match[1] if match and match[1].startswith("/") else ""

    def satellite_options(self, job_id: str) -> tuple[str, ...]:
        """The options of sbatch by which satellites repeat the base's request: see inherited.py."""
        return inherited.satellite_options(job_id, self._environment)

    def takes_back(self, job_id: str) -> bool:
        """Whether Slurm preempts this satellite: see preemption.py."""
        return preemption.was_told_to_go(job_id, self._environment)

    def requeue_if_preempted(self, job_id: str) -> bool:
        """See preemption.py."""
        return preemption.requeue_if_preempted(job_id, self._environment)

    def control(self, plan: JobPlan, command: Sequence[str]) -> SlurmJobControl:
        """Slurm's commands for the job with this plan."""
        return SlurmJobControl(plan, self._environment, command)

    def rank_variables(self, rank: int, size: int, local_rank: int) -> Mapping[str, str]:
        """The variables of a task that srun had started; see RankVariables."""
        tasks = dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(size))
        return {**tasks, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local_rank)}

    def _shown_of_node(self, node: str, what: str) -> str:
        shown = ask_patiently(["scontrol", "show", "node", node, "--oneliner"], self._environment)
        match = re.search(rf"\b{what}=(\S+)", shown)
        return match[1] if match else node
