"""What the scripts that are trained while processes die have in common: the model, its data and the log.

The sum of gradients has one number more for each sample: how often the step has used it. So the log says
whose samples have counted, however a worker died.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset


def options() -> argparse.ArgumentParser:
    """The options of both scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=4, help="samples a worker and step")
    parser.add_argument("--hidden", type=int, default=1000, help="width of the two hidden layers")
    parser.add_argument("--step-seconds", type=float, default=0.1, help="slept instead of computing")
    parser.add_argument("--steps", type=int, default=10**9, help="the last step")
    return parser


class EventLog:
    """This process's file in `folder`, with a line for each event."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: str, **fields: object) -> None:
        """Write a line at once: it is whole, and outlives this process."""
        line = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
        os.write(self._file, (json.dumps(line) + "\n").encode())


class Numbers(Dataset[int]):  # type: ignore[misc]
    """Sample i is i."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> int:
        return number


class Model(torch.nn.Module):  # type: ignore[misc]
    """A perceptron, and a parameter whose gradient says which samples are used."""

    def __init__(self, samples: int, width: int) -> None:
        super().__init__()
        layers = torch.nn
        self.layers = layers.Sequential(
            layers.Linear(1, width), layers.Tanh(),
            layers.Linear(width, width), layers.Tanh(),
            layers.Linear(width, 1),
        )  # fmt: skip
        self.used = layers.Parameter(torch.zeros(samples))

    def forward(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss of these samples, and for each of them a number whose gradient is its use."""
        x = samples.float().unsqueeze(1) / len(self.used)
        return torch.nn.functional.mse_loss(self.layers(x), x.square()), self.used[samples]

    def digest(self) -> str:
        """The parameters, bit for bit, in a few letters."""
        found = hashlib.sha256()
        for parameter in self.layers.parameters():
            found.update(parameter.detach().numpy())
        return found.hexdigest()[:16]

    def all_used(self) -> list[int]:
        """The samples that all workers have used in the last step, as often as they are used."""
        mean = self.used.grad
        assert mean is not None
        used = mean.nonzero().flatten()
        times = (mean[used] / mean[used].min()).round().int() if len(used) else used
        repeated: list[int] = torch.repeat_interleave(used, times).tolist()
        return repeated


def optimizer_of(model: Model) -> torch.optim.SGD:
    """An optimizer that trains the perceptron, and leaves the other parameter as it is."""
    groups = [
        {"params": model.layers.parameters()},
        {"params": [model.used], "lr": 0.0, "momentum": 0.0},
    ]
    return torch.optim.SGD(groups, lr=0.01, momentum=0.9)
