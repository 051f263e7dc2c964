"""Trainings of torch.distributed that declare their state, by flexo.elastic(...), in several ways."""

import argparse
import itertools
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from generations import world
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import flexo

SAMPLES, BATCH = 2400, 8
INPUTS = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
TARGETS = (INPUTS.sum(1) > 0).long()


class Log:
    def __init__(self, folder):
        self.folder = folder
        self.file = Path(folder, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    def tell(self, event, **facts):
        facts |= {"event": event, "time": time.time(), "rank": dist.get_rank(), "size": dist.get_world_size()}
        facts |= {"pid": os.getpid(), "world": world()}
        self.file.write(json.dumps(facts) + "\n")

    def stopped(self):
        """Whether the test has asked for the end; all ranks hear the same."""
        asked = torch.tensor(float(Path(self.folder, "stop").exists()))
        dist.all_reduce(asked)
        return bool(asked)


class Memory:
    """Earlier samples, more than flexo looks through. Nothing but state_dict() leads to them."""

    __slots__ = ("kept",)

    def __init__(self):
        self.kept = torch.zeros(20_000, dtype=torch.int64)

    def remember(self, number):
        self.kept = torch.roll(self.kept, 1)
        self.kept[0] = number

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"].clone()


class Stream(IterableDataset):
    """All samples in one order; `used` is how many of them the workers have used together."""

    def __init__(self):
        self.used = 0

    def __iter__(self):
        while self.used + BATCH * dist.get_world_size() <= SAMPLES:
            first = self.used + BATCH * dist.get_rank()
            self.used += BATCH * dist.get_world_size()
            yield torch.arange(first, first + BATCH)
        self.used = 0

    def state_dict(self):
        return {"used": self.used}

    def load_state_dict(self, state):
        self.used = state["used"]


class Shuffled:
    """A batch sampler of the script's own, over a list."""

    def __init__(self):
        self.used = 0

    def __iter__(self):
        together = BATCH * dist.get_world_size()
        while self.used + together <= SAMPLES:
            first = self.used + dist.get_rank()
            self.used += together
            yield range(first, first + together, dist.get_world_size())
        self.used = 0

    def state_dict(self):
        return {"used": self.used}

    def load_state_dict(self, state):
        self.used = state["used"]


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))


def digest(model):
    return float(sum(each.detach().double().abs().sum() for each in model.state_dict().values()))


def average_gradients(model, weight):
    for each in model.parameters():
        each.grad.mul_(weight)
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()


def own_average(options, log):
    """No DistributedDataParallel and no DataLoader: gradients are averaged parameter by parameter."""
    model = net()
    for each in model.parameters():
        dist.broadcast(each.data, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    memory, numbers, generator = Memory(), random.Random(3), torch.Generator().manual_seed(5)
    job = flexo.elastic(
        model=model,
        optimizer=optimizer,
        memory=memory,
        numbers=(numbers.getstate, numbers.setstate),
        generator=(generator.get_state, generator.set_state),
        position=0,
        history=[],
    )
    for step in job.steps(options.steps):
        first = job.position + BATCH * dist.get_rank()
        chosen = torch.arange(first, first + BATCH) % SAMPLES
        noise = torch.randn(BATCH, 16, generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(INPUTS[chosen] + 0.1 * noise), TARGETS[chosen]).backward()
        average_gradients(model, job.weight)
        for each in model.buffers():
            if each.is_floating_point():
                dist.all_reduce(each)
                each /= dist.get_world_size()
        optimizer.step()
        job.position += BATCH * dist.get_world_size()
        job.history = [*job.history[-3:], step]
        memory.remember(step)
        drawn = numbers.random(), float(torch.rand((), generator=generator))
        state = [digest(model), job.position, job.history, memory.kept[:9].tolist(), drawn]
        log.tell("step", epoch=0, steps=step, state=[repr(state)], numbers=[first + n for n in range(BATCH)])
        if step % 10 == 9 and log.stopped():
            break
        time.sleep(options.sleep)


def stream(options, log):
    """An IterableDataset that says how many samples are used."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Stream()
    job = flexo.elastic(data=data, epoch=0)
    from_batches(options, log, job, model, optimizer, DataLoader(data, batch_size=None))


def own_sampler(options, log):
    """A batch sampler of the script's own."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = Shuffled()
    job = flexo.elastic(sampler=sampler, epoch=0)
    numbers = [torch.tensor(number) for number in range(SAMPLES)]
    from_batches(options, log, job, model, optimizer, DataLoader(numbers, batch_sampler=sampler))


def from_batches(options, log, job, model, optimizer, loader):
    steps = 0
    while job.epoch < options.steps and not log.stopped():
        for chosen in loader:
            optimizer.zero_grad()
            cross_entropy(model(INPUTS[chosen]), TARGETS[chosen]).backward()
            optimizer.step()
            steps += 1
            state = [float(sum(each.detach().double().abs().sum() for each in model.parameters())), job.epoch]
            log.tell("step", epoch=job.epoch, steps=steps, state=state, numbers=chosen.tolist())
            time.sleep(options.sleep)
        job.epoch += 1


def counted_batches(options, log):
    """No DistributedDataParallel, but a DistributedSampler; counts steps over all epochs."""
    model = net()
    for each in model.parameters():
        dist.broadcast(each.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = [torch.tensor(number) for number in range(SAMPLES)]
    sampler = DistributedSampler(numbers)
    loader = DataLoader(numbers, batch_size=BATCH, sampler=sampler)
    job = flexo.elastic(model=model)
    batches = endless(loader, sampler)
    for step in job.steps(options.steps):
        chosen = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(INPUTS[chosen]), TARGETS[chosen]).backward()
        average_gradients(model, job.weight)
        optimizer.step()
        state = [float(sum(each.detach().double().abs().sum() for each in model.parameters()))]
        log.tell("step", epoch=sampler.epoch, steps=step, state=state, numbers=chosen.tolist())
        if step % 10 == 9 and log.stopped():
            break
        time.sleep(options.sleep)


def endless(loader, sampler):
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def undeclared_model(options, log):
    """Declares some state, but not the model."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = flexo.elastic(position=0)
    for step in job.steps(8):
        cross_entropy(model(INPUTS[:BATCH]), TARGETS[:BATCH]).backward()
        average_gradients(model, job.weight)
        optimizer.step()
        log.tell("step", epoch=0, steps=step, state=[digest(model)], numbers=[])


def worker_processes(options, log):
    """Declares a dataset that worker processes of its DataLoader read."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Stream()
    flexo.elastic(data=data)
    for step, chosen in zip(range(8), DataLoader(data, batch_size=None, num_workers=1), strict=False):
        cross_entropy(model(INPUTS[chosen]), TARGETS[chosen]).backward()
        optimizer.step()
        log.tell("step", epoch=0, steps=step, state=[digest(model)], numbers=[])


def too_late(options, log):
    """Declares its state after the first step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    flexo.elastic(model=model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--way", required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--sleep", type=float, default=0.06)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = Log(options.log_dir)
    globals()[options.way](options, log)
    log.tell("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
