"""An ordinary training with DistributedDataParallel, which logs its samples. Nothing of flexo is called."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from generations import world
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset):
    def __init__(self, samples):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(samples, 16, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        return self.inputs[number], self.targets[number], number


def read():
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--sleep", type=float, default=0.06)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--stranger", action="store_true", help="rank 2 has one more collective")
    parser.add_argument("--alone", choices=["batch", "loader"], help="rank 0 takes or makes one by itself")
    parser.add_argument("--gathers", type=int, default=0, help="rows of a matrix gathered in each step")
    parser.add_argument("--device", default="cpu", help="cuda: all workers share one GPU")
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint, if there is one")
    return parser.parse_args()


def gather(rows):
    """Gather a matrix of the script's own, such as a confusion matrix."""
    if rows:
        matrices = [torch.zeros(rows, 3) for _ in range(dist.get_world_size())]
        dist.all_gather(matrices, matrices[0].clone())


def look_alone(wanted, loader):
    """Rank 0 takes a batch that the others do not take."""
    if wanted and dist.get_rank() == 0:
        next(iter(loader()))


def main():
    options = read()

    device = torch.device(options.device)
    if device.type == "cuda":
        os.environ["NCCL_HOSTID"] = str(os.getpid())  # else NCCL refuses workers that share a GPU
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    model = DistributedDataParallel(layers.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.99)
    data = Points(options.samples)
    sampler = DistributedSampler(data, shuffle=True)
    look_alone(options.alone == "loader", lambda: DataLoader(data, batch_size=256))
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=options.workers)
    check = DataLoader(data, batch_size=256, sampler=DistributedSampler(data, shuffle=False))
    log = Path(options.log_dir, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    def tell(event, **facts):
        place = {"rank": dist.get_rank(), "size": dist.get_world_size(), "pid": os.getpid()}
        place["world"] = world()
        log.write(json.dumps({"event": event, "time": time.time(), **place, **facts}) + "\n")

    first, saved = 0, Path(options.log_dir, "checkpoint.pt")
    if options.resume and saved.exists():
        kept = torch.load(saved)
        layers.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        scheduler.load_state_dict(kept["scheduler"])
        first = kept["epoch"]
    look_alone(options.alone == "batch", lambda: loader)
    tell("began", script_rank=rank, loaded=first)
    for epoch in range(first, options.epochs):
        assert len(next(iter(loader))) == 3, "scripts look at a batch before an epoch"
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets, numbers in loader:
            optimizer.zero_grad()
            if options.stranger and rank > 1:
                dist.all_reduce(torch.zeros(3))
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            scheduler.step()
            gather(options.gathers)
            digest = float(sum(each.detach().double().abs().sum() for each in model.parameters()))
            taken = int(optimizer.state_dict()["state"][0]["step"])
            rate = scheduler.get_last_lr()[0]
            tell("step", epoch=epoch, taken=taken, digest=digest, rate=rate, numbers=numbers.tolist())
            time.sleep(options.sleep)
        model.eval()
        with torch.no_grad():
            right = torch.tensor([0, 0], device=device)
            for inputs, targets, _ in check:
                found = model(inputs.to(device)).argmax(1).cpu()
                right += torch.tensor([int((found == targets).sum()), len(targets)], device=device)
            dist.all_reduce(right)
            stop = torch.tensor(float(Path(options.log_dir, "stop").exists()), device=device)
            dist.all_reduce(stop)
        tell("epoch", epoch=epoch, accuracy=right[0].item() / right[1].item())
        if rank == 0:
            torch.save(model.module.state_dict(), f"{options.log_dir}/model.pt")
            state = {"model": layers, "optimizer": optimizer, "scheduler": scheduler}
            kept = {name: each.state_dict() for name, each in state.items()}
            torch.save({**kept, "epoch": epoch + 1}, saved.with_suffix(".new"))
            saved.with_suffix(".new").rename(saved)
        if stop:
            break
    tell("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
