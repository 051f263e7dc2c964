"""What is left of another launcher's command, such as torchrun's, when flexo starts the processes.

`flexo run torchrun --nproc-per-node=2 train.py` starts what torchrun would start, once for each worker of the
job. torchrun's own processes and its search for other nodes are left out: flexo's agents do that work. What
a launcher would give the script stays: Python's options, arguments and variables.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PYTHON_VARIABLE = "PYTHON_EXEC"
"""torchrun's variable for the Python that runs the script."""
_ACCELERATE = "accelerate launch"
_MODULES = {
    "torch.distributed.run": "torch.distributed.run",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": _ACCELERATE,
}
"""The launchers that are modules of Python."""

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_FLAGS_WITH_VALUES = "WX"
"""Python's short options that take a value, besides -m and -c."""
_START_PROCESSES = ("deepspeed", "horovodrun", "mpirun", "mpiexec")
"""Launchers whose processes flexo cannot start for them."""

_DROPPED = (
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--max-restarts"),
    *("--monitor-interval", "--start-method", "--event-log-handler", "--node-rank", "--master-addr"),
    *("--master-port", "--local-addr", "--signals-to-handle", "--shutdown-timeout", "--logs-specs"),
)
"""torchrun's options about its own processes. They say nothing to the script."""
_MISSED = (
    *(("--log-dir", ""), ("--redirects", "-r"), ("--tee", "-t"), ("--local-ranks-filter", "")),
    *(("--duplicate-stdout-filters", ""), ("--duplicate-stderr-filters", ""), ("--numa-binding", "")),
)
"""Options that have a visible effect under torchrun and none under flexo."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The base of the job: its workers, and the nodes that they are on."""

    workers: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Launch:
    """What flexo starts for each worker."""

    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    """Variables for all workers, by name."""
    notes: tuple[str, ...] = ()
    """One line for the user about each part of the command line that has no effect."""
    fixed: str = ""
    """Why the job keeps the size of its base; "" if it need not."""


@dataclass(frozen=True, slots=True)
class Accelerated:
    """What `accelerate launch` would start. `python`: whether `command` is a Python script or module."""

    command: tuple[str, ...]
    python: bool
    variables: tuple[tuple[str, str], ...]
    processes: int
    """The number of processes on the command line or in the configuration; 0 if none is given."""
    missed: tuple[str, ...] = ()
    """Options that have no effect under flexo."""
    fixed: str = ""
    """See Launch."""


Ask = Callable[[str, Sequence[str]], Accelerated]
"""Asks the Accelerate of a Python, named by its path, about these arguments. Raises ValueError."""


def launcher_in(command: Sequence[str]) -> str:
    """The launcher that a command begins with, such as "torchrun"; "" if flexo knows none."""
    return _split(command)[0]


def read(
    command: Sequence[str],
    tasks: Tasks,
    ask: Ask,
    python: str = "",
    variables: Mapping[str, str] = os.environ,
) -> Launch:
    """What flexo starts for `command`: the command itself if it names no launcher that flexo knows.

    `python`: the Python of the workers, if that is not the launcher's on this machine. `variables`: those
    that workers get anyway. Raises ValueError, saying what is allowed.
    """
    launcher, arguments = _split(command)
    if not launcher:
        _refuse_bare_script(command[0])
        return Launch(tuple(command))
    if launcher in _START_PROCESSES:
        raise ValueError(
            f"{launcher} starts processes itself, and so does flexo: one for each worker of the job. Name the"
            " script instead: python train.py"
        )
    if _PYTHON.fullmatch(Path(command[0]).name):
        python = command[0]
    python = python or _python_of(command[0])
    if launcher == _ACCELERATE:
        return _of_accelerate(python, arguments, tasks, ask)
    return _of_torchrun(launcher, python, arguments, tasks, variables)


def python_in(command: Sequence[str]) -> str:
    """The path of the Python that a command begins with; "" if it begins with something else."""
    return (shutil.which(command[0]) or "") if _PYTHON.fullmatch(Path(command[0]).name) else ""


