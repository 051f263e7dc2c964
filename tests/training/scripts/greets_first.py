"""Collectives before the loop, which Horovod's documentation advises against and people write anyway."""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--batches", type=int, default=100000)
args = parser.parse_args()


def log(event, **fields):
    with (args.log_dir / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


hvd.init()
settings = hvd.broadcast_object({"rate": 0.1, "name": f"run of {os.getpid()}"}, root_rank=0)
greetings = hvd.allgather_object(f"hello from {os.getpid()}")
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
log("before", rank=hvd.rank(), size=hvd.size(), greetings=len(greetings), name=settings["name"])
optimizer = torch.optim.SGD(model.parameters(), lr=settings["rate"])
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    told = hvd.broadcast_object({"begins at": state.step} if hvd.rank() == 0 else None)  # types differ
    log("enter", rank=hvd.rank(), size=hvd.size(), step=state.step, told=told["begins at"])
    while state.step < args.batches and not told_to_stop():
        optimizer.zero_grad()
        model(torch.full((2, 4), float(hvd.rank()))).square().mean().backward()
        optimizer.step()
        time.sleep(0.1)
        state.step += 1
        step, rank, size = state.step, hvd.rank(), hvd.size()
        try:
            state.commit()
        finally:
            log("commit", step=step, rank=rank, size=size)


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
train(state)
# A metric averaged over all workers after training, as evaluations do.
mean = hvd.allreduce(torch.tensor(float(hvd.rank())))
weights = model.state_dict()["weight"].numpy().tobytes().hex()
log("done", steps=state.step, rank=hvd.rank(), size=hvd.size(), mean=float(mean), parameters=weights)
