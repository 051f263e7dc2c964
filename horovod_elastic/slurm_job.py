"""What Slurm's environment says of the base, and the environment without it, for what the base submits."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
# Inside a job these would leak into what it submits and launches, each breaking it in a way of its own.
_POISON = re.compile(
    r"(SLURM_|SBATCH_|SRUN_|SALLOC_|SPANK_|_SLURM|SLURMD_|PMI|PMIX|OMPI_|FLEXO_ELASTIC)"
    r"|(CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK)$"
)
_KEEP = frozenset({"SLURM_CONF", "SLURM_TIME_FORMAT"})
COMMAND_TIMEOUT_S = 60
RESTARTS_WITHIN_S = 300.0
"""How long a job that starts waits for slurmctld."""
_PAUSE_S = 1.0


class NotInAJob(Exception):
    """The environment is not that of a Slurm job that flexo can run in; the message says why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one worker takes: GPUs, CPUs, memory in MiB (0: whatever the partition's default gives)."""

    gpus: int
    cpus: int
    memory_mib: int
    gpu_type: str


@dataclass(frozen=True, slots=True)
class BaseNode:
    """A node of the base and how many of its workers run there."""

    name: str
    workers: int


@dataclass(frozen=True, slots=True)
class BaseJob:
    """The user's own Slurm job. `minimum` and `maximum` are equal when it did not ask for more sizes."""

    job_id: int
    restart_count: int
    nodes: tuple[BaseNode, ...]
    shape: Shape
    minimum: int
    maximum: int
    account: str
    batch: str = ""
    """The aggregate batches that it may train with, MIN-MAX samples (--elastic-batch); "" for its own one."""
    declared: bool = False
    """It was submitted with --elastic, so that flexod knows it: also with a range of one size."""
    heterogeneous: bool = False
    """Its workers may be on several GPU types in the same run (--elastic-heterogeneous)."""

    @property
    def elastic(self) -> bool:
        """Whether it may grow."""
        return self.maximum > self.minimum

    @property
    def workers(self) -> int:
        """Workers that the base itself holds."""
        return sum(node.workers for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Site:
    """What flexo has to know of the cluster's configuration."""

    binds_cpus: bool = True
    """Tasks are bound to CPUs; where not, srun warns of being told not to."""
    signals_reach_all: bool = True
    """A signal to a step reaches all its processes; with proctrack/cgroup only those that Slurm started."""
    controller: str = ""
    """The host of slurmctld, "" if unknown."""


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what Slurm put there for this job, so that it can submit and launch others."""
    return {
        name: value for name, value in environment.items() if name in _KEEP or _POISON.match(name) is None
    }


def agent_name(node: str, job_id: int) -> str:
    """What the agent of `node` in the Slurm job `job_id` is called; to Horovod's core it is a host."""
    return f"{node}-{job_id}"


def base_job(environment: Mapping[str, str]) -> BaseJob:
    """Read the base from the environment of its batch script. Raises NotInAJob."""
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        raise NotInAJob(
            "flexo run works inside a Slurm job: submit a script that calls it, for example\n"
            "    sbatch -n 2 --gpus-per-task=1 --elastic=2-8 train.sbatch"
        )
    names = _node_names(environment["SLURM_JOB_NODELIST"])
    tasks = _tasks_per_node(environment, len(names))
    nodes = tuple(BaseNode(name, count) for name, count in zip(names, tasks, strict=True))
    total = sum(tasks)
    minimum = maximum = total
    if text := environment.get("FLEXO_ELASTIC", ""):
        match = RANGE.fullmatch(text)
        if match is None or int(match[2]) < int(match[1]) or int(match[1]) < 1:
            raise NotInAJob(f"FLEXO_ELASTIC is '{text}', which is no range MIN-MAX such as 2-8")
        minimum, maximum = int(match[1]), max(int(match[2]), total)
    return BaseJob(
        job_id=int(environment["SLURM_JOB_ID"]),
        restart_count=int(environment.get("SLURM_RESTART_COUNT", "0")),
        nodes=nodes,
        shape=_shape(environment, tasks),
        minimum=min(minimum, total),
        maximum=maximum,
        account=environment.get("SLURM_JOB_ACCOUNT", ""),
        batch=environment.get("FLEXO_ELASTIC_BATCH", ""),
        declared=bool(text),
        heterogeneous=environment.get("FLEXO_ELASTIC_HETEROGENEOUS", "") == "1",
    )


def with_recorded_range(environment: Mapping[str, str]) -> Mapping[str, str]:
    """`environment` with FLEXO_ELASTIC (_BATCH, _HETEROGENEOUS), also where the job said it by --comment.

    Nobody set it then. The controller's side of the plugin has checked the comment and written what it says
    into AdminComment.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if "FLEXO_ELASTIC" in environment or not job_id:
        return environment
    shown = _ask_patiently(["scontrol", "show", "job", job_id, "--oneliner"], environment)
    match = re.search(r" AdminComment=(?:\S+ )*?flexo\{workers=(\d+-\d+)(\S*)\}", shown)
    if match is None:
        return environment
    batch = re.search(r";batch=(\d+-\d+)", match[2])
    return {
        **environment,
        "FLEXO_ELASTIC": match[1],
        "FLEXO_ELASTIC_BATCH": batch[1] if batch else "",
        "FLEXO_ELASTIC_HETEROGENEOUS": "1" if ";heterogeneous" in match[2] else "",
    }


def gpus_here(environment: Mapping[str, str]) -> list[int]:
    """The GPUs of this Slurm job on this node as Slurm numbers them, in the order of slots; [] if unknown."""
    numbers = environment.get("SLURM_JOB_GPUS", "").split(",")
    return [int(number) for number in numbers] if all(map(str.isdecimal, numbers)) else []


def node_address(node: str, environment: Mapping[str, str]) -> str:
    """Where Slurm reaches `node`: its NodeAddr."""
    match = re.search(r"\bNodeAddr=(\S+)", show_node(node, environment))
    return match[1] if match else node


def show_node(node: str, environment: Mapping[str, str]) -> str:
    """What scontrol says of a node, in one line."""
    return _ask_patiently(["scontrol", "show", "node", node, "--oneliner"], environment)


def site(environment: Mapping[str, str]) -> Site:
    """What Slurm says of its own configuration."""
    shown = _ask_patiently(["scontrol", "show", "config"], environment)
    settings = dict(re.findall(r"^(\S+)\s*= (.*)$", shown, re.MULTILINE))
    return Site(
        binds_cpus=re.search("affinity|cgroup", settings.get("TaskPlugin", "")) is not None,
        signals_reach_all="cgroup" not in settings.get("ProctrackType", ""),
        controller=settings.get("SlurmctldHost[0]", "").partition("(")[0].strip(),
    )


def output_path(job_id: int, environment: Mapping[str, str]) -> str | None:
    """The file that the base's standard output goes to, so that satellites can write there too."""
    shown = _ask_patiently(["scontrol", "show", "job", str(job_id), "--oneliner"], environment)
    match = re.search(r" StdOut=(.*?)(?: Power=| \w+=|$)", shown)
    return match[1] if match and match[1].startswith("/") else None


def _node_names(nodelist: str) -> list[str]:
    if not re.search(r"[\[\],]", nodelist):
        return [nodelist]
    return ask(["scontrol", "show", "hostnames", nodelist], None).split()


def _tasks_per_node(environment: Mapping[str, str], nodes: int) -> list[int]:
    """SLURM_TASKS_PER_NODE is like "2(x3),1": two tasks on each of three nodes, one on the fourth."""
    text = environment.get("SLURM_TASKS_PER_NODE", "1")
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d*)(?:\(x(\d+)\))?", part)
        if match is None:
            raise NotInAJob(f"SLURM_TASKS_PER_NODE is '{text}', which cannot be read")
        counts += [int(match[1])] * int(match[2] or 1)
    if "SLURM_NTASKS" not in environment:
        # Without -n, Slurm counts CPUs here; the job asked for one worker a node.
        counts = [1] * nodes
    if len(counts) != nodes:
        raise NotInAJob(f"SLURM_TASKS_PER_NODE is '{text}' for {nodes} nodes")
    return counts


def _shape(environment: Mapping[str, str], tasks: list[int]) -> Shape:
    gpu_type, gpus = _gpus(environment, tasks)
    cpus = int(environment.get("SLURM_CPUS_PER_TASK", "0"))
    if not cpus:
        on_node = int(environment.get("SLURM_CPUS_ON_NODE", "1"))
        cpus = max(1, on_node // tasks[0])
    return Shape(gpus, cpus, _memory(environment, gpus, cpus, tasks), gpu_type)


def _gpus(environment: Mapping[str, str], tasks: list[int]) -> tuple[str, int]:
    """GPU type ("" if not named) and GPUs of one worker. "a100:2" -> ("a100", 2), "a100" -> ("a100", 1).

    What is asked for each node has to do for the node with the most workers.
    """
    for variable, workers in (
        ("SLURM_GPUS_PER_TASK", 1),
        ("SLURM_GPUS_PER_NODE", max(tasks)),
        ("SLURM_GPUS", sum(tasks)),
    ):
        if text := environment.get(variable, ""):
            match = re.fullmatch(r"(?:(?P<kind>[A-Za-z_][^:,]*)(?::(?P<some>\d+))?|(?P<all>\d+))", text)
            if match is None:
                raise NotInAJob(f"{variable} is '{text}'; GPUs of one type can be used, such as 4 or a100:4")
            return match["kind"] or "", int(match["all"] or match["some"] or 1) // workers
    return "", len([g for g in environment.get("SLURM_JOB_GPUS", "").split(",") if g]) // max(tasks)


def _memory(environment: Mapping[str, str], gpus: int, cpus: int, tasks: list[int]) -> int:
    if text := environment.get("SLURM_MEM_PER_CPU", ""):
        return int(text) * cpus
    if text := environment.get("SLURM_MEM_PER_GPU", ""):
        return int(text) * gpus
    if text := environment.get("SLURM_MEM_PER_NODE", ""):
        return int(text) // max(tasks)
    return 0


def _ask_patiently(command: list[str], environment: Mapping[str, str]) -> str:
    """As `ask`, but waits while slurmctld is down: jobs start while it restarts. Raises NotInAJob."""
    deadline = time.monotonic() + RESTARTS_WITHIN_S
    again = True  # once in any case: slurmctld may be up again by the time that it is pinged
    while True:
        try:
            return ask(command, environment)
        except NotInAJob as error:
            no_slurm = isinstance(error.__cause__, FileNotFoundError)
            if no_slurm or time.monotonic() > deadline or not (again or _slurmctld_is_down(environment)):
                raise
        again = False
        time.sleep(_PAUSE_S)


def _slurmctld_is_down(environment: Mapping[str, str]) -> bool:
    command, clean = ["scontrol", "ping"], clean_environment(environment)
    try:
        said = subprocess.run(
            command, env=clean, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "DOWN" in said and " UP" not in said


def ask(command: list[str], environment: Mapping[str, str] | None) -> str:
    """What a Slurm command prints, run without what Slurm put into `environment`. Raises NotInAJob."""
    try:
        done = subprocess.run(
            command,
            env=None if environment is None else clean_environment(environment),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=True,
        )
    except FileNotFoundError as error:
        raise NotInAJob(f"{command[0]} is not on PATH: is this a node of a Slurm cluster?") from error
    except subprocess.CalledProcessError as error:
        raise NotInAJob(f"{' '.join(command)}: {error.stderr.strip() or 'failed'}") from error
    except subprocess.TimeoutExpired as error:
        raise NotInAJob(f"{' '.join(command)}: no answer within {COMMAND_TIMEOUT_S} s") from error
    return done.stdout
