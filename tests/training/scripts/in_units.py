"""Trainings whose model is spread over two workers, and replicated. Nothing of flexo is called."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from generations import world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

UNIT = 2
SAMPLES = 2000


def net():
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 2))


def hsdp():
    """Replicas of a sharded model; each worker has its own samples."""
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // UNIT, UNIT), mesh_dim_names=("replicate", "shard")
    )
    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, dist.get_world_size(), dist.get_rank()


def tp():
    """Replicas of a model in tensor parallelism; the workers of one have the same samples."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // UNIT, UNIT), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model = DistributedDataParallel(model, device_mesh=mesh["dp"])
    return model, dist.get_world_size() // UNIT, dist.get_rank() // UNIT


def whole():
    """A model that is sharded over all workers."""
    model = net()
    fully_shard(model)
    return model, dist.get_world_size(), dist.get_rank()


def odd():
    """A group that is neither inside a unit nor across units."""
    dist.new_group([0, 3])
    return hsdp()


def skewed():
    """Samples that are dealt out neither by workers nor by units."""
    return hsdp()[0], 3, 0


WAYS = {"hsdp": hsdp, "tp": tp, "whole": whole, "odd": odd, "skewed": skewed}


def local(value):
    return value.to_local() if hasattr(value, "to_local") else value


def norm_of(parameters):
    """The norm of the gradients of DTensors, of the whole model."""
    norm = nn.utils.clip_grad_norm_(parameters, 100.0)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--sleep", type=float, default=0.1)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, replicas, replica = WAYS[options.way]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.99)
    inputs = torch.randn(options.samples, 16, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long(), torch.arange(options.samples))
    sampler = DistributedSampler(data, replicas, replica)
    loader = DataLoader(data, batch_size=32 * dist.get_world_size() // replicas, sampler=sampler)
    log = Path(options.log_dir, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    def tell(event, **facts):
        place = {"rank": dist.get_rank(), "size": dist.get_world_size(), "pid": os.getpid(), "world": world()}
        log.write(json.dumps({"event": event, "time": time.time(), **place, **facts}) + "\n")

    for epoch in range(1000):
        sampler.set_epoch(epoch)
        right = torch.zeros(2)
        for batch, targets, numbers in loader:
            optimizer.zero_grad()
            outputs = model(batch)
            cross_entropy(outputs, targets).backward()
            norm = norm_of(optimizer.param_groups[0]["params"])
            optimizer.step()
            scheduler.step()
            right += torch.tensor([float((outputs.argmax(1) == targets).sum()), len(targets)])
            state = [local(each).double().abs().sum().item() for each in optimizer.param_groups[0]["params"]]
            moments = [local(its["exp_avg"]).double().abs().sum().item() for its in optimizer.state.values()]
            taken = int(next(iter(optimizer.state.values()))["step"])
            facts = {
                "taken": taken,
                "rate": scheduler.get_last_lr()[0],
                "norm": norm,
                "numbers": numbers.tolist(),
            }
            tell("step", epoch=epoch, state=[*state, *moments], **facts)
            time.sleep(options.sleep)
        dist.all_reduce(right)
        stop = torch.tensor(float(Path(options.log_dir, "stop").exists()))
        dist.all_reduce(stop)
        tell("epoch", epoch=epoch, accuracy=float(right[0] / right[1]))
        if stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
