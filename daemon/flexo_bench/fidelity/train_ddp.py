"""The program of elastic jobs with DistributedDataParallel: an ordinary script whose work is known.

It does the work of train.py, in one epoch: as many samples as that many mini-batches of one worker have. A
step sleeps, so that each worker has a GPU of its own on a machine with few cores. Nothing of flexo is called.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from flexo_bench.fidelity.job_program import CLASSES, INPUTS, Log, parse_arguments

BATCH = 8


class Samples(Dataset):  # type: ignore[misc]  # PyTorch is not checked
    """Samples that are made when they are asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return torch.full((INPUTS,), float(number % 7)), number % CLASSES


def main() -> None:
    """Train for the given work."""
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    log = Log(args.log_dir)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(INPUTS, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = Samples(args.epochs * args.batches * BATCH)
    loader = DataLoader(samples, BATCH, sampler=DistributedSampler(samples))
    log.write("enter", dist.get_rank(), dist.get_world_size())
    for inputs, labels in loader:
        optimizer.zero_grad()
        time.sleep(args.step_seconds * (1 + args.slower * (dist.get_world_size() - 1)))
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        log.write("batch", dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
