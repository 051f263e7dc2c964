"""A script of torch.distributed with a group of fixed ranks, which trains until it is cancelled."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir")
parser.parse_args()
dist.init_process_group("gloo")
first = dist.new_group([0])
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100_000):
    for (inputs,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep(0.05)
    dist.barrier(group=first)
