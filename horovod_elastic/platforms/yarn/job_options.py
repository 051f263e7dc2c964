"""What a user says of a job on YARN: the options of its submission, which its ApplicationMaster reads too."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from flexo_protos.resources import Resources


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of a job. `shape`: the resources of one worker."""

    minimum: int
    maximum: int
    shape: Resources
    command: tuple[str, ...]
    declared: bool = True
    """Whether the job was submitted with a range, even one of one size."""
    queue: str = "default"
    batch: str = ""
    fungible: bool = False
    heterogeneous: bool = False

    def to_arguments(self) -> list[str]:
        """Command-line arguments from which `parse` makes these options."""
        return [
            *("--min", str(self.minimum), "--max", str(self.maximum)),
            *("--gpus", str(self.shape.gpus), "--cpus", str(self.shape.cpus)),
            *("--memory-mib", str(self.shape.memory_mib)),
            *("--queue", self.queue, "--batch", self.batch),
            *(["--declared"] if self.declared else []),
            *(["--fungible"] if self.fungible else []),
            *(["--heterogeneous"] if self.heterogeneous else []),
            *("--", *self.command),
        ]


def parse(arguments: Sequence[str]) -> JobOptions:
    """The options in arguments that `to_arguments` has made."""
    parser = argparse.ArgumentParser(prog="application_master")
    for name in ("--min", "--max", "--gpus", "--cpus", "--memory-mib"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--queue", "--batch"):
        parser.add_argument(name, default="")
    parser.add_argument("--declared", action="store_true")
    parser.add_argument("--fungible", action="store_true")
    parser.add_argument("--heterogeneous", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    found = parser.parse_args(arguments)
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    return JobOptions(
        minimum=found.min,
        maximum=found.max,
        shape=Resources(found.gpus, found.cpus, found.memory_mib),
        command=tuple(command),
        declared=found.declared,
        queue=found.queue,
        batch=found.batch,
        fungible=found.fungible,
        heterogeneous=found.heterogeneous,
    )
