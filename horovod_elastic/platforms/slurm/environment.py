"""Reads Slurm's description of a job, and the job's range, from the environment of its processes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flexo_protos.resources import Resources
from horovod_elastic.job_plan import BaseJob, BaseNode
from horovod_elastic.platforms.base import Allocation, NotInAJob
from horovod_elastic.platforms.slurm import commands

JOB_ID = "SLURM_JOB_ID"
RANGE, OPPORTUNISTIC, COHOST = "FLEXO_ELASTIC", "FLEXO_ELASTIC_OPPORTUNISTIC", "FLEXO_ELASTIC_COHOST"
"""Variables of the batch script: the range of an elastic job, that of an opportunistic one, and whether the
job shares its GPUs."""
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_GPUS_PER_NODE, _TRES_PER_TASK = "SLURM_GPUS_PER_NODE", "SLURM_TRES_PER_TASK"
_GPUS_AMONG_TRES = re.compile(r"(?:^|,)gres[/:]gpu[:=]([^,]+)")
"""The GPUs among resources such as "cpu:2,gres/gpu:a100:1"."""


def allocation(environment: Mapping[str, str]) -> Allocation:
    """The allocation of the Slurm job on this node, with its GPUs as Slurm numbers them there."""
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    # Slurm 22.05 tells a step of its own GPUs alone, and the batch script of the job's.
    numbers = (environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS", "")).split(",")
    return Allocation(
        node=environment.get("SLURMD_NODENAME", ""),
        job_id=environment.get(JOB_ID, ""),
        restart_count=int(restarts) if restarts.isdecimal() else 0,
        gpus=tuple(map(int, numbers)) if all(map(str.isdecimal, numbers)) else (),
    )


def base_job(environment: Mapping[str, str]) -> BaseJob:
    """Read the base from the environment of its batch script. Raises NotInAJob."""
    if JOB_ID not in environment or "SLURM_JOB_NODELIST" not in environment:
        raise NotInAJob(
            "flexo run works inside a Slurm job: submit a script that calls it, for example\n"
            "    sbatch -n 2 --gpus-per-task=1 --elastic=2-8 train.sbatch"
        )
    names = node_names(environment["SLURM_JOB_NODELIST"])
    tasks = _tasks_per_node(environment, len(names))
    if text := environment.get(OPPORTUNISTIC, ""):
        return _opportunistic(environment, names, tasks, text)
    nodes = tuple(BaseNode(name, count) for name, count in zip(names, tasks, strict=True))
    total = sum(tasks)
    minimum = maximum = total
    if text := environment.get(RANGE, ""):
        minimum, maximum = _range(RANGE, text, text)
        maximum = max(maximum, total)
    return BaseJob(
        job_id=environment[JOB_ID],
        restart_count=int(environment.get("SLURM_RESTART_COUNT", "0")),
        nodes=nodes,
        shape=_shape(environment, tasks),
        minimum=min(minimum, total),
        maximum=maximum,
        account=environment.get("SLURM_JOB_ACCOUNT", ""),
        batch=environment.get("FLEXO_ELASTIC_BATCH", ""),
        declared=bool(text),
        heterogeneous=environment.get("FLEXO_ELASTIC_HETEROGENEOUS", "") == "1",
        cohost=environment.get(COHOST, "") == "1",
    )


def _range(variable: str, text: str, sizes: str) -> tuple[int, int]:
    """MIN and MAX in `sizes`, a part of the variable's `text`. Raises NotInAJob."""
    match = _RANGE.fullmatch(sizes)
    if match is None or int(match[2]) < int(match[1]) or int(match[1]) < 1:
        raise NotInAJob(f"{variable} is '{text}', which is no range MIN-MAX such as 2-8")
    return int(match[1]), int(match[2])


def _opportunistic(environment: Mapping[str, str], names: list[str], tasks: list[int], text: str) -> BaseJob:
    """The base of an opportunistic job: one node, CPUs only, and no workers. Raises NotInAJob.

    A worker, in a satellite, has one GPU, and the CPUs and the memory of a task of the base.
    """
    if environment.get(RANGE):
        raise NotInAJob(
            f"{RANGE} is '{environment[RANGE]}' and {OPPORTUNISTIC} is '{text}': a job has one of them."
            " Submit it with --elastic or with --elastic-opportunistic"
        )
    if len(names) > 1:
        raise NotInAJob(f"the base of an opportunistic job has one node, and this one {len(names)}: use -N 1")
    sizes, comma, auto = text.partition(",")
    if comma and auto != "auto":
        raise NotInAJob(f"{OPPORTUNISTIC} is '{text}': allowed are MIN-MAX and MIN-MAX,auto")
    minimum, maximum = _range(OPPORTUNISTIC, text, sizes)
    shape = _shape(environment, tasks)
    return BaseJob(
        job_id=environment[JOB_ID],
        restart_count=int(environment.get("SLURM_RESTART_COUNT", "0")),
        nodes=(BaseNode(names[0], 0),),
        shape=Resources(1, shape.cpus, shape.memory_mib, ""),
        minimum=minimum,
        maximum=maximum,
        account=environment.get("SLURM_JOB_ACCOUNT", ""),
        batch=environment.get("FLEXO_ELASTIC_BATCH", ""),
        declared=True,
        heterogeneous=environment.get("FLEXO_ELASTIC_HETEROGENEOUS", "") == "1",
        opportunistic=True,
    )


