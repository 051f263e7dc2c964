"""A training with everything that differs from rank to rank: dropout, batch statistics, augmented samples.

At its end each rank writes a digest of all its state, and its losses. Nothing of flexo is called.
"""

import argparse
import hashlib
import json
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from generations import world
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Augmented(Dataset):
    """Points with noise from all three generators."""

    def __init__(self, samples):
        self.inputs = torch.randn(samples, 16, generator=torch.Generator().manual_seed(1))
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        noise = torch.randn(16) * 0.1 + random.random() * 0.1 + np.random.rand() * 0.1
        return self.inputs[number] + noise, self.targets[number]


def loader_of(options, data):
    how = {"num_workers": options.workers, "persistent_workers": options.persistent}
    if options.undivided:
        return None, DataLoader(data, batch_size=8, shuffle=True, **how)
    sampler = DistributedSampler(data)
    return sampler, DataLoader(data, batch_size=8, sampler=sampler, **how)


def all_say(so):
    """Whether any rank says so; all hear the same."""
    said = torch.tensor(float(so))
    dist.all_reduce(said)
    return said.item() > 0


def digest_of(model, optimizer):
    """A digest of parameters, buffers and moments."""
    state = hashlib.sha256()
    for name, each in model.state_dict().items():
        state.update(name.encode() + each.numpy().tobytes())
    for each in optimizer.state_dict()["state"].values():
        state.update(each["exp_avg_sq"].numpy().tobytes())
    return state.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--steps", type=int, default=100_000, help="at most; it ends earlier if asked to")
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--undivided", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    np.random.seed(300 + rank)
    layers = nn.Sequential(
        *(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU()), nn.Dropout(0.3), nn.Linear(64, 2)
    )
    model = DistributedDataParallel(layers, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    sampler, loader = loader_of(options, Augmented(1000))
    log = Path(options.log_dir, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    def tell(event, **facts):
        place = {"rank": rank, "size": dist.get_world_size(), "pid": os.getpid(), "world": world()}
        log.write(json.dumps({"event": event, "time": time.time(), **place, **facts}) + "\n")

    losses, best = [], float("inf")
    own, numpys = torch.Generator().manual_seed(rank), np.random.default_rng(rank)
    ahead = torch.rand(16, generator=own) * 0.1
    ends = False
    for epoch in range(options.steps):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs + ahead), targets)
            ahead = torch.rand(16, generator=own) * float(numpys.random()) * 0.1
            loss.backward()
            optimizer.step()
            schedule.step()
            if len(losses) < 5:  # once training has begun, only the practice of newcomers changes it
                best = min(best, loss.item())
            losses.append((epoch, number, loss.item(), best))
            tell("step", steps=len(losses))
            time.sleep(options.sleep)
            if len(losses) % 10 == 0:
                ends = all_say(Path(options.log_dir, "stop").exists() or len(losses) >= options.steps)
            if ends:
                break
        if ends:
            break
    drawn = [torch.rand(1).item(), random.random(), np.random.rand()]
    history = hashlib.sha256(json.dumps(losses).encode()).hexdigest()
    tell("end", state=digest_of(model, optimizer), history=history, drawn=drawn, steps=len(losses))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
