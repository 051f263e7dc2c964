"""What all training programs of the benchmarks have in common: the model, its made-up data, and the log."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch

SAMPLES = 60_000
"""Number of samples, as in MNIST."""
INPUTS, CLASSES = 784, 10
HIDDEN = {"tiny": (16, 16), "toy": (1024, 300), "large": (3200, 2900)}
"""Widths of the hidden layers: 13 thousand parameters, 1.1 million, 11.8 million."""
BATCH = {"tiny": 64, "toy": 256, "large": 64}
"""Samples of one worker in one step."""


class Log:
    """A file of this process with one JSON line for each event."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def write(self, event: str, at: float | None = None, **fields: object) -> None:
        """Add a line. The file is line-buffered, so that the line survives if the worker is killed."""
        head = {"event": event, "time": at or time.time(), "pid": os.getpid()}
        self._file.write(json.dumps(head | fields) + "\n")


def process_started_at() -> float:
    """Time at which the kernel started this process, in seconds since the epoch."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


def make_model(name: str) -> torch.nn.Module:
    """Make a perceptron, whose weights are equal in every worker before the first step."""
    torch.manual_seed(0)
    first, second = HIDDEN[name]
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, first), torch.nn.ReLU(),
        torch.nn.Linear(first, second), torch.nn.ReLU(),
        torch.nn.Linear(second, CLASSES),
    )  # fmt: skip


class Data:
    """Made-up images: sample i is a row of a small table of noise."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._rows = torch.randn(1000, INPUTS, generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def batch(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, float32 of shape (len(indices), 784), and labels, int64 of shape (len(indices),)."""
        chosen = torch.tensor(indices)
        return self._rows[chosen % len(self._rows)], chosen % CLASSES