def with_recorded_options(environment: Mapping[str, str]) -> Mapping[str, str]:
    """`environment` with the variables of all options, also of those that were not options of sbatch.

    Slurm sets no variables for what a job's comment says, nor for what the site adds, such as
    cohost_accounts. The controller's side of the plugin has checked it and written it into AdminComment.
    """
    job_id = environment.get(JOB_ID, "")
    if not job_id:
        return environment
    try:
        shown = commands.ask_patiently(["scontrol", "show", "job", job_id, "--oneliner"], environment)
    except NotInAJob:
        if RANGE in environment or OPPORTUNISTIC in environment:
            return environment
        raise
    match = re.search(r" AdminComment=(?:\S+ )*?flexo\{workers=(\d+-\d+)(\S*)\}", shown)
    if match is None:
        return environment
    batch = re.search(r";batch=(\d+-\d+)", match[2])
    opportunistic = re.search(r";opportunistic(=auto)?", match[2])
    size = {RANGE: match[1]}
    if opportunistic:
        size = {OPPORTUNISTIC: match[1] + (",auto" if opportunistic[1] else "")}
    return {
        **{name: value for name, value in environment.items() if name not in (RANGE, OPPORTUNISTIC)},
        **size,
        COHOST: "1" if ";cohost" in match[2] else "",
        "FLEXO_ELASTIC_BATCH": batch[1] if batch else "",
        "FLEXO_ELASTIC_HETEROGENEOUS": "1" if ";heterogeneous" in match[2] else "",
        **_type_of_gres(shown),
    }


def _type_of_gres(shown: str) -> dict[str, str]:
    """GPUs of a type, said by --gres, for which Slurm sets no variable, as if said by --gpus-per-node."""
    match = re.search(r" TresPerNode=(?:\S*,)?gres[:/]gpu:([^:,\s]+:\d+)", shown)
    return {_GPUS_PER_NODE: match[1]} if match else {}


def node_names(nodelist: str) -> list[str]:
    """The names of the nodes in Slurm's list."""
    if not re.search(r"[\[\],]", nodelist):
        return [nodelist]
    return commands.ask(["scontrol", "show", "hostnames", nodelist], None).split()


def _tasks_per_node(environment: Mapping[str, str], nodes: int) -> list[int]:
    """The number of tasks on each node.

    SLURM_TASKS_PER_NODE is like "2(x3),1": two tasks on each of three nodes, one on the fourth.
    """
    text = environment.get("SLURM_TASKS_PER_NODE", "1")
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d*)(?:\(x(\d+)\))?", part)
        if match is None:
            raise NotInAJob(f"SLURM_TASKS_PER_NODE is '{text}', which cannot be read")
        counts += [int(match[1])] * int(match[2] or 1)
    if "SLURM_NTASKS" not in environment:
        # Without -n, Slurm counts CPUs here. The job asked for one worker for each node.
        counts = [1] * nodes
    if len(counts) != nodes:
        raise NotInAJob(f"SLURM_TASKS_PER_NODE is '{text}' for {nodes} nodes")
    return counts


def _shape(environment: Mapping[str, str], tasks: list[int]) -> Resources:
    gpu_type, gpus = _gpus(environment, tasks)
    cpus = int(environment.get("SLURM_CPUS_PER_TASK", "0"))
    if not cpus:
        on_node = int(environment.get("SLURM_CPUS_ON_NODE", "1"))
        cpus = max(1, on_node // tasks[0])
    return Resources(gpus, cpus, _memory(environment, gpus, cpus, tasks), gpu_type)


def _gpus(environment: Mapping[str, str], tasks: list[int]) -> tuple[str, int]:
    """GPU type ("" if not named) and GPUs of one worker. "a100:2" -> ("a100", 2), "a100" -> ("a100", 1).

    A request for each node must be enough for the node with the most workers.
    """
    of_each_task = ",".join(_GPUS_AMONG_TRES.findall(environment.get(_TRES_PER_TASK, "")))
    said = {**environment, _TRES_PER_TASK: of_each_task}
    for variable, workers in (
        ("SLURM_GPUS_PER_TASK", 1),
        (_TRES_PER_TASK, 1),
        (_GPUS_PER_NODE, max(tasks)),
        ("SLURM_GPUS", sum(tasks)),
    ):
        if text := said.get(variable, ""):
            match = re.fullmatch(r"(?P<all>\d+)|(?P<kind>\w[^:,]*)(?::(?P<some>\d+))?", text)
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
