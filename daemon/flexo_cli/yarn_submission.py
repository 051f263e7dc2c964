"""`flexo yarn submit`: what the user says, checked, and what became of the job."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flexo_cli.output import Json, complain, print_json, print_line
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.resources import Resources
from flexo_yarn.configuration import ClientConfiguration
from flexo_yarn.kerberos import Tickets
from flexo_yarn.records import application_number, application_text
from flexo_yarn.site_settings import FLEX_QUEUE
from horovod_elastic import accelerate_launch, launch_commands
from horovod_elastic.launch_commands import Accelerated, Launch
from horovod_elastic.platforms.yarn import submission
from horovod_elastic.platforms.yarn.files import ARCHIVES, Shipped
from horovod_elastic.platforms.yarn.job_options import JobOptions
from horovod_elastic.platforms.yarn.submission import Submission

_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMORY = re.compile(r"(\d{1,9})([KMGT]?)B?", re.IGNORECASE)
_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


def range_in(text: str, option: str) -> tuple[int, int]:
    """The range MIN-MAX in an option. Raises ValueError, saying what is allowed."""
    match = _RANGE.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= int(match[2]):
        raise ValueError(f"{option}={text}: allowed is MIN-MAX such as 2-8, with 1 <= MIN <= MAX")
    return int(match[1]), int(match[2])


def memory_in(text: str) -> int:
    """The memory in an option, in MiB. Raises ValueError, saying what is allowed."""
    match = _MEMORY.fullmatch(text)
    mib = int(int(match[1]) * _MIB[match[2].upper()]) if match else 0
    if mib < 1:
        raise ValueError(f"--memory={text}: allowed is a number with K, M, G or T, such as 4G; MiB without")
    return mib


def shipped_in(text: str) -> Shipped:
    """The file in an option, PATH or PATH#NAME. Raises ValueError."""
    source, _, name = text.partition("#")
    name = name or Path(source).name
    if not source or not name or "/" in name or name in (".", ".."):
        raise ValueError(
            f"--file={text}: allowed is PATH, or PATH#NAME with the name that it gets in containers"
        )
    return Shipped(source, name, archive=source.endswith(ARCHIVES) and "#" in text)


def options_of(
    elastic: str,
    workers: int,
    shape: Resources,
    command: list[str],
    batch: str,
    queue: str,
    *,
    fungible: bool,
    heterogeneous: bool,
) -> JobOptions:
    """The options of a job. Raises ValueError, saying what is allowed."""
    if not command:
        raise ValueError("no command: flexo yarn submit OPTIONS -- python train.py")
    if queue.rpartition(".")[2] == FLEX_QUEUE:
        raise ValueError(
            f"--queue={queue}: that queue is for satellites, which YARN takes back; name another one"
        )
    minimum, maximum = range_in(elastic, "--elastic") if elastic else (workers, workers)
    if batch:
        range_in(batch, "--elastic-batch")
    if not elastic and (batch or fungible or heterogeneous):
        raise ValueError(
            "--elastic-batch, --elastic-fungible and --elastic-heterogeneous need --elastic=MIN-MAX"
        )
    return JobOptions(
        minimum=minimum,
        maximum=maximum,
        shape=shape,
        command=tuple(command),
        declared=bool(elastic),
        queue=queue,
        batch=batch,
        fungible=fungible,
        heterogeneous=heterogeneous,
    )


def as_launched(options: JobOptions, variables: Mapping[str, str]) -> tuple[JobOptions, Launch]:
    """The options, and what workers start, if the command is that of another launcher. Raises ValueError.

    `variables`: those that the user gives to the job's processes. Accelerate is asked here, by the Python
    that submits: it reads the user's configuration file.
    """

    def ask(_: str, arguments: Sequence[str]) -> Accelerated:
        return accelerate_launch.ask(sys.executable, arguments)

    tasks = launch_commands.Tasks(options.minimum, nodes=1)
    launch = launch_commands.read(options.command, tasks, ask, "python", variables)
    maximum = options.minimum if launch.fixed else options.maximum
    return replace(options, command=launch.command, maximum=maximum), launch


def with_script(files: list[Shipped], command: list[str]) -> tuple[Shipped, ...]:
    """The files, and the script that the command names, if that is a file in this folder."""
    script = next((word for word in command[1:] if word.endswith(".py")), "")
    named = {each.name for each in files}
    if script and "/" not in script and script not in named and Path(script).is_file():
        return (*files, Shipped(script, script))
    return tuple(files)


def tickets_of(keytab: Path | None, principal: str) -> Tickets:
    """Whose tickets a submission uses. Raises ValueError, saying what is allowed."""
    if (keytab is None) != (not principal):
        raise ValueError("--keytab and --principal go together; without both, kinit's ticket cache is used")
    if keytab is not None and not os.access(keytab, os.R_OK):
        raise ValueError(f"--keytab={keytab}: allowed is a file that you may read")
    return Tickets(keytab and keytab.absolute(), principal)


def variables_in(texts: Iterable[str]) -> dict[str, str]:
    """The variables in options NAME=VALUE; NAME alone means this shell's value. Raises ValueError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if _NAME.fullmatch(name) is None or (not equals and name not in os.environ):
            raise ValueError(
                f"--export={text}: allowed is NAME=VALUE, or NAME of a variable that is set here"
            )
        found[name] = value if equals else os.environ[name]
    return found


def run(job: Submission, cluster: ClientConfiguration, *, wait: bool, as_json: bool) -> int:
    """Submit a job and, with `wait`, wait for its end. Returns the exit code. Raises Refused."""
    application = submission.submit(job, cluster)
    text = application_text(application)
    if not wait:
        print_json(_as_json(application)) if as_json else print_line(text)
        return 0
    if not as_json:
        print_line(text)
    client = submission.connect(cluster, job.tickets)
    try:
        report = submission.wait(client, application, lambda found: complain(f"{text}: {_state(found)}"))
    finally:
        client.close()
    succeeded = report.final_status == pb.APP_SUCCEEDED
    if as_json:
        print_json({**_as_json(application), "succeeded": succeeded, "diagnostics": report.diagnostics})
    elif report.diagnostics.strip():
        complain(report.diagnostics.strip())
    return 0 if succeeded else 1


def _as_json(application: pb.ApplicationId) -> dict[str, Json]:
    return {"application": application_text(application), "job_id": application_number(application)}


def _state(report: pb.ApplicationReport) -> str:
    return pb.ApplicationState.Name(report.state).lower()
