"""Trains the idioms that it is told to, and writes down after each mini-batch what it then has."""

import argparse
import json
import os
import time
import uuid
import warnings
from pathlib import Path

import horovod.torch as hvd
import torch
from idioms import all_facts, digest, make

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--idioms", type=lambda text: text.split(","), required=True)
parser.add_argument(
    "--commit", choices=["always", "every fifth", "by rank", "by rank alone"], default="always"
)
parser.add_argument("--batches", type=int, default=100000)
parser.add_argument("--by-plan", action="store_true", help="the last rank returns early: `plan` says when")
parser.add_argument("--batch-seconds", type=float, default=0.04)
parser.add_argument("--spoil", help="at this file's sight: change a weight of the last rank")
args = parser.parse_args()


def log(event, suffix="jsonl", **fields):
    with (args.log_dir / f"{os.getpid()}.{suffix}").open("a") as file:
        place = {"pid": os.getpid(), "rank": hvd.rank(), "size": hvd.size()}
        file.write(json.dumps({"event": event, "time": time.time()} | place | fields) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


def early_return_and_end():
    """Mini-batches. Who writes the plan chooses such as are far enough for everybody to read it before."""
    plan = args.log_dir / "plan"
    if args.by_plan and plan.exists():
        early, end = map(int, plan.read_text().split())
        return early, end
    return args.batches, args.batches


warnings.filterwarnings("ignore", "Detected call of")  # of a scheduler that knows the optimizer beneath
torch.set_num_threads(1)
hvd.init()
idioms = make(args.idioms, hvd)


@hvd.elastic.run
def train(state):
    world = hvd.broadcast_object(uuid.uuid4().hex if hvd.rank() == 0 else None)
    log("enter", world=world, batch=state.batch)
    while True:
        early, end = early_return_and_end()
        if state.batch >= end or (state.batch % 6 == 0 and told_to_stop()):
            return
        is_last = hvd.rank() == hvd.size() - 1
        if early <= state.batch < end and is_last:
            log("early", batch=state.batch)
            return
        for idiom in idioms:
            idiom.train(state.batch, state)
        if args.spoil and is_last and (args.log_dir / args.spoil).exists():
            with torch.no_grad():
                idioms[0].model.weight[0, 0] += 1.0
            (args.log_dir / args.spoil).unlink()
            log("spoiled", batch=state.batch)
        time.sleep(args.batch_seconds)
        state.batch += 1
        facts = all_facts(idioms, state)
        log("facts", suffix="facts", world=world, batch=state.batch, facts=facts)
        log("step", world=world, batch=state.batch, digest=digest(facts))
        if args.commit == "always" or (state.batch + hvd.rank() * args.commit.startswith("by rank")) % 5 == 0:
            state.commit()
        elif args.commit != "by rank alone":
            state.check_host_updates()


kept = {key: value for idiom in idioms for key, value in idiom.state().items()}
state = hvd.elastic.TorchState(batch=0, **kept)
train(state)
if args.by_plan:
    hvd.join()
log("done", batch=state.batch)
