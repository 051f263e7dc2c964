"""The training jobs of this benchmark, as one script: kinds of models, and how an opportunistic job is
held.

The script logs one line per step: when it ended, and the CPU seconds of the process so far. `--hold`:
`none` runs as fast as it can, `duty` sleeps three times as long as it worked, at each module (AntMan's
release, set to a quarter), `layer` leaves everything to flexo's layer.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

DUTY = 0.25
MOST_WORK_S = 0.1


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model. `wait_s`: how long it waits for data after each step. `width`, `layers`, `batch`:
    sizes.

    `on_gpu`: factors for width and batch there.
    """

    family: str
    width: int
    layers: int
    batch: int
    wait_s: float
    on_gpu: tuple[int, int] = (8, 16)


KINDS = {
    "resnet": Kind("convolution", 16, 6, 48, 0.1),
    "transformer": Kind("transformer", 64, 2, 128, 0.1),
    "perceptron": Kind("perceptron", 256, 6, 32, 0.0),
    "convolution": Kind("convolution", 8, 4, 8, 0.0),
}
"""Kinds with a wait are guarantee jobs: they leave gaps, as jobs do that wait for their data."""


def model_of(kind: Kind, factors: tuple[int, int]) -> tuple[nn.Module, Any]:
    """The model and one mini-batch."""
    width, batch = kind.width * factors[0], kind.batch * factors[1]
    if kind.family == "convolution":
        layers = [nn.Conv2d(width if each else 3, width, 3, padding=1) for each in range(kind.layers)]
        body = [part for layer in layers for part in (layer, nn.BatchNorm2d(width), nn.ReLU())]
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(batch, 3, 32, 32)
    if kind.family == "transformer":
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        return nn.TransformerEncoder(layer, kind.layers, enable_nested_tensor=False), torch.randn(
            batch, 32, width
        )
    body = [part for _ in range(kind.layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*body), torch.randn(batch, width)


def hold_to_duty(device: str) -> None:
    """Sleep in proportion to the work since the last module (backward passes count, too).

    A process that is stopped, or waits for a core, does not work: on the CPU its CPU time counts. On a
    GPU, at most MOST_WORK_S counts for one module.
    """
    clock = time.thread_time if device == "cpu" else time.perf_counter
    mark = [clock()]

    def breathe(*_: Any) -> None:
        time.sleep(min(clock() - mark[0], MOST_WORK_S) * (1 / DUTY - 1))
        mark[0] = clock()

    def after(module: Any, arguments: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor) and result.grad_fn is not None:
            result.register_hook(breathe)

    modules.register_module_forward_pre_hook(breathe)
    modules.register_module_forward_hook(after)


def main() -> None:
    """Train until somebody ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("log")
    parser.add_argument("--hold", choices=("none", "duty", "layer"), default="none")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = KINDS[options.kind]
    model, inputs = model_of(kind, kind.on_gpu if options.device == "cuda" else (1, 1))
    model, inputs = model.to(options.device), inputs.to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    if options.hold == "duty":
        hold_to_duty(options.device)
    with open(options.log, "a", buffering=1) as log:  # noqa: PTH123 - one handle for the whole run
        while True:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            if options.device == "cuda":
                loss.item()
            log.write(f"{time.monotonic():.6f} {time.process_time():.6f}\n")
            if kind.wait_s:
                time.sleep(kind.wait_s)


if __name__ == "__main__":
    main()
