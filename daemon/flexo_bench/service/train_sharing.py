"""What the jobs of part `sharing` train: the compute is a timed sleep, and the gradients are real.

The benchmark steers a job by files in its folder. While `hold` exists, no worker begins a step. While
`greedy` exists, a step has no compute and one more tensor, so that the job sends many times more than its
profile says. Rank 0 logs each of its steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--width", type=int, default=700, help="inputs and outputs of each of the two layers")
parser.add_argument("--step-seconds", type=float, default=0.2, help="slept instead of computing")
parser.add_argument("--greedy-million", type=float, default=12.0, help="numbers more while it is greedy")
args = parser.parse_args()
HELD_S = 0.02
"""Time between two looks at `hold`."""
FILE = os.open(args.folder / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def log(event: str, **fields: object) -> None:
    """Write a line at once: it is whole, and outlives this process."""
    line = {"event": event, "time": time.time(), "rank": hvd.rank(), "size": hvd.size(), **fields}
    os.write(FILE, (json.dumps(line) + "\n").encode())


torch.set_num_threads(1)
hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(args.width, args.width), torch.nn.Linear(args.width, args.width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
inputs = torch.randn(1, args.width)
more = torch.zeros(round(args.greedy_million * 1e6))


def wait_while_held() -> None:
    """Return once no file `hold` is there."""
    while (args.folder / "hold").exists():
        time.sleep(HELD_S)


def compute() -> None:
    """Sleep; a greedy job sends more instead. Ranks agree first: they may see the file in different steps."""
    wants = torch.tensor([float((args.folder / "greedy").exists())])
    if hvd.allreduce(wants, op=hvd.Max, name="greedy").item():
        hvd.allreduce_(more, op=hvd.Sum, name="more")
    else:
        time.sleep(args.step_seconds)


def learn() -> None:
    """One step."""
    compute()
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: hvd.elastic.TorchState) -> None:
    """Entered again in every generation."""
    log("enter", step=state.step)
    while True:
        wait_while_held()
        began = time.time()
        learn()
        state.step += 1
        if hvd.rank() == 0:
            log("step", step=state.step, began=began)
        state.commit()


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
