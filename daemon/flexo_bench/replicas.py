"""The cost of FLEXO_CHECK_REPLICAS: the CPU time of a check beside that of a training step.

    python -m flexo_bench.replicas [--device cuda] [--repeats 20]

The first measurement is in one process alone. The second has two workers on Horovod's layer and the torch
core, with exchange and all threads; it compares a check every 10 steps with none. Compute uses one thread, so
that no other thread spins meanwhile. `share_percent` is what a check every 1000 steps adds to a step's CPU
time.
"""

from __future__ import annotations

import argparse
import time
import types
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from flexo_bench.ranks import Cluster, each
from horovod_elastic.core.choice import TORCH
from horovod_elastic.worker import replicas


class Bottleneck(nn.Module):  # type: ignore[misc]
    """ResNet's bottleneck block."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        short = nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
        self.short = nn.Sequential(*short) if stride > 1 or inside != 4 * width else nn.Identity()

    def forward(self, x: Any) -> Any:
        """The block's output, of the input's width and height divided by the stride."""
        return torch.relu(self.main(x) + self.short(x))


def resnet50() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """ResNet-50, with 25,557,032 parameters in 161 tensors, and a mini-batch of 8 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            width = 64 << stage
            layers.append(Bottleneck(inside, width, 2 if stage and not block else 1))
            inside = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000)]
    return nn.Sequential(*layers), torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))


def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model of the digits example's size (four tensors), and a mini-batch of 32 images of 64 pixels."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.randn(32, 64), torch.randint(10, (32,))


def measure(make: Callable[[], Any], kind: str, device: str, repeats: int) -> dict[str, float]:
    """Figures by name: size of the state, CPU milliseconds of a step and of a check, the check's share."""
    model, inputs, targets = make()
    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
    optimizer = getattr(torch.optim, kind)(
        model.parameters(), lr=1e-3, **({"momentum": 0.9} if kind == "SGD" else {})
    )
    handlers = {
        name: types.SimpleNamespace(value=each) for name, each in (("model", model), ("optimizer", optimizer))
    }
    state = types.SimpleNamespace(_handlers=handlers)
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        if device != "cpu":
            torch.cuda.current_stream().synchronize()

    def check() -> None:
        numbers = replicas.digests([value for _, value in replicas.replicated(state)])()
        replicas._row(0, numbers)

    tensors = parameters = 0
    for _ in range(3):
        step()
        check()
    for _, value in replicas.replicated(state):
        tensors += hasattr(value, "numel")
        parameters += value.numel() if hasattr(value, "numel") else 0
    steps, checks = (median(_cpu_s(each) for _ in range(repeats)) for each in (step, check))
    return {
        "tensors": tensors,
        "million_elements": parameters / 1e6,
        "step_ms": 1e3 * steps,
        "check_ms": 1e3 * checks,
        "share_percent": 100 * checks / steps / replicas.DEFAULT_EVERY,
    }


STEPS, OFTEN = 1000, 10


def train(me: Any, kind: str, every: int) -> float:
    """CPU seconds of one worker for STEPS steps of the small model."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, inputs, targets = small()
    options = {"momentum": 0.9} if kind == "SGD" else {}
    plain = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, **options)
    optimizer = me.hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    values = {"model": model, "optimizer": optimizer}
    handlers = {name: types.SimpleNamespace(value=each) for name, each in values.items()}
    state = types.SimpleNamespace(_handlers=handlers)
    session: Any = types.SimpleNamespace(rank=me.hvd.rank(), size=me.hvd.size(), boundary=0)
    checks, loss_of = replicas.Checks(every), nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        session.boundary += 1
        checks.at_boundary(session, state, last=False)

    for _ in range(20):
        step()

    def steps() -> None:
        for _ in range(STEPS):
            step()

    seconds = _cpu_s(steps)
    checks.at_boundary(session, state, last=True)
    return seconds


def measure_two(kind: str, repeats: int) -> dict[str, float]:
    """Times and share as in `measure`, for the small model and two workers; medians of alternating runs."""
    cluster = Cluster(TORCH)
    try:
        cluster.form(cluster.start(2))
        runs: dict[int, list[float]] = {0: [], OFTEN: []}
        for _ in range(repeats):
            for every, seconds in runs.items():
                seconds.append(max(each(cluster.all, train, kind, every)))
    finally:
        cluster.close()
    without, with_checks = median(runs[0]) / STEPS, median(runs[OFTEN]) / STEPS
    check = (with_checks - without) * OFTEN
    share = 100 * check / without / replicas.DEFAULT_EVERY
    return {"step_ms": 1e3 * without, "check_ms": 1e3 * check, "share_percent": share}


def _cpu_s(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began


def main() -> None:
    """Print the cost of comparing replicas."""
    parser = argparse.ArgumentParser(prog="python -m flexo_bench.replicas", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, make in (("ResNet-50", resnet50), ("small", small)):
        for kind in ("SGD", "Adam"):
            _print(name, kind, measure(make, kind, options.device, options.repeats))
    for kind in ("SGD", "Adam"):
        _print("small, 2 workers", kind, measure_two(kind, options.repeats))


def _print(name: str, kind: str, found: dict[str, float]) -> None:
    figures = "  ".join(f"{key} {value:.4g}" for key, value in found.items())
    print(f"{name:16} {kind:5} {figures}", flush=True)


if __name__ == "__main__":
    main()
