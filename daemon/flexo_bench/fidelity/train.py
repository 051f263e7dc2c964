"""The program of the benchmark's elastic jobs: an ordinary elastic Horovod program whose work is known.

Work is counted in mini-batches of one worker: a step of k workers does k of them. A step sleeps, so that
every worker has a GPU of its own on a machine with few cores. The model is tiny, and its gradients are
averaged over all workers. The program does not depend on its launcher.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn import functional

INPUTS, CLASSES = 16, 4


def parse_arguments() -> argparse.Namespace:
    """Parse the options. The benchmark gives all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True, help="mini-batches of one worker in an epoch")
    parser.add_argument("--step-seconds", type=float, required=True, help="of one worker alone")
    parser.add_argument("--slower", type=float, default=0.0, help="share by which each more worker slows it")
    parser.add_argument("--log-dir", type=Path, required=True)
    return parser.parse_args()


class Log:
    """A file of this process with one JSON line for each event."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def write(self, event: str) -> None:
        """Add a line. The file is line-buffered, so that the line survives if the worker is killed."""
        fields = {"event": event, "time": time.time(), "rank": hvd.rank(), "size": hvd.size()}
        self._file.write(json.dumps(fields) + "\n")


def main() -> None:
    """Train the given number of epochs."""
    args = parse_arguments()
    torch.set_num_threads(1)
    hvd.init()
    log = Log(args.log_dir)
    torch.manual_seed(0)
    model = torch.nn.Linear(INPUTS, CLASSES)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    images, labels = torch.randn(8, INPUTS), torch.arange(8) % CLASSES

    def step(state: hvd.elastic.TorchState) -> None:
        optimizer.zero_grad()
        time.sleep(args.step_seconds * (1 + args.slower * (hvd.size() - 1)))
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        done = state.done + hvd.size()
        state.epoch, state.done = state.epoch + done // args.batches, done % args.batches

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: hvd.elastic.TorchState) -> None:
        """Train. Horovod calls this again after every change of workers."""
        log.write("enter")
        while state.epoch < args.epochs:
            step(state)
            log.write("batch")
            state.commit()

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, done=0))


if __name__ == "__main__":
    main()
