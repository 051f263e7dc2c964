"""What the training programs of this benchmark have in common: their data set, their options and their log.

A program's log has a line a step, with the CPU time of its process so far. All programs read the file
`gate` of the log's folder before a step: the benchmark holds a job at a step while another one is measured.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

from flexo_bench.runtime.workload import BATCH, CLASSES, INPUTS, SAMPLES, Log

MODEL = "toy"
BATCH_SIZE = 2 * BATCH[MODEL]
"""Samples of one worker in one step, which compute for about 40 ms on one core."""
GATE = "gate"
LOOK_S = 0.005

Images = tuple[torch.Tensor, torch.Tensor]


class Noise(Dataset[Images]):  # type: ignore[misc]
    """Made-up images, of which sample i is a row of a small table. Whole batches are made at once."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        generator = torch.Generator().manual_seed(1)
        self._rows = torch.randn(1000, INPUTS, generator=generator)

    def __len__(self) -> int:
        return self._samples

    def __getitems__(self, indices: list[int]) -> Images:
        """Images, float32 of shape (len(indices), 784), and labels, int64 of shape (len(indices),)."""
        chosen = torch.tensor(indices)
        return self._rows[chosen % len(self._rows)], chosen % CLASSES


def as_it_is(batch: Images) -> Images:
    """The batch: what a DataLoader is to make of it."""
    return batch


class StepLog:
    """The log of a training program, and the gate before each of its steps."""

    def __init__(self, folder: Path) -> None:
        self._log = Log(folder)
        self._gate = folder / GATE

    def wait_at_gate(self, step: int) -> None:
        """Wait while this step is not to be taken yet."""
        while step >= self._first_held():
            time.sleep(LOOK_S)

    def _first_held(self) -> float:
        try:
            return int(self._gate.read_text())
        except FileNotFoundError:
            return math.inf

    def step(self, step: int, rank: int, size: int) -> None:
        """Log a step that counts, of `size` workers."""
        place = {"rank": rank, "size": size, "samples": BATCH_SIZE}
        self._log.write("batch", step=step, cpu=time.process_time(), **place)


def practises() -> bool:
    """Whether this is a newcomer of flexo's that has not joined yet, so that its steps do not count."""
    session = sys.modules.get("horovod_elastic.worker.session")
    return session is not None and session.current().generation == 0


def parse_arguments(*, checkpoints: bool = False) -> argparse.Namespace:
    """Parse the options of a training program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--model", choices=[MODEL], default=MODEL)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of an epoch")
    if checkpoints:
        parser.add_argument("--checkpoint", type=Path, help="to go on from, and to write now and then")
    return parser.parse_args()
