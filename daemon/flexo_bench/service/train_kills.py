"""What is trained while processes die: every step logs what has counted in it, from the sum itself.

The sum of gradients has one number more for each sample: how often the step has used it. So the log says
whose samples have counted, however a worker died. ElasticDataset deals samples out as the leader has it. With
--by-rank, a sample's rank follows from the step alone, so that two runs of the same size are alike.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import horovod.torch as hvd
import torch

from horovod_elastic.data import ElasticDataset

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--samples", type=int, default=1200)
parser.add_argument("--batch", type=int, default=4, help="samples a worker and step")
parser.add_argument("--hidden", type=int, default=1000, help="width of the two hidden layers")
parser.add_argument("--commit-every", type=int, default=3)
parser.add_argument("--step-seconds", type=float, default=0.1, help="slept instead of computing")
parser.add_argument("--by-rank", action="store_true")
parser.add_argument("--steps", type=int, default=10**9, help="the last step")
args = parser.parse_args()
SAMPLES: int = args.samples
BATCH: int = args.batch

FILE = os.open(args.log_dir / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def log(event: str, **fields: object) -> None:
    """Write a line at once: it is whole, and outlives this process."""
    line = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
    os.write(FILE, (json.dumps(line) + "\n").encode())


class Numbers:
    """Sample i is i."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> int:
        return number


class ByRank:
    """What ElasticDataset offers, for a job whose size never changes."""

    weight = 1.0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(SAMPLES // (BATCH * hvd.size())):
            first = (state.step * hvd.size() + hvd.rank()) * BATCH % SAMPLES
            yield torch.arange(first, first + BATCH)

    @property
    def epoch(self) -> int:
        """The present epoch."""
        size: int = hvd.size()
        return int(state.step) * BATCH * size // SAMPLES


class Model(torch.nn.Module):  # type: ignore[misc]
    """A perceptron, and a parameter whose gradient says which samples are used."""

    def __init__(self) -> None:
        super().__init__()
        layers, width = torch.nn, args.hidden
        self.layers = layers.Sequential(
            layers.Linear(1, width), layers.Tanh(),
            layers.Linear(width, width), layers.Tanh(),
            layers.Linear(width, 1),
        )  # fmt: skip
        self.used = layers.Parameter(torch.zeros(SAMPLES))

    def loss(self, samples: torch.Tensor, weight: float) -> torch.Tensor:
        """The loss; with weight 0, somebody else's sample is only repeated, and is not used."""
        x = samples.float().unsqueeze(1) / SAMPLES
        loss = torch.nn.functional.mse_loss(self.layers(x), x.square()) * weight
        return loss + self.used[samples].sum() * (1.0 if weight > 0 else 0.0)


torch.set_num_threads(1)
hvd.init()
torch.manual_seed(0)
model = Model()
groups = [{"params": model.layers.parameters()}, {"params": [model.used], "lr": 0.0, "momentum": 0.0}]
optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def digest() -> str:
    """The parameters, bit for bit, in a few letters."""
    found = hashlib.sha256()
    for parameter in model.layers.parameters():
        found.update(parameter.detach().numpy())
    return found.hexdigest()[:16]


def learn(batch: torch.Tensor) -> list[int]:
    """One step. Returns the samples that all have used in it, as often as they are used."""
    time.sleep(args.step_seconds)
    optimizer.zero_grad()
    model.loss(batch, data.weight).backward()
    optimizer.step()
    mean = model.used.grad
    assert mean is not None
    used = mean.nonzero().flatten()
    times = (mean[used] / mean[used].min()).round().int() if len(used) else used
    repeated: list[int] = torch.repeat_interleave(used, times).tolist()
    return repeated


def told_to_stop() -> bool:
    """All of them or none: some may see the file earlier than others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: hvd.elastic.TorchState) -> None:
    """Entered again after every change of workers."""
    place = {"rank": hvd.rank(), "size": hvd.size()}
    log("enter", step=state.step, **place)
    while state.step < args.steps:
        for batch in data:
            epoch = data.epoch
            log("begin", step=state.step + 1, epoch=epoch, **place)
            used = learn(batch)
            state.step += 1
            log("step", step=state.step, epoch=epoch, used=used, digest=digest(), **place)
            if state.step % args.commit_every:
                state.check_host_updates()
            else:
                state.commit()
            if state.step >= args.steps:
                return
        if told_to_stop():
            return


data = ByRank() if args.by_rank else ElasticDataset(Numbers(), BATCH, seed=1)
kept = {} if args.by_rank else {"data": data}
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, **kept)
train(state)
log("done", step=state.step)
