"""The two runs of examples/digits/train.py: what rank 0 wrote at the end, and the one outside of Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_REFERENCE_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """result.json of a run that has ended."""

    accuracy: float
    """Share of the test digits that it got right."""
    train_samples: int
    horovod_version: str

    @classmethod
    def read(cls, directory: Path) -> RunResult | None:
        """None if the run did not get so far."""
        try:
            fields = json.loads((directory / "result.json").read_text())
            return cls(
                float(fields["accuracy"]), int(fields["train_samples"]), str(fields["horovod_version"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Reference:
    """The script with the same plan in one plain process, as fast as it goes, beside the lab's coming up."""

    def __init__(self, script: Path, directory: Path, epochs: int, batch: int) -> None:
        self._directory = directory
        options = ["--epochs", str(epochs), "--batch", str(batch), "--log-dir", str(directory)]
        options = ["--epochs", str(epochs), "--batch", str(batch), "--log-dir", str(directory)]
        self._command = [sys.executable, "-m", "horovod_elastic.core.c10d", str(script), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """In a session of its own: Ctrl-C in the terminal is for the demo, which then calls `stop`."""
        self._directory.mkdir(parents=True)
        with (self._directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={key: value for key, value in os.environ.items() if not key.startswith("HOROVOD_")},
            )

    def result(self) -> RunResult | None:
        """Wait for it. None if it failed or took more than two minutes."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_REFERENCE_LIMIT_S)
        return RunResult.read(self._directory)

    def stop(self) -> None:
        """End it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
