"""An ordinary program with DistributedDataParallel, for torchrun and for flexo, which calls nothing of flexo.

With --checkpoint it is a program as torchrun's elasticity requires it: it saves its state every SAVE_EVERY
steps, and begins with what is saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from flexo_bench.elastic_ddp.parts import (
    BATCH_SIZE,
    MODEL,
    Noise,
    StepLog,
    as_it_is,
    parse_arguments,
    practises,
)
from flexo_bench.runtime.workload import make_model

SAVE_EVERY = 20
"""Steps between two checkpoints: about a second."""


def count(optimizer: Any, *_: Any) -> None:
    """Count the steps where the optimizer's state has them, so that whoever takes it over has them, too."""
    optimizer.param_groups[0]["taken"] += 1


def main() -> None:
    """Train until killed."""
    args = parse_arguments(checkpoints=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    log = StepLog(args.log_dir)
    data = Noise(args.samples)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, collate_fn=as_it_is)
    model = DistributedDataParallel(make_model(MODEL))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer.param_groups[0]["taken"] = 0
    optimizer.register_step_post_hook(count)
    epoch = load(args.checkpoint, model, optimizer) if args.checkpoint else 0
    done = optimizer.param_groups[0]["taken"]
    while True:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            log.wait_at_gate(optimizer.param_groups[0]["taken"])
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            taken = optimizer.param_groups[0]["taken"]
            if taken != done and not practises():
                log.step(taken, dist.get_rank(), dist.get_world_size())
            done = taken
            if args.checkpoint and taken % SAVE_EVERY == 0 and dist.get_rank() == 0:
                save(args.checkpoint, model, optimizer, epoch)
        epoch += 1


def save(path: Path, model: Any, optimizer: Any, epoch: int) -> None:
    """Save all that training needs to go on."""
    fresh = path.with_suffix(".new")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, fresh)
    fresh.rename(path)


def load(path: Path, model: Any, optimizer: Any) -> int:
    """Load the state that `save` wrote, if it is there. Returns the epoch."""
    if not path.exists():
        return 0
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["epoch"])


if __name__ == "__main__":
    main()
