"""What `accelerate launch` would give a script, by Accelerate's own parser and configuration file.

Accelerate is in the Python that trains, and takes seconds to import. So `ask` has that Python run this
module, which prints its answer as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from horovod_elastic.launch_commands import Accelerated

ANSWERS_WITHIN_S = 180.0
"""Imports from a slow file system are included."""
_MARK = "flexo-accelerate: "
"""Before the answer: other lines may stand on the same output."""
_OF_THE_LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
"""Variables that flexo sets itself."""
_REFUSED = (("use_deepspeed", "DeepSpeed"), ("use_megatron_lm", "Megatron-LM"), ("tpu", "TPUs"))


def ask(python: str, arguments: Sequence[str]) -> Accelerated:
    """What `accelerate launch` would start with these arguments. Raises ValueError, saying why it cannot."""
    command = [python, "-m", "horovod_elastic.accelerate_launch", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S)
    except OSError as error:
        raise ValueError(f"accelerate launch: {python} cannot be run ({error})") from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"accelerate launch: {python} has not answered within {ANSWERS_WITHIN_S:.0f} s"
        ) from error
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return _answer_in(line.removeprefix(_MARK))
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise ValueError(f"accelerate launch (of {python}): {last}")


def _answer_in(text: str) -> Accelerated:
    fields = json.loads(text)
    variables = tuple((str(name), str(value)) for name, value in fields.pop("variables"))
    command, missed = tuple(fields.pop("command")), tuple(fields.pop("missed"))
    return Accelerated(command=command, variables=variables, missed=missed, **fields)


# --- in the Python that has Accelerate --------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Print the answer for these arguments."""
    try:
        answer = _found(arguments)
    except ImportError as error:
        print(f"{sys.executable} cannot import Accelerate's launcher: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{_MARK}{json.dumps(asdict(answer))}")
    return 0


def _found(arguments: Sequence[str]) -> Accelerated:
    from accelerate.commands import launch

    options = launch.launch_command_parser().parse_args(list(arguments))
    processes = options.num_processes
    # With these, Accelerate looks for neither GPUs nor machines, and warns of no default.
    options.num_processes, options.num_machines = processes or 2, 1
    options, defaults, _ = launch._validate_launch_command(options)
    for name, what in _REFUSED:
        if getattr(options, name, False) and not options.cpu:
            raise ValueError(f"{what} cannot be used under flexo run (--{name}, or in the configuration)")
    if type(defaults).__name__ == "SageMakerConfig":
        raise ValueError("the configuration is one for Amazon SageMaker, not for a cluster")
    missed = tuple(_missed(options))
    options.gpu_ids = "all"
    return Accelerated(
        command=(*(["-m"] if options.module else []), options.training_script, *options.training_script_args),
        python=not options.no_python,
        variables=tuple(sorted(_variables(options))),
        processes=processes or getattr(defaults, "num_processes", None) or 0,
        missed=missed,
        fixed=_fixed(options),
    )


def _missed(options: Any) -> Iterator[str]:
    if options.gpu_ids not in (None, "all"):
        yield "--gpu_ids"
    if getattr(options, "tee", "0") not in (None, "0"):
        yield "--tee"
    if getattr(options, "log_dir", None):
        yield "--log_dir"
    if getattr(options, "mpirun_hostfile", None):
        yield "--mpirun_hostfile"


def _fixed(options: Any) -> str:
    if options.use_fsdp and not options.cpu:
        return "accelerate launch shards the model over the workers (FSDP)"
    if getattr(options, "use_parallelism_config", False):
        return "accelerate launch splits the model over the workers (parallelism_config)"
    return ""


def _variables(options: Any) -> Iterator[tuple[str, str]]:
    """The variables that Accelerate would set, without those of its launcher."""
    from accelerate.utils import launch

    options.main_process_ip, options.main_process_port, options.num_machines = None, 0, 1
    options.num_processes, options.mpirun_hostfile = 1, None  # one process, as flexo starts each
    if options.cpu or not (options.use_fsdp or options.multi_gpu):
        _, environment = launch.prepare_simple_launcher_cmd_env(options)
    else:
        environment = launch.prepare_multi_gpu_env(options)
    for name, value in environment.items():
        if os.environ.get(name) != value and name not in _OF_THE_LAUNCHER:
            yield name, value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
