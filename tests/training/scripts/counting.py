"""No model at all: a state of plain objects, summed up over all workers; fails where it is told to."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--batches", type=int, default=100000)
parser.add_argument("--batch-seconds", type=float, default=0.1)
parser.add_argument("--fail", choices=["at once", "before the loop", "in the loop"])
parser.add_argument("--fail-on-rank", type=int, default=-1, help="-1: on all")
parser.add_argument("--newcomers-sleep", type=float, default=0.0, help="seconds before hvd.init")
args = parser.parse_args()


def log(event, **fields):
    with (args.log_dir / f"{os.getpid()}.jsonl").open("a") as file:
        line = {
            "event": event,
            "time": time.time(),
            "pid": os.getpid(),
            "node": os.environ.get("FLEXO_NODE") or os.environ["SLURMD_NODENAME"],
        }
        file.write(json.dumps(line | fields) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


def fail_if_told(moment):
    if args.fail == moment and (args.fail_on_rank < 0 or hvd.rank() == args.fail_on_rank):
        sys.exit(3)


if args.fail == "at once":
    sys.exit(3)
if os.environ.get("FLEXO_NEWCOMER") == "1":
    time.sleep(args.newcomers_sleep)
hvd.init()
log("before", rank=hvd.rank(), size=hvd.size(), gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
fail_if_told("before the loop")


@hvd.elastic.run
def train(state):
    log("enter", rank=hvd.rank(), size=hvd.size(), step=state.step, total=state.total)
    while state.step < args.batches and not told_to_stop():
        if state.step == 5:
            fail_if_told("in the loop")
        state.total += int(hvd.allreduce(torch.tensor([state.step]), op=hvd.Sum)) / hvd.size()
        time.sleep(args.batch_seconds)
        state.step += 1
        step, rank, size, total = state.step, hvd.rank(), hvd.size(), state.total
        try:
            state.commit()
        finally:
            log("commit", step=step, rank=rank, size=size, total=total)


state = hvd.elastic.TorchState(step=0, total=0)
train(state)
log(
    "done", steps=state.step, total=state.total, rank=hvd.rank(), size=hvd.size(), parameters=str(state.total)
)
