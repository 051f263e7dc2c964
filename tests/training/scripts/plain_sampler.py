"""PyTorch's DistributedSampler, made once before the loop, as in many elastic scripts."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--batch-seconds", type=float, default=0.1)
args = parser.parse_args()


def log(event, **fields):
    with (args.log_dir / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


hvd.init()
torch.manual_seed(3)
dataset = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    log("enter", rank=hvd.rank(), size=hvd.size(), batches=len(loader), step=state.step)
    while not told_to_stop():
        sampler.set_epoch(state.epoch)
        for number, (data, target) in enumerate(loader):
            if number < state.batch:
                continue
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(data), target).backward()
            optimizer.step()
            time.sleep(args.batch_seconds)
            state.batch = number + 1
            state.step += 1
            step, rank, size = state.step, hvd.rank(), hvd.size()
            try:
                state.commit()
            finally:  # what commit() has saved is kept, also if it then raises because workers come or go
                log("commit", step=step, rank=rank, size=size)
        hvd.allreduce(torch.tensor(float(number)), name="the epoch is over")
        state.epoch, state.batch = state.epoch + 1, 0


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, batch=0, step=0)
train(state)
parameters = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
log("done", steps=state.step, rank=hvd.rank(), size=hvd.size(),
    parameters=hashlib.sha256(parameters).hexdigest())  # fmt: skip
