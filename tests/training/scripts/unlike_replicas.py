"""A script of torch.distributed that does more than average gradients (--how), until it is stopped."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path)
parser.add_argument("--how", choices=["local-steps", "hook"])
options = parser.parse_args()
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 2))
if options.how == "hook":
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
stop = torch.zeros(1)
while not stop:
    for (inputs,) in loader:
        optimizer.zero_grad()
        if options.how == "local-steps":
            with model.no_sync():
                model(inputs).pow(2).sum().backward()
        else:
            model(inputs).pow(2).sum().backward()
        optimizer.step()
        time.sleep(0.02)
    for each in model.parameters():
        dist.all_reduce(each.data)
        each.data /= dist.get_world_size()
    stop = torch.tensor(float((options.log_dir / "stop").exists()))
    dist.all_reduce(stop)
dist.destroy_process_group()
