"""ElasticSampler, a DataLoader with processes of its own, a commit every few batches, checks in between."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=100000)
parser.add_argument("--samples", type=int, default=48)
parser.add_argument("--commit-every", type=int, default=4)
parser.add_argument("--batch-seconds", type=float, default=0.1)
parser.add_argument(
    "--context", default=None, help="how the loader's processes start: fork, spawn, forkserver"
)
args = parser.parse_args()


class Squares(Dataset):
    """Sample i is (i, i / samples, (i / samples) ** 2)."""

    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        x = index / args.samples
        return index, torch.tensor([x]), torch.tensor([x * x])


def log(event, **fields):
    with (args.log_dir / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


def main():
    hvd.init()
    torch.manual_seed(1 + hvd.rank())  # different everywhere on purpose: the state must be synchronised
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(Squares())
    loader = DataLoader(
        Squares(), batch_size=4, sampler=sampler, num_workers=2, multiprocessing_context=args.context
    )

    @hvd.elastic.run
    def train(state):
        rank, size = hvd.rank(), hvd.size()
        log("enter", rank=rank, size=size, step=state.step)
        seen = []
        while state.epoch < args.epochs and not told_to_stop():
            for number, (indices, x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                time.sleep(args.batch_seconds)
                sampler.record_batch(number, len(indices))
                seen += indices.tolist()
                state.step += 1
                try:
                    if state.step % args.commit_every == 0:
                        state.commit()
                    else:
                        state.check_host_updates()
                except HostsUpdatedInterrupt:
                    log("kept", epoch=state.epoch, step=state.step, samples=seen, rank=rank, size=size)
                    raise
                if state.step % args.commit_every == 0:
                    log("kept", epoch=state.epoch, step=state.step, samples=seen, rank=rank, size=size)
                    seen = []
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            try:
                state.commit()
            finally:  # what commit() has saved is kept, also if it then raises because workers come or go
                log("kept", epoch=state.epoch - 1, step=state.step, samples=seen, rank=rank, size=size)
            seen = []
        return state.step

    steps = train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0))
    parameters = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    log(
        "done",
        steps=steps,
        rank=hvd.rank(),
        size=hvd.size(),
        parameters=hashlib.sha256(parameters).hexdigest(),
    )


if __name__ == "__main__":
    main()
