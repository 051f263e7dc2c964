"""What is trained with DistributedDataParallel while processes die, without a call of flexo's.

Each step logs what has counted in it (kills_model.py), as in train_kills.py.

The optimizer's state counts the steps, so that a worker that comes later counts on. A newcomer's steps before
it joins have no effect, and are not logged.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from flexo_bench.elastic_ddp.parts import practises
from flexo_bench.service.kills_model import EventLog, Model, Numbers, optimizer_of, options


def count(optimizer: Any, *_: Any) -> None:
    """Count a step."""
    optimizer.param_groups[0]["taken"] += 1


def main() -> None:
    """Train until the last step, or until killed."""
    args = options().parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    log = EventLog(args.log_dir)
    model = Model(args.samples, args.hidden)
    replica = DistributedDataParallel(model)
    optimizer = optimizer_of(model)
    optimizer.param_groups[0]["taken"] = 0
    optimizer.register_step_post_hook(count)
    data = Numbers(args.samples)
    sampler: DistributedSampler[int] = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler)
    epoch, place = 0, {"rank": -1, "size": 0}
    while optimizer.param_groups[0]["taken"] < args.steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            done = optimizer.param_groups[0]["taken"]
            counts = not practises()
            now = {"rank": dist.get_rank(), "size": dist.get_world_size()}
            if counts and now != place:
                log.write("enter", step=done, **now)
            place = now if counts else place
            if counts:
                log.write("begin", step=done + 1, epoch=epoch, **place)
            time.sleep(args.step_seconds)
            optimizer.zero_grad()
            loss, used = replica(batch)
            (loss + used.mean()).backward()
            optimizer.step()
            taken = optimizer.param_groups[0]["taken"]
            if counts and taken != done:
                facts = {"used": model.all_used(), "digest": model.digest()}
                log.write("step", step=taken, epoch=epoch, **facts, **place)
            if taken >= args.steps:
                break
        epoch += 1
    log.write("done", step=optimizer.param_groups[0]["taken"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
