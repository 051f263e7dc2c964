"""A training with Accelerate in the style of its examples. It logs its samples and calls nothing of flexo."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from generations import world
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, samples):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(samples, 16, generator=generator)
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        return self.inputs[number], self.targets[number], number


class Counter:
    """Belongs to checkpoints, as a script's average of the model does."""

    def __init__(self):
        self.updates = 0

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--sleep", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--iterable", action="store_true")
    parser.add_argument("--report", default="none")
    options = parser.parse_args()

    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=options.accumulate,
        log_with=None if options.report == "none" else options.report.split(","),
        project_config=ProjectConfiguration(f"{options.log_dir}/board", automatic_checkpoint_naming=True),
    )
    if options.report != "none" and accelerator.is_main_process:
        accelerator.init_trackers("points")
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Points(options.samples)
    source = Stream(data) if options.iterable else data
    train = DataLoader(source, batch_size=32, shuffle=not options.iterable, num_workers=options.workers)
    check = DataLoader(data, batch_size=50)
    updates = -(-options.samples // (32 * accelerator.num_processes * options.accumulate)) * options.epochs
    total = updates * accelerator.num_processes
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / total))
    model, optimizer, train, check, scheduler = accelerator.prepare(model, optimizer, train, check, scheduler)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    log = Path(options.log_dir, f"{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115

    def tell(event, **facts):
        place = {"rank": accelerator.process_index, "size": accelerator.num_processes, "pid": os.getpid()}
        place["world"] = world()
        log.write(json.dumps({"event": event, "time": time.time(), **place, **facts}) + "\n")

    tell("began", steps=len(train), total=total)
    for epoch in range(options.epochs):
        model.train()
        waiting = []
        for inputs, targets, numbers in train:
            waiting += numbers.tolist()
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                digest = float(sum(each.detach().double().abs().sum() for each in model.parameters()))
                taken = int(optimizer.state_dict()["state"].get(0, {"step": 0})["step"])
                rate = scheduler.get_last_lr()[0]
                accelerator.log({"loss": loss.item()}, step=taken)
                counter.updates += 1
                about = {"epoch": epoch, "taken": taken, "counted": counter.updates}
                tell("step", digest=digest, rate=rate, numbers=waiting, **about)
                if counter.updates % 5 == 0:
                    accelerator.save_state()
                waiting = []
                time.sleep(0 if Path(options.log_dir, "stop").exists() else options.sleep)
        model.eval()
        right, seen = 0, []
        for inputs, targets, numbers in check:
            with torch.no_grad():
                answers = model(inputs).argmax(1)
            answers, targets, numbers = accelerator.gather_for_metrics((answers, targets, numbers))
            right += int((answers == targets).sum())
            seen += numbers.tolist()
        whole = sorted(seen) == list(range(options.samples))
        tell("epoch", epoch=epoch, accuracy=right / len(seen), whole=whole)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), f"{options.log_dir}/model.pt")
    tell("end", saved=accelerator.save_iteration)
    accelerator.end_training()


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return iter([self.data[number] for number in range(len(self.data))])


if __name__ == "__main__":
    main()
