"""A script that starts two workers of its own in each process, which train together."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.launcher import LaunchConfig, elastic_launch

WORKERS = 2


def train(rank: int, logs: Path, steps: int, meet: str | None = None) -> None:
    """`meet`: in which file they meet, if the script says so itself."""
    if meet is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=WORKERS)
    told = torch.tensor(float(dist.get_rank() + 1))
    for _ in range(steps):
        total = told.clone()
        dist.all_reduce(total)
        time.sleep(0.05)
    found = {"event": "done", "time": time.time(), "rank": dist.get_rank(), "sum": total.item()}
    (logs / f"{os.getpid()}.jsonl").write_text(json.dumps({**found, "parent": os.getppid()}) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--by", choices=["spawn", "elastic_launch", "torchrun", "nobody"])
    parser.add_argument("--steps", type=int, default=10, help="of 0.05 s")
    options, _ = parser.parse_known_args()
    if options.by == "spawn":
        meet = str((options.log_dir / f"meet-{os.getpid()}").absolute())
        mp.spawn(train, (options.log_dir, options.steps, meet), nprocs=WORKERS)
    elif options.by == "elastic_launch":
        config = LaunchConfig(
            1,
            1,
            nproc_per_node=WORKERS,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=str(os.getpid()),
        )
        elastic_launch(config, train)(0, options.log_dir, options.steps)
    elif options.by == "torchrun":
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={WORKERS}",
        ]
        again = [__file__, "--by", "nobody", "--log-dir", str(options.log_dir)]
        subprocess.run([*launcher, *again], check=True)
    else:
        train(0, options.log_dir, options.steps)


if __name__ == "__main__":
    main()
