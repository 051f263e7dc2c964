"""`flexo init`: writes the script of an elastic job. It asks nothing and submits nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from flexo.model.ranges import BadRange, Range
from flexo_cli.check import examined
from flexo_cli.connection import Refusal
from flexo_cli.options import JsonOption
from flexo_cli.output import complain, print_json, print_line

_OUTPUT: Final = Path("-")


@dataclass(frozen=True, slots=True)
class JobScript:
    """What a job script says."""

    command: tuple[str, ...]
    """What `flexo run` gets."""
    workers: Range
    gpus: int
    """GPUs of each worker."""
    name: str
    options: tuple[tuple[str, str], ...]
    """Further options of sbatch, with their values."""

    def text(self) -> str:
        """The script."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        least, most = self.workers.min, self.workers.max
        yield "#!/bin/bash"
        yield f"#SBATCH --job-name={self.name}"
        yield f"#SBATCH --ntasks={least}  # the minimum of workers: what the job queues for and always holds"
        yield f"#SBATCH --gpus-per-task={self.gpus}  # one worker's GPUs"
        yield f"#SBATCH --elastic={self.workers}  # grows to at most {most} workers while GPUs are idle"
        for option, value in self.options:
            yield f"#SBATCH --{option}={value}"
        yield ""
        yield "# Activate modules and environments here, at a path that all nodes have."
        yield f"flexo run {shlex.join(self.command)}"


def init(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training script, a Python file.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARG", help="The script's arguments.")
    ] = None,
    elastic: Annotated[
        str, typer.Option("--elastic", metavar="MIN-MAX", help="The range of workers.")
    ] = "1-4",
    gpus: Annotated[
        int, typer.Option("--gpus-per-task", metavar="N", min=1, max=64, help="GPUs of each worker.")
    ] = 1,
    cpus: Annotated[
        int,
        typer.Option("--cpus-per-task", metavar="N", min=0, help="CPUs of each worker; 0: Slurm's default."),
    ] = 0,
    time: Annotated[str, typer.Option("--time", metavar="TIME", help="The job's time limit.")] = "",
    partition: Annotated[str, typer.Option("--partition", metavar="NAME", help="The partition.")] = "",
    account: Annotated[str, typer.Option("--account", metavar="NAME", help="The account.")] = "",
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="The job script; - prints it. Else SCRIPT with .sbatch."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a job script for sbatch with which SCRIPT trains elastically.

    Options of SCRIPT that flexo init does not know go to SCRIPT. After -- all do.
    """
    path = to or Path(script.name).with_suffix(".sbatch")
    job = JobScript(
        command=("python", str(script), *(arguments or ())),
        workers=_range(elastic),
        gpus=gpus,
        name=re.sub(r"[^\w.-]", "-", script.stem),
        options=tuple(_options(cpus=cpus, time=time, partition=partition, account=account)),
    )
    if not examined(script, arguments or []).elastic:
        complain(f"the job would stay at its minimum: flexo check {shlex.quote(str(script))} says why")
    if path != _OUTPUT:
        _write(path, job.text(), force)
    if as_json:
        print_json({"path": None if path == _OUTPUT else str(path), "script": job.text()})
    elif path == _OUTPUT:
        typer.echo(job.text(), nl=False)
    else:
        print_line(f"{path} is written; submit it with: sbatch {shlex.quote(str(path))}")


def _range(text: str) -> Range:
    try:
        return Range.parse(text)
    except BadRange as error:
        raise typer.BadParameter(str(error), param_hint="--elastic") from None


def _options(*, cpus: int, time: str, partition: str, account: str) -> Iterator[tuple[str, str]]:
    """Further options of sbatch, those that were given. Raises BadParameter for an impossible value."""
    said = {"cpus-per-task": str(cpus or ""), "time": time, "partition": partition, "account": account}
    for option, value in said.items():
        if not value:
            continue
        if not re.fullmatch(r"[\w.,:@+-]+", value):
            allowed = "letters, digits, and any of . , : @ + -"
            text = f"'{value}' is no value for it; allowed: {allowed}"
            raise typer.BadParameter(text, param_hint=f"--{option}")
        yield option, value


def _write(path: Path, text: str, force: bool) -> None:
    try:
        with path.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError as error:
        raise Refusal(f"{path} is there already: --force replaces it, --to names another file") from error
    except OSError as error:
        raise Refusal(f"{path} cannot be written: {error.strerror}") from error
