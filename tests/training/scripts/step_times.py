"""A training with DistributedDataParallel that writes how long its steps take. Nothing of flexo is called."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    width = options.width
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(options.global_batch // dist.get_world_size(), width)
    took = []
    for _ in range(options.steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        mse_loss(model(inputs), inputs).backward()
        optimizer.step()
        took.append(time.perf_counter() - began)
    told = {"event": "took", "time": time.time(), "rank": dist.get_rank(), "took": took[10:]}
    Path(options.log_dir, f"{os.getpid()}.jsonl").write_text(json.dumps(told) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