def _split(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The launcher in a command, and its arguments."""
    program = Path(command[0]).name
    if program in ("torchrun", *_START_PROCESSES):
        return program, command[1:]
    if program == "accelerate-launch":
        return _ACCELERATE, command[1:]
    if program == "accelerate" and list(command[1:2]) == ["launch"]:
        return _ACCELERATE, command[2:]
    if _PYTHON.fullmatch(program):
        module, arguments = _module_in(command[1:])
        if module in _MODULES:
            return _MODULES[module], arguments
    return "", command


def _module_in(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The module that Python runs with these arguments, and the module's own; "" if it runs none."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and not rest[0].startswith("--") and rest[0] != "-":
        letters = rest.pop(0)[1:]
        for place, letter in enumerate(letters):
            if letter not in f"mc{_FLAGS_WITH_VALUES}":
                continue
            value = letters[place + 1 :] or (rest.pop(0) if rest else "")
            if letter == "m":
                return value, rest
            if letter == "c":
                return "", rest
            break
    return "", rest


def _python_of(program: str) -> str:
    """The Python of an installed program. Raises ValueError if there is no such program."""
    found = shutil.which(program)
    if found is None:
        raise ValueError(
            f"{program}: no such program in PATH ({os.environ.get('PATH', '')}). Activate the environment"
            " that has it before flexo run"
        )
    with Path(found).open("rb") as file:
        first = file.readline(4096).decode(errors="replace")
    interpreter = first[2:].strip() if first.startswith("#!") else ""
    if _PYTHON.fullmatch(Path(interpreter).name):
        return interpreter
    beside = Path(found).parent / "python"
    return str(beside) if beside.exists() else "python3"


def _refuse_bare_script(program: str) -> None:
    """Raise ValueError if the command begins with a Python script that cannot be run as a program."""
    if program.endswith(".py") and Path(program).is_file() and shutil.which(program) is None:
        raise ValueError(
            f"{program} is a Python script, and there is no such program in PATH. Did you mean"
            f" `flexo run python {program}`?"
        )


# --- torchrun -------------------------------------------------------------------------------------------


class _Options(argparse.Namespace):
    """torchrun's options that matter to flexo."""

    nnodes: str | None
    nproc_per_node: str | None
    role: str | None
    module: bool
    no_python: bool
    run_path: bool
    virtual_local_rank: bool
    use_env: bool
    training_script: str
    training_script_args: list[str]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser(launcher: str) -> _Parser:
    """torchrun's command line. As in torchrun, options may be abbreviated, and "_" may stand for "-"."""
    parser = _Parser(prog=launcher, add_help=False)

    def add(name: str, short: str = "", *, flag: bool = False) -> None:
        names = dict.fromkeys(filter(None, [short, name, f"--{name[2:].replace('-', '_')}"]))
        if flag:
            parser.add_argument(*names, action="store_true")
        else:
            parser.add_argument(*names)

    for name in ("--nnodes", "--nproc-per-node", "--role", *_DROPPED):
        add(name)
    for name, short in _MISSED:
        add(name, short)
    add("--module", "-m", flag=True)
    for name in ("--no-python", "--run-path", "--virtual-local-rank", "--standalone"):
        add(name, flag=True)
    if launcher == "torch.distributed.launch":
        add("--use-env", flag=True)
    else:
        parser.set_defaults(use_env=True)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _of_torchrun(
    launcher: str, python: str, arguments: Sequence[str], tasks: Tasks, given: Mapping[str, str]
) -> Launch:
    try:
        options = _parser(launcher).parse_args(list(arguments), namespace=_Options())
    except ValueError as error:
        raise ValueError(
            f"{launcher}: {error}. Allowed are torchrun's own options (torchrun --help), before the script"
        ) from None
    if options.virtual_local_rank:
        raise ValueError(
            f"{launcher} --virtual-local-rank: not supported by flexo run. Remove the option: a worker with"
            " several GPUs sees only its own"
        )
    variables = [("ROLE_NAME", options.role)] if options.role else []
    if tasks.workers > 1 and "OMP_NUM_THREADS" not in given:
        variables.append(("OMP_NUM_THREADS", "1"))  # as torchrun does
    missed = [name for name, _ in _MISSED if getattr(options, name[2:].replace("-", "_"))]
    return Launch(
        command=_torchruns_command(launcher, options, given.get(PYTHON_VARIABLE) or python),
        variables=tuple(variables),
        notes=(*_about_counts(launcher, options, tasks), *_without_effect(launcher, missed)),
    )


def _torchruns_command(launcher: str, options: _Options, python: str) -> tuple[str, ...]:
    script, arguments = options.training_script, options.training_script_args
    if options.no_python and options.module:
        raise ValueError(f"{launcher}: only one of --no-python and --module is allowed")
    if options.no_python and not options.use_env:
        raise ValueError(f"{launcher} --no-python: needs --use-env")
    begin = [script] if options.no_python else [python, "-u", *(["-m"] if options.module else []), script]
    if options.use_env:
        return (*begin, *arguments)
    # torch.distributed.launch tells a script its local rank by an argument, which only the worker knows.
    line = f'exec {shlex.join(begin)} "--local-rank=$LOCAL_RANK" {shlex.join(arguments)}'
    return "sh", "-c", line.rstrip()


def _about_counts(launcher: str, options: _Options, tasks: Tasks) -> list[str]:
    """A line if the numbers of processes and nodes contradict the job's tasks."""
    each = options.nproc_per_node or ""
    if not each.isdecimal():
        return []  # not said, or "gpu", "cpu" or "auto"
    least, _, most = (options.nnodes or str(tasks.nodes)).partition(":")
    if not least.isdecimal() or not (most or least).isdecimal():
        raise ValueError(f"{launcher} --nnodes={options.nnodes}: allowed is N or MIN:MAX")
    low, high = int(least) * int(each), int(most or least) * int(each)
    if low <= tasks.workers <= high:
        return []
    said = f"--nproc-per-node={each}" + (f" --nnodes={options.nnodes}" if options.nnodes else "")
    return [_counts_differ(f"{launcher} {said}", f"{low}" if low == high else f"{low} to {high}", tasks)]


def _counts_differ(said: str, asked: str, tasks: Tasks) -> str:
    return (
        f"{said} asks for {asked} processes, but this job has {tasks.workers}"
        f" task{'s' if tasks.workers != 1 else ''}. flexo starts one worker for each task"
    )


def _without_effect(launcher: str, options: Sequence[str]) -> list[str]:
    if not options:
        return []
    return [
        f"{launcher} {', '.join(options)}: no effect under flexo run. The workers' output goes to the job's"
        " output, and the cluster places the workers"
    ]


# --- accelerate -----------------------------------------------------------------------------------------


def _of_accelerate(python: str, arguments: Sequence[str], tasks: Tasks, ask: Ask) -> Launch:
    found = ask(python, arguments)
    notes = _without_effect("accelerate launch", found.missed)
    if found.processes and found.processes != tasks.workers:
        said = f"accelerate launch with num_processes={found.processes}"
        notes.insert(0, _counts_differ(said, str(found.processes), tasks))
    return Launch(
        command=(python, "-u", *found.command) if found.python else found.command,
        variables=found.variables,
        notes=tuple(notes),
        fixed=found.fixed,
    )
