"""Runs in each worker of a script under test, before the script: it notes what the script trains with.

It knows nothing of how flexo deals samples out. It reads the rows that reach a DistributedDataParallel model,
the losses of which gradients are computed, and the steps that optimizers take.
"""

import contextlib
import hashlib
import json
import os
import runpy
import sys
import time
from pathlib import Path

GENERATIONS = Path(__file__).resolve().parents[2] / "training" / "scripts" / "generations.py"
own_world = runpy.run_path(str(GENERATIONS))["world"]
LOG, SEED = "OBSERVER_LOG", "OBSERVER_SEED"
"""A folder for the logs of all workers, and a number that is added to each seed of the script."""
PACE = "pace"
"""While this file is in the log's folder, each step takes as many seconds longer as it says."""


def main():
    if os.environ.get(LOG) and os.environ.get("RANK"):
        import torch

        observer = Observer(torch, Path(os.environ[LOG]))
        observer.watch()
        shift_seeds(torch, int(os.environ.get(SEED, 0)))


class Observer:
    def __init__(self, torch, folder):
        self.torch = torch
        self.pace = folder / PACE
        self.log = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self.given = []
        """Rows that the model has been given, and that are in no gradient yet."""
        self.rows, self.losses = [], []
        """What the present gradients were computed of."""

    def watch(self):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        forward = self.torch.nn.parallel.DistributedDataParallel.forward
        backward, zero_grad = self.torch.Tensor.backward, self.torch.optim.Optimizer.zero_grad

        def watched_forward(model, *inputs, **named):
            if model.training and self.torch.is_grad_enabled():
                self.given += digests(self.torch, [*inputs, *named.values()])
            return forward(model, *inputs, **named)

        def watched_backward(loss, *inputs, **named):
            if loss.numel() == 1:
                self.losses.append(loss.item())
            self.rows += self.given
            self.given = []
            return backward(loss, *inputs, **named)

        def watched_zero_grad(optimizer, *inputs, **named):
            self.rows, self.losses = [], []
            return zero_grad(optimizer, *inputs, **named)

        self.torch.nn.parallel.DistributedDataParallel.forward = watched_forward
        self.torch.Tensor.backward = watched_backward
        self.torch.optim.Optimizer.zero_grad = watched_zero_grad
        register_optimizer_step_post_hook(lambda *_: self.stepped())

    def stepped(self):
        size = self.torch.distributed.get_world_size() if self.torch.distributed.is_initialized() else 1
        rank = self.torch.distributed.get_rank() if size > 1 else 0
        place = {"world": world(), "rank": rank, "size": size, "pid": os.getpid()}
        noted = {"rows": self.rows, "losses": self.losses}
        self.log.write(json.dumps({"event": "step", "time": time.time(), **place, **noted}) + "\n")
        self.rows, self.losses = [], []
        if place["world"]:
            self.wait()

    def wait(self):
        with contextlib.suppress(FileNotFoundError, ValueError):  # it is gone, or is being written
            time.sleep(float(self.pace.read_text()))


def world():
    """The generation; 0 in practice and in steps without effect; 1 without flexo."""
    return own_world() if "horovod_elastic.worker.session" in sys.modules else 1


def digests(torch, inputs):
    """A digest for each row of the first tensor that has rows, without what fills it up."""
    for each in inputs:
        if isinstance(each, dict):
            return digests(torch, each.values())
        if isinstance(each, (list, tuple)):
            if found := digests(torch, each):
                return found
        elif torch.is_tensor(each) and each.dim() >= 2:
            return [digest(torch, row) for row in each.detach().cpu()]
    return []


def digest(torch, row):
    values = row.reshape(-1)
    if not values.is_floating_point():  # words, filled up with zeros to the longest of the batch
        words = values.nonzero()
        values = values[int(words[0]) : int(words[-1]) + 1] if len(words) else values[:0]
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:12]


def shift_seeds(torch, by):
    if not by:
        return
    import random

    import numpy

    for module, name in ((torch, "manual_seed"), (random, "seed"), (numpy.random, "seed")):
        original = getattr(module, name)

        def shifted(seed=None, *more, original=original):
            return original(seed + by if isinstance(seed, int) else seed, *more)

        setattr(module, name, shifted)


main()
