"""The elastic job that is measured on YARN: submitted as a user does, and watched at the ResourceManager."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flexo_bench.fidelity.submitting import SCRIPT, read_log
from flexo_lab.yarn import YarnLab
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records, tags
from flexo_yarn.application_master import Ask
from flexo_yarn.resource_manager import ResourceManager

BASE_WORKERS = 2
PYTHON = sys.executable
_BIN = Path(PYTHON).parent
_EPOCHS, _BATCHES, _STEP_S = 1_000_000, 20, 0.2
_POLL_S = 0.05


class JobFailed(Exception):
    """The job did not do what is measured. The message says what, and where its output is."""


def training_command(folder: Path) -> list[str]:
    """The training command, which trains until it is ended: the same on YARN and on Slurm."""
    options = {"--epochs": _EPOCHS, "--batches": _BATCHES, "--step-seconds": _STEP_S, "--log-dir": folder}
    return [PYTHON, str(SCRIPT), *(str(word) for pair in options.items() for word in pair)]


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A job that was submitted."""

    lab: YarnLab
    client: ResourceManager
    application: pb.ApplicationId
    folder: Path
    """Where its workers log."""

    @classmethod
    def submit(cls, lab: YarnLab, client: ResourceManager, most: int, folder: Path) -> ElasticJob:
        """Submit a job that grows to `most` workers. Raises LabCommandFailed."""
        command = [
            *(str(_BIN / "flexo"), "yarn", "submit", "--json", "--elastic", f"{BASE_WORKERS}-{most}"),
            *("--gpus", "1", "--memory", "1G", "--core", "torch", "--env", str(_BIN.parent), "--"),
            *training_command(folder),
        ]
        answer = json.loads(lab.run(command).stdout)
        return cls(lab, client, records.read_application(answer["application"]), folder)

    def trains_with(self, workers: int) -> bool:
        """Whether so many workers train now."""
        return trains_with(self.folder, workers)

    def flex(self) -> pb.ApplicationReport | None:
        """Its flex application, which the job makes with its first grant."""
        tag = tags.BASE + records.application_text(self.application)
        return next(iter(self.client.applications(states=[pb.RUNNING], tags=[tag])), None)

    def satellites(self) -> Sequence[pb.ContainerReport]:
        """Its satellites that have not ended."""
        if (report := self.flex()) is None:
            return ()
        return records.living(self.client.containers(report.current_attempt_id))

    def satellite_on(self, node: str) -> pb.ContainerReport | None:
        """Its satellite on this node, once YARN has allocated that."""
        return next((each for each in self.satellites() if each.node_id.host == node), None)

    def wait_until(self, what: str, happened: Callable[[], object], limit_s: float) -> None:
        """Wait until `happened`. Raises JobFailed, also if the job has ended."""
        deadline = time.monotonic() + limit_s
        while not happened():
            state = self.client.application(self.application).state
            if state in records.ENDED or time.monotonic() > deadline:
                word = pb.ApplicationState.Name(state).lower()
                raise JobFailed(f"not within {limit_s:.0f} s: {what}; the job is {word}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """End it, and wait until it has ended."""
        while not self.client.kill(self.application, "measured"):
            time.sleep(0.1)


def trains_with(folder: Path, workers: int) -> bool:
    """Whether the last steps in these logs are of so many workers."""
    sizes = read_log(folder).sizes
    return bool(sizes) and sizes[-1][1] == workers


def runs(container: pb.ContainerId) -> bool:
    """Whether a process of this container runs on this machine.

    The ResourceManager calls a container running as soon as it is allocated, so its word means nothing.
    """
    name = records.container_text(container).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if name in path.read_bytes():
                return True
    return False


def ask_for_gpu(priority: int, node: str) -> Ask:
    """A request of an ordinary application for a GPU on this node."""
    return Ask(priority, records.resource(256, 1, 1), node=node)
