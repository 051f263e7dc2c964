"""Trains on one of the faces of horovod_elastic.data, and logs every sample before it is committed."""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, Dataset

from horovod_elastic.data import ElasticDataset, ElasticShardSampler, elastic_shard_generator

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--face", choices=["dataset", "processes", "sampler", "generator"], default="dataset")
parser.add_argument("--epochs", type=int, default=100000)
parser.add_argument("--samples", type=int, default=400)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--commit-every", type=int, default=1)
parser.add_argument("--batch-seconds", type=float, default=0.05)
args = parser.parse_args()


class Numbers(Dataset):
    """Sample i is i."""

    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        return index


def log(event, **fields):
    with (args.log_dir / f"{os.getpid()}.jsonl").open("a") as file:
        line = {"event": event, "time": time.time(), "pid": os.getpid()}
        file.write(json.dumps(line | {"node": os.environ.get("SLURMD_NODENAME", "")} | fields) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


def make_data():
    """What is iterated over, and what is kept in the state."""
    if args.face == "generator":
        shards = elastic_shard_generator(args.samples, args.batch_size, seed=1)
        return shards, shards
    if args.face == "sampler":
        sampler = ElasticShardSampler(Numbers(), args.batch_size, seed=1)
        return DataLoader(Numbers(), batch_sampler=sampler, num_workers=1), sampler
    workers = 1 if args.face == "processes" else 0
    data = ElasticDataset(Numbers(), args.batch_size, seed=1, num_workers=workers)
    return data, data


def numbers_of(batch):
    """Which samples it consists of."""
    if args.face == "generator":
        return [number for start, length in batch for number in range(start, start + length)]
    return batch.tolist()


def main():
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    batches, data = make_data()

    @hvd.elastic.run
    def train(state):
        rank, size = hvd.rank(), hvd.size()
        generation = hvd.broadcast_object(time.time(), name="generation")
        log("enter", rank=rank, size=size, step=state.step, generation=generation)
        while data.epoch < args.epochs and not told_to_stop():
            for batch in batches:
                samples = numbers_of(batch) if data.weight > 0 else []
                # Before the gradients are exchanged: what others have trained on stands in the log of all.
                step = state.step + 1
                log("took", epoch=data.epoch, step=step, samples=samples, generation=generation, rank=rank)
                optimizer.zero_grad()
                model(torch.tensor([[float(len(samples))]])).sum().backward()
                optimizer.step()
                time.sleep(args.batch_seconds)
                state.step = step
                if args.face == "sampler":
                    data.record_batch()
                try:
                    if step % args.commit_every == 0:
                        state.commit()
                    else:
                        state.check_host_updates()
                finally:
                    log("commit", step=step, rank=rank, size=size)
                if told_to_stop():
                    break
            if args.face == "sampler" and data.samples_left == 0:
                data.set_epoch(data.epoch + 1)

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, data=data, step=0))
    log("done", steps=0, rank=hvd.rank(), size=hvd.size(), parameters="")


if __name__ == "__main__":
    main()
