"""Trains one of two models on handwritten digits, as an elastic Horovod program whose batch may change.

It trains for --seconds with the batches that its runtime asks for. With --measure it trains a number of steps
with each of these batches in turn, again and again, and logs the seconds of each step. In the same rounds,
rank 0 takes steps with the batches of --alone, while the others wait.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn import functional

from flexo_bench.jsa.forecasts import MODELS
from flexo_bench.jsa.models import load, make_model
from flexo_bench.runtime.workload import Log, process_started_at
from horovod_elastic.batches import share
from horovod_elastic.training import AggregateBatch, notify_end_of_minibatch

_COLD_STEPS, _MEASURED_STEPS = 4, 12
_LEAST_ROUNDS = 8
_COMMIT_EVERY = 10


def main() -> None:
    """Train until the time is over, or all batches are measured."""
    args = _parse()
    log = Log(args.log_dir)
    log.write("started", process_started_at())
    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    model = make_model(args.model)
    named = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=named)
    trainer = Trainer(model, optimizer)

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        """Train. Horovod calls this again after every change of workers."""
        if args.measure:
            alone = Alone(args.model)
            for turn in rounds(args.seconds):
                for batch in args.measure:
                    steps_s = trainer.measure(state, batch)
                    log.write("measured", batch=batch, turn=turn, rank=hvd.rank(), steps_s=steps_s)
                for batch in args.alone if hvd.rank() == 0 else ():
                    log.write("alone", batch=batch, turn=turn, steps_s=alone.steps_s(batch))
        else:
            trainer.train(state, args.least, args.largest, args.seconds)

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, steps=0))
    log.write("done", rank=hvd.rank(), steps=trainer.steps)


def rounds(seconds: float) -> Iterator[int]:
    """The numbers of rounds for `seconds`, by the clock of rank 0; at least 8."""
    ends, number = time.monotonic() + seconds, 0
    while number < _LEAST_ROUNDS or hvd.broadcast_object(time.monotonic() < ends):
        yield number
        number += 1


class Trainer:
    """A model, its data and its optimizer."""

    def __init__(self, model: torch.nn.Module, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer
        self._images, self._labels = load()
        self._order: Iterator[int] = iter(())
        self.steps = 0
        """The steps taken."""

    def train(self, state: Any, least: int, largest: int, seconds: float) -> None:
        """Train with `least` samples a step, or as the runtime says. `largest` samples fit one pass."""
        batch = AggregateBatch(least, largest=largest, optimizer=self._optimizer)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._step(state, batch.share.samples, batch.parts)

    def measure(self, state: Any, batch: int) -> list[float]:
        """The seconds of some steps of `batch` samples of all workers, without commits."""
        mine = share(batch, hvd.size(), hvd.rank()).samples

        def whole(*tensors: torch.Tensor) -> Iterator[tuple[Any, ...]]:
            yield (*tensors, mine * hvd.size() / batch)

        seconds = [self._step(state, mine, whole) for _ in range(_COLD_STEPS + _MEASURED_STEPS)]
        return seconds[_COLD_STEPS:]

    def _step(self, state: Any, samples: int, parts: Callable[..., Iterator[tuple[Any, ...]]]) -> float:
        began = time.monotonic()
        chosen = torch.randint(len(self._labels), (samples,))
        self._optimizer.zero_grad()
        for images, labels, weight in parts(self._images[chosen], self._labels[chosen]):
            (functional.cross_entropy(self._model(images), labels) * weight).backward()
        self._optimizer.step()
        self.steps += 1
        seconds = time.monotonic() - began
        notify_end_of_minibatch(samples)
        if self.steps % _COMMIT_EVERY == 0:
            state.commit()
        return seconds


class Alone:
    """The same model, which rank 0 trains without the others, with the same optimizer as one worker would."""

    def __init__(self, name: str) -> None:
        """All ranks make one, as it is about a process set."""
        self._model = make_model(name)
        self._optimizer: Any = torch.optim.SGD(self._model.parameters(), lr=0.01)
        group = hvd.add_process_set([0]) if hvd.size() > 1 else hvd.global_process_set
        if hvd.rank() == 0:
            named = [(f"alone.{name}", each) for name, each in self._model.named_parameters()]
            self._optimizer = hvd.DistributedOptimizer(
                self._optimizer, named_parameters=named, process_set=group
            )
        self._images, self._labels = load()

    def steps_s(self, samples: int) -> list[float]:
        """The seconds of some steps."""
        return [self._step(samples) for _ in range(_COLD_STEPS + _MEASURED_STEPS)][_COLD_STEPS:]

    def _step(self, samples: int) -> float:
        began = time.monotonic()
        chosen = torch.randint(len(self._labels), (samples,))
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._model(self._images[chosen]), self._labels[chosen])
        loss.backward()
        self._optimizer.step()
        return time.monotonic() - began


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train, or to measure")
    parser.add_argument("--least", type=int, default=32, help="samples of the smallest batch")
    parser.add_argument("--largest", type=int, default=128, help="samples that fit one pass")
    parser.add_argument("--measure", type=_numbers, default=(), help="batches to measure instead, N,N...")
    parser.add_argument("--alone", type=_numbers, default=(), help="beside them, batches of rank 0 alone")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
