"""As docs/howto/loaning.md shows it: whoever was preempted goes on from what its own job saved before."""

import argparse
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

from horovod_elastic.training import load_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--saved", type=Path, required=True, help="the folder of checkpoints")
parser.add_argument("--batch-seconds", type=float, default=0.2)
args = parser.parse_args()


def tell(what):
    if hvd.rank() == 0:
        print(what, flush=True)


hvd.init()
model = torch.nn.Linear(20, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    tell(f"trains from batch {state.batch} on with {hvd.size()} workers")
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        time.sleep(args.batch_seconds)
        optimizer.step()
        state.batch += 1
        state.commit()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
saved = args.saved / f"saved-{os.environ['SLURM_JOB_ID']}.pt"
if saved.exists():
    about = load_checkpoint(saved, state)
    tell(f"job {about.job_id} has saved batch {state.batch} before")
train(state)
