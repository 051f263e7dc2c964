"""Learn handwritten digits: an ordinary Horovod elastic PyTorch program.

It knows nothing of who started it. It runs alone (``python train.py``), under ``horovodrun -np 2``, under
elastic ``horovodrun --min-np 1 --max-np 4 --host-discovery-script ...``, and under ``flexo run``.

The global batch and the learning rate are fixed, so the model learns the same whatever the number of
workers: each takes its share of a batch, and the shares' gradients add up to the gradient of the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

import horovod
import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

TEST_SAMPLES = 360
SPLIT_SEED = 20


def parse_arguments() -> argparse.Namespace:
    """Options; the defaults train to about 98% in a few seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=48, help="global batch size, over all workers")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time that a step takes")
    parser.add_argument("--log-dir", type=Path, help="log every committed batch, and the result, here")
    return parser.parse_args()


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, and to test on: the same split for everybody."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return images[train], labels[train], images[test], labels[test]


def make_model() -> torch.nn.Module:
    """A small perceptron; equal in every worker before the first step."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


class Log:
    """One JSON line for every batch that this worker committed, in a file of its own."""

    def __init__(self, directory: Path | None) -> None:
        self._file = None
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            name = f"worker-{socket.gethostname()}-{os.getpid()}.jsonl"
            self._file = (directory / name).open("a", buffering=1)

    def write(self, event: str, **fields: object) -> None:
        """Add a line; line-buffered, so that it outlives a worker that is killed."""
        if self._file is not None:
            head = {"event": event, "time": time.time(), "pid": os.getpid()}
            self._file.write(json.dumps(head | fields) + "\n")


def main() -> None:
    """Train, then let rank 0 say how well it went."""
    args = parse_arguments()
    torch.set_num_threads(1)
    hvd.init()
    images, labels, test_images, test_labels = load_data()
    batches_per_epoch = -(-len(labels) // args.batch)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    # Sum, not Average: each worker's loss is already divided by the size of the whole batch (see below).
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
    log = Log(args.log_dir)

    def train_batch(epoch: int, batch: int) -> tuple[torch.Tensor, float]:
        """One step on this worker's share of a global batch; returns the share and its part of the loss."""
        started = time.monotonic()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        samples = order[batch * args.batch : (batch + 1) * args.batch]
        share = samples[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[share]), labels[share], reduction="sum") / len(samples)
        loss.backward()
        time.sleep(max(0.0, started + args.step_seconds - time.monotonic()))
        optimizer.step()
        return share, loss.item()

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        """Entered again after every change of workers: state says which batch is next."""
        rank, size = hvd.rank(), hvd.size()
        log.write("enter", rank=rank, size=size, epoch=state.epoch, batch=state.batch,
                  step=state.epoch * batches_per_epoch + state.batch)  # fmt: skip
        while state.epoch < args.epochs:
            while state.batch < batches_per_epoch:
                epoch, batch = state.epoch, state.batch
                share, loss = train_batch(epoch, batch)
                state.batch += 1  # before the commit: what is saved names the batch that comes next
                try:
                    state.commit()
                finally:
                    # commit() saves, then raises if workers come or go: saved is saved, so logged either way.
                    log.write("commit", rank=rank, size=size, epoch=epoch, batch=batch,
                              step=epoch * batches_per_epoch + batch,
                              loss=round(loss, 6), samples=share.tolist())  # fmt: skip
            state.epoch += 1
            state.batch = 0

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, batch=0))

    if hvd.rank() == 0:
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
        print(f"accuracy {accuracy:.4f} on {len(test_labels)} digits never trained on")
        if args.log_dir is not None:
            result = {"accuracy": accuracy, "epochs": args.epochs, "batch": args.batch,
                      "batches_per_epoch": batches_per_epoch, "train_samples": len(labels),
                      "test_samples": len(test_labels), "horovod_version": horovod.__version__,
                      "torch_version": torch.__version__}  # fmt: skip
            (args.log_dir / "result.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
