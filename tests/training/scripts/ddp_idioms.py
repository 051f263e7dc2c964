"""Trainings of torch.distributed in the ways in which people write them. Nothing of flexo is called."""

import argparse
import contextlib
import itertools
import json
import math
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from generations import world
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, TensorDataset
from tqdm import tqdm


class Log:
    def __init__(self, folder):
        self.file = Path(folder, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    def tell(self, event, **facts):
        facts |= {"event": event, "time": time.time(), "rank": dist.get_rank(), "size": dist.get_world_size()}
        facts |= {"pid": os.getpid(), "world": world()}
        self.file.write(json.dumps(facts) + "\n")


class Average:
    """An average of the parameters that the script keeps itself."""

    def __init__(self, model):
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
        self.updates = 0

    def update(self, model):
        self.updates += 1
        for name, each in model.named_parameters():
            self.shadow[name].mul_(0.9).add_(each.detach(), alpha=0.1)

    def digest(self):
        return float(sum(each.double().abs().sum() for each in self.shadow.values()))


class Unused(nn.Module):
    """Each pass uses one of two halves."""

    def __init__(self):
        super().__init__()
        self.one, self.other = net(), net()
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return self.one(inputs) if self.calls % 3 else self.other(inputs)


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))


def points(samples=2000):
    inputs = torch.randn(samples, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long(), torch.arange(samples))


def stopped(options):
    """Whether the test has asked for the end; all ranks hear the same."""
    asked = torch.tensor(float(Path(options.log_dir, "stop").exists()))
    dist.all_reduce(asked)
    return bool(asked)


def count_workers(step, log):
    """A collective of the script's own, which tells whether all workers are at the same step."""
    workers = torch.ones(1)
    dist.all_reduce(workers)
    log.tell("check", step=step, workers=float(workers))


def digest(*models):
    return float(sum(each.detach().double().abs().sum() for model in models for each in model.parameters()))


def divided(batch, **how):
    data = points()
    sampler = DistributedSampler(data)
    return sampler, DataLoader(data, batch_size=batch, sampler=sampler, **how)


