"""Learn handwritten digits: an ordinary PyTorch program with DistributedDataParallel.

It knows nothing of who started it. It runs under ``torchrun --nproc-per-node=2 train_ddp.py`` and, elastic,
under ``flexo run train_ddp.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Digits(Dataset):
    """1,797 images of 8 by 8 pixels: (1, 8, 8), values from 0 to 1."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.images[index], self.labels[index], index


def parse_arguments() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="batch of each worker")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps, as for slow storage")
    parser.add_argument("--log-dir", type=Path, help="log every step here")
    return parser.parse_args()


def make_model(width: int) -> nn.Module:
    """A small convolutional network; equal in every worker before the first step."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * width * 16, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def main() -> None:
    """Train."""
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = Digits()
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    model = DistributedDataParallel(make_model(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.5)
    log = None
    if args.log_dir is not None:
        args.log_dir.mkdir(parents=True, exist_ok=True)
        log = (args.log_dir / f"{socket.gethostname()}-{os.getpid()}.jsonl").open("a", buffering=1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels, numbers in loader:
            time.sleep(args.pause)
            began = time.time()
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if log is not None:
                step = {"epoch": epoch, "rank": dist.get_rank(), "size": dist.get_world_size()}
                step |= {"step": schedule.last_epoch}
                step |= {"began": began, "ended": time.time(), "loss": loss.item()}
                log.write(json.dumps({**step, "samples": numbers.tolist()}) + "\n")
    if dist.get_rank() == 0 and args.log_dir is not None:
        (args.log_dir / "result.json").write_text(json.dumps({"steps": schedule.last_epoch}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
