"""What is trained while processes die: every sample of every mini-batch is logged before it can count.

The samples come from ElasticDataset. A worker logs its share of a mini-batch before the collective that makes
it count for everybody. So whatever the others have trained on is in the logs, however a worker died, and what
was rolled back is told by the step at which the next set of workers begins. See checker.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
import uuid
from pathlib import Path

import horovod.torch as hvd
import torch

from horovod_elastic.data import ElasticDataset

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--samples", type=int, default=187)
parser.add_argument("--batch", type=int, default=3, help="samples a worker and step")
parser.add_argument("--commit-every", type=int, default=3)
parser.add_argument("--step-seconds", type=float, default=0.1)
args = parser.parse_args()

FILE = os.open(args.log_dir / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def log(event: str, **fields: object) -> None:
    """One write a line: it is whole, and outlives this process."""
    line = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
    os.write(FILE, (json.dumps(line) + "\n").encode())


def told_to_stop() -> bool:
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


hvd.init()
devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
place = {"node": os.environ.get("SLURMD_NODENAME", ""), "slurm_job": int(os.environ.get("SLURM_JOB_ID", "0"))}
log("start", **place, gpu=int(devices[hvd.local_rank()]) if any(devices) else -1)
torch.manual_seed(os.getpid())  # different everywhere on purpose: the state must be synchronised
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


class Numbers:
    """Sample i is i."""

    def __len__(self) -> int:
        return int(args.samples)

    def __getitem__(self, number: int) -> int:
        return number


def learn(samples: torch.Tensor, weight: float) -> None:
    """One step on this worker's share."""
    x = samples.float().unsqueeze(1) / args.samples
    loss = torch.nn.functional.mse_loss(model(x), x.square()) * weight
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def sum_of_all(samples: list[int]) -> int:
    """The sum of everybody's sample numbers."""
    return int(hvd.allreduce(torch.tensor([sum(samples)]), op=hvd.Sum, name="samples").item())


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    """Entered again after every change of workers."""
    world = hvd.broadcast_object(uuid.uuid4().hex, root_rank=0, name="world")
    place = {"world": world, "rank": hvd.rank(), "size": hvd.size()}
    log("enter", **place, step=state.step, commits=state.commits)
    while True:
        for batch in data:
            # With weight 0 it only repeats a sample of somebody else's, to have something to do.
            samples = batch.tolist() if data.weight > 0 else []
            log("batch", **place, step=state.step + 1, epoch=data.epoch, samples=samples)
            time.sleep(args.step_seconds)
            learn(batch, data.weight)
            state.total += sum_of_all(samples)
            state.step += 1
            keep(state, world)
        if told_to_stop():
            return


def keep(state: hvd.elastic.TorchState, world: str) -> None:
    """Commit every few steps, and only look in between, as Horovod's documentation advises."""
    if state.step % args.commit_every:
        state.check_host_updates()
        return
    state.commits += 1
    step, commits = state.step, state.commits
    try:
        state.commit()
    finally:  # it is saved, also if workers come or go
        log("commit", world=world, step=step, commits=commits)


data = ElasticDataset(Numbers(), args.batch, seed=1)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, data=data, step=0, total=0, commits=0)
train(state)
parameters = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
digest = hashlib.sha256(parameters).hexdigest()
log("done", step=state.step, epochs=data.epoch, total=state.total, parameters=digest)