def accumulate(options, log):
    """Gradients of four batches, without exchange in the first three; clipped."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler, loader = divided(8)
    steps = 0
    for epoch in range(options.epochs):
        if stopped(options):
            break
        sampler.set_epoch(epoch)
        used = []
        for number, (inputs, targets, samples) in enumerate(loader):
            used += samples.tolist()
            last = (number + 1) % 4 == 0 or number + 1 == len(loader)
            with contextlib.nullcontext() if last else model.no_sync():
                (cross_entropy(model(inputs), targets) / 4).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                log.tell("step", epoch=epoch, steps=steps, state=[digest(model)], numbers=used)
                used = []
            time.sleep(options.sleep / 4)


def mixed_precision(options, log):
    """Automatic mixed precision with a gradient scaler and a schedule of a fixed length.

    Every seventh batch overflows: the scaler leaves the optimizer's step out. So its scale goes up and down.
    """
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=options.epochs * 64)
    sampler, loader = divided(32)
    steps = 0
    for epoch in range(options.epochs):
        if stopped(options):
            break
        sampler.set_epoch(epoch)
        for inputs, targets, samples in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(inputs).float(), targets)
            overflows = steps % 7 == 6
            scaler.scale(loss * math.inf if overflows else loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            steps += 1
            state = [digest(model), schedule.get_last_lr()[0], scaler.get_scale()]
            log.tell("step", epoch=epoch, steps=steps, state=state, numbers=samples.tolist())
            time.sleep(options.sleep)


def two_models(options, log):
    """Two models and two optimizers that take turns; one model has a group of its own."""
    everybody = dist.new_group(list(range(dist.get_world_size())))
    generator = DistributedDataParallel(nn.Linear(4, 16))
    critic = DistributedDataParallel(nn.Linear(16, 1), process_group=everybody)
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    judge = nn.BCEWithLogitsLoss()
    sampler, loader = divided(32)
    steps = 0
    for epoch in range(options.epochs):
        if stopped(options):
            break
        sampler.set_epoch(epoch)
        for inputs, _, samples in loader:
            true, false = torch.ones(len(inputs), 1), torch.zeros(len(inputs), 1)
            made = generator(torch.randn(len(inputs), 4))
            of_critic.zero_grad()
            (judge(critic(inputs), true) + judge(critic(made.detach()), false)).backward()
            of_critic.step()
            of_generator.zero_grad()
            judge(critic(made), true).backward()
            of_generator.step()
            steps += 1
            state = [digest(generator, critic)]
            log.tell("step", epoch=epoch, steps=steps, state=state, numbers=samples.tolist())
            time.sleep(options.sleep)


def validation_first(options, log):
    """Validates with collectives before training and at every tenth step; keeps two averages of the model."""
    first = dist.new_group(timeout=timedelta(days=1))
    first.monitored_barrier()
    dist.destroy_process_group(first)
    for_metrics = dist.new_group(backend="gloo")
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average, averaged = Average(model.module), torch.optim.swa_utils.AveragedModel(model)
    sampler, loader = divided(32)
    held_out = points()
    check = DataLoader(held_out, batch_size=100, sampler=DistributedSampler(held_out, shuffle=False))

    def evaluate():
        model.eval()
        right = torch.zeros(2)
        with torch.no_grad():
            for inputs, targets, _ in check:
                hits = float((model(inputs).argmax(1) == targets).sum())
                right += torch.tensor([hits, float(len(targets))])
        dist.all_reduce(right, group=for_metrics)
        dist.broadcast(right, dist.get_world_size() - 1, group=for_metrics)
        model.train()
        dist.barrier()
        return float(right[0] / right[1])

    step, best = 0, evaluate()
    for epoch in range(options.epochs):
        if stopped(options):
            break
        sampler.set_epoch(epoch)
        total = 0.0
        for inputs, targets, samples in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            average.update(model.module)
            averaged.update_parameters(model)
            step += 1
            total += loss.item()
            state = [digest(model), digest(averaged), average.digest(), average.updates]
            log.tell("step", epoch=epoch, steps=step, state=state, numbers=samples.tolist())
            if step % 10 == 0:
                best = max(best, evaluate())
                log.tell("check", step=step, best=best)
            time.sleep(options.sleep)
        mean = torch.tensor(total / len(loader))
        dist.all_reduce(mean)


def endless(loader, sampler):
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def by_steps(options, log):
    """Counts steps and not epochs."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    sampler, loader = divided(32)
    batches = endless(loader, sampler)
    for step in range(options.epochs * 32):
        inputs, targets, samples = next(batches)
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        state = [digest(model)]
        log.tell("step", epoch=sampler.epoch, steps=step, state=state, numbers=samples.tolist())
        if step % 10 == 9:
            count_workers(step, log)
            if stopped(options):
                break
        time.sleep(options.sleep)


def by_iterator(options, log):
    """Counts steps in a progress bar, and begins the loader anew where its iterator is over."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler, loader = divided(32)
    batches = iter(loader)
    for step in tqdm(range(options.epochs * 32), disable=dist.get_rank() > 0):
        try:
            inputs, targets, samples = next(batches)
        except StopIteration:
            sampler.set_epoch(sampler.epoch + 1)
            batches = iter(loader)
            inputs, targets, samples = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        state = [digest(model)]
        log.tell("step", epoch=sampler.epoch, steps=step, state=state, numbers=samples.tolist())
        if step % 10 == 9:
            count_workers(step, log)
            if stopped(options):
                break
        time.sleep(options.sleep)


def cycled(options, log):
    """Counts steps over itertools.cycle, over batches that the script cuts itself."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = points()
    batches = BatchSampler(DistributedSampler(data), 32, drop_last=False)
    number, rounds = 0, itertools.cycle(DataLoader(data, batch_sampler=batches))
    while number < options.epochs * 32:
        inputs, targets, samples = next(rounds)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        log.tell("step", epoch=0, steps=number, state=[digest(model)], numbers=samples.tolist())
        number += 1
        if number % 10 == 0:
            count_workers(number, log)
            if stopped(options):
                break
        time.sleep(options.sleep)


