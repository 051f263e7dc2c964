"""What scripts of torch.distributed do at a fixed size, one function each. Nothing of flexo is called."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def groups():
    """Sub-groups, a group of all, and collectives of objects."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    alone, everybody = dist.new_group([0]), dist.new_group(range(size))
    pairs = [dist.new_group([number, (number + 1) % size]) for number in range(size)]
    sums = []
    for group, members in ((everybody, range(size)), (pairs[0], (0, 1)), (alone, (0,))):
        value = torch.tensor([rank + 1.0])
        if rank in members:
            dist.all_reduce(value, group=group)
        sums.append(value.item())
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    return {"sums": sums, "objects": objects}


def sharded():
    """FSDP2 over a device mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(30):
        inputs = torch.randn(64, 8)
        loss = nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    whole = sum(float(each.full_tensor().detach().double().abs().sum()) for each in model.parameters())
    local = sum(each.to_local().numel() for each in model.parameters())
    return {"falls": losses[-1] < losses[0] / 2, "whole": whole, "local": local}


def by_variables():
    """The variables of torchrun, read by the script and by PyTorch."""
    told = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    dist.init_process_group("gloo", init_method="env://")
    return {"told": told, "sum": summed()}


def by_arguments():
    """Rank and size given to init_process_group, with an address of the script's own."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    dist.init_process_group(backend="gloo", init_method=where, rank=rank, world_size=size)
    return {"told": [rank, size], "sum": summed()}


def by_store():
    """A store of the script's own."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return {"told": [rank, size], "sum": summed()}


def undistributed():
    """A script without torch.distributed."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return {"initialized": dist.is_initialized()}


class Stream(torch.utils.data.IterableDataset):
    """Samples without an end that is known."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(dist.get_rank())
        return (torch.randn(8, generator=generator) for _ in range(200))


def streams():
    """DistributedDataParallel over an IterableDataset."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    for _ in range(2):
        for inputs in torch.utils.data.DataLoader(Stream(), batch_size=4):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            steps += 1
    return {"steps": steps, "weights": float(model.module.weight.detach().double().abs().sum())}


def twice():
    """A group, its end, and a second group."""
    dist.init_process_group("gloo")
    sums = [summed()]
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    sums.append(summed())
    return {"sums": sums}


def dies():
    """Rank 1 ends in the middle, with an exit code of its own."""
    dist.init_process_group("gloo")
    summed()
    if dist.get_rank() == 1:
        sys.exit(5)
    time.sleep(1)
    summed()
    time.sleep(60)
    return {}


def dies_early():
    """Rank 1 ends before the group is made."""
    if os.environ["RANK"] == "1":
        sys.exit(6)
    dist.init_process_group("gloo")
    return {}


def summed():
    """The sum of all ranks, counted from 1."""
    value = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(value)
    return value.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--case", required=True)
    options = parser.parse_args()
    found = globals()[options.case]()
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
    with Path(options.log_dir, f"{os.getpid()}.jsonl").open("a") as log:
        log.write(json.dumps({"event": "done", "time": time.time(), "rank": rank, **found}) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()
