"""Runs of examples/digits/train.py: the result that rank 0 writes, and the reference run without Slurm."""

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
    """Share of the test digits that the model classifies correctly."""
    train_samples: int
    horovod_version: str

    @classmethod
    def read(cls, directory: Path) -> RunResult | None:
        """Read result.json in `directory`; None if the run has not written it."""
        try:
            fields = json.loads((directory / "result.json").read_text())
            return cls(
                float(fields["accuracy"]), int(fields["train_samples"]), str(fields["horovod_version"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Reference:
    """The reference run: the script with the same plan in one process, at full speed, as the lab starts."""

    def __init__(self, script: Path, directory: Path, epochs: int, batch: int) -> None:
        self._directory = directory
        options = ["--epochs", str(epochs), "--batch", str(batch), "--log-dir", str(directory)]
        self._command = [sys.executable, "-m", "horovod_elastic.core.c10d", str(script), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the run in a session of its own: Ctrl-C reaches only the demo, which then calls `stop`."""
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
        """Wait for the result; None if the run failed or took more than two minutes."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_REFERENCE_LIMIT_S)
        return RunResult.read(self._directory)

    def stop(self) -> None:
        """End the run if it still runs."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