def no_loader(options, log):
    """Draws its batches at random from an array, each rank with its own seed, one batch ahead.

    Every seventh step overflows, as in mixed_precision.
    """
    torch.manual_seed(7 + dist.get_rank())
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    all_inputs, all_targets, _ = points().tensors

    def draw():
        chosen = torch.randint(len(all_inputs), (32,))
        return all_inputs[chosen], all_targets[chosen]

    number, rate = 0, 0.01
    inputs, targets = draw()
    while True:
        rate = 0.01 * (1 - number / (options.epochs * 32 + 1))
        for group in optimizer.param_groups:
            group["lr"] = rate
        for part in range(2):
            model.require_backward_grad_sync = part == 1
            loss = cross_entropy(model(inputs), targets) / 2
            inputs, targets = draw()
            scaler.scale(loss * math.inf if number % 7 == 6 else loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        log.tell("step", epoch=0, steps=number, state=[digest(model), rate, scaler.get_scale()], numbers=[])
        if number % 10 == 0:
            count_workers(number, log)
            if stopped(options):
                break
        number += 1
        time.sleep(options.sleep)


def phases(options, log):
    """Trains the last layer, then all of the model, with another optimizer and loader.

    Divides a global batch by the number of ranks. In the first epoch, the rate has a schedule of its own.
    """
    layers, steps = net(), 0
    for phase, epochs in enumerate((2, options.epochs)):
        layers[0].requires_grad_(phase == 1)
        model = DistributedDataParallel(layers, static_graph=phase == 0)
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
        sampler, loader = divided(64 // dist.get_world_size())
        total = epochs * len(loader)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step, total=total: 1 - step / total)
        for epoch in range(epochs):
            if phase == 1 and stopped(options):
                break
            sampler.set_epoch(epoch)
            warm_up = torch.optim.lr_scheduler.LinearLR(optimizer) if (phase, epoch) == (0, 0) else None
            for inputs, targets, samples in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                (warm_up or schedule).step()
                steps += 1
                state = [digest(model), schedule.get_last_lr()[0]]
                log.tell("step", epoch=2 * phase + epoch, steps=steps, state=state, numbers=samples.tolist())
                time.sleep(options.sleep)


def gathers(options, log):
    """A loss over the outputs of all ranks, and a sampler of the script's own."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = points()
    sampler = EveryNth(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    steps = 0
    for epoch in range(options.epochs):
        if stopped(options):
            break
        sampler.epoch = epoch
        for inputs, targets, samples in loader:
            outputs = model(inputs)
            of_all = [torch.zeros_like(outputs) for _ in range(dist.get_world_size())]
            dist.all_gather(of_all, outputs.detach())
            of_all[dist.get_rank()] = outputs
            optimizer.zero_grad()
            (cross_entropy(outputs, targets) + torch.cat(of_all).mean() ** 2).backward()
            optimizer.step()
            steps += 1
            log.tell("step", epoch=epoch, steps=steps, state=[digest(model)], numbers=samples.tolist())
            time.sleep(options.sleep)


class EveryNth(Sampler):
    """Gives each rank every n-th sample of an order that is drawn anew for each epoch."""

    def __init__(self, data):
        self.samples, self.epoch = len(data), 0
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __len__(self):
        return len(range(self.rank, self.samples, self.world_size))

    def __iter__(self):
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist()[self.rank :: self.world_size])


def compiled(options, log):
    """torch.compile, and a last batch that is left out."""
    model = DistributedDataParallel(net())
    run = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler, loader = divided(32, drop_last=True)
    steps = 0
    for epoch in range(options.epochs):
        if stopped(options):
            break
        sampler.set_epoch(epoch)
        for inputs, targets, samples in loader:
            optimizer.zero_grad()
            cross_entropy(run(inputs), targets).backward()
            optimizer.step()
            steps += 1
            log.tell("step", epoch=epoch, steps=steps, state=[digest(model)], numbers=samples.tolist())
            time.sleep(options.sleep)


def unused(options, log):
    """A model whose passes do not use all parameters."""
    model = DistributedDataParallel(Unused(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler, loader = divided(32)
    steps = 0
    for epoch in range(options.epochs):
        if stopped(options):
            break
        sampler.set_epoch(epoch)
        for inputs, targets, samples in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            steps += 1
            log.tell("step", epoch=epoch, steps=steps, state=[digest(model)], numbers=samples.tolist())
            time.sleep(options.sleep)


def undivided(options, log):
    """Each rank goes through all data in an order of its own; dropout; a schedule that follows the loss."""
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 2))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.RMSprop(model.parameters())
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    loader = DataLoader(points(), batch_size=64, shuffle=True)
    steps = 0
    for epoch in range(options.epochs):
        if stopped(options):
            break
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            steps += 1
            log.tell("step", epoch=epoch, steps=steps, state=[digest(model)], numbers=[])
            time.sleep(options.sleep)
        value = loss.detach()
        dist.all_reduce(value)
        plateau.step(value / dist.get_world_size())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--idiom", required=True)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--sleep", type=float, default=0.06)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = Log(options.log_dir)
    globals()[options.idiom](options, log)
    log.tell("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
