"""The learning rate grows with the number of workers; rank 0 prints and saves before the loop."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--batches", type=int, default=100000)
parser.add_argument("--batch-seconds", type=float, default=0.1)
args = parser.parse_args()
BASE_RATE = 0.01


def log(event, **fields):
    with (args.log_dir / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


hvd.init()
torch.manual_seed(7)
model = torch.nn.Linear(20, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=BASE_RATE * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
log("before", rank=hvd.rank(), size=hvd.size(), local_rank=hvd.local_rank(), local_size=hvd.local_size())
if hvd.rank() == 0:
    print("the experiment begins", flush=True)
    with (args.log_dir / "checkpoint.pt").open("xb") as checkpoint:  # fails if there is one
        torch.save(model.state_dict(), checkpoint)


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = BASE_RATE * hvd.size()


@hvd.elastic.run
def train(state):
    log("enter", rank=hvd.rank(), size=hvd.size(), local_rank=hvd.local_rank(), step=state.batch,
        rate=optimizer.param_groups[0]["lr"])  # fmt: skip
    while state.batch < args.batches and not told_to_stop():
        generator = torch.Generator().manual_seed(1000 * state.batch + hvd.rank())
        data = torch.randn(8, 20, generator=generator)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        time.sleep(args.batch_seconds)
        state.batch += 1
        step, rank, size = state.batch, hvd.rank(), hvd.size()
        try:
            state.commit()
        finally:
            log("commit", step=step, rank=rank, size=size)


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
parameters = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
log("done", steps=state.batch, rank=hvd.rank(), size=hvd.size(), rate=optimizer.param_groups[0]["lr"],
    parameters=hashlib.sha256(parameters).hexdigest())  # fmt: skip
