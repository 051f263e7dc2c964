"""The training program of every rival: an ordinary elastic Horovod program, which logs each mini-batch.

The program does not depend on its launcher. The computation is real unless --step-seconds is given. Then a
step only sleeps that long, so that every worker has a GPU of its own on a machine with few cores.
"""

# ruff: noqa: E402  (how long the imports take is part of what is measured)
from __future__ import annotations

import time

STARTED_AT = time.time()

import argparse
from collections.abc import Iterator
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn import functional

from flexo_bench.runtime.workload import BATCH, HIDDEN, Data, Log, make_model, process_started_at

IMPORTED_AT = time.time()


def parse_arguments() -> argparse.Namespace:
    """Parse the options. The benchmark gives every rival the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--model", choices=list(HIDDEN), default="toy")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="sleep instead of computing")
    parser.add_argument("--checkpoint", type=Path, help="to go on from, and to leave when told to stop")
    return parser.parse_args()


def batches(sampler: Iterator[int], size: int) -> Iterator[list[int]]:
    """The sampler's indices in full batches; an incomplete last batch is left out."""
    batch: list[int] = []
    for index in sampler:
        batch.append(index)
        if len(batch) == size:
            yield batch
            batch = []


class Trainer:
    """The model, its data, and the training of an epoch."""

    def __init__(self, args: argparse.Namespace, log: Log) -> None:
        self._args, self._log = args, log
        self._data, self._batch = Data(), BATCH[args.model]
        self._model = make_model(args.model)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        named = self._model.named_parameters()
        self._optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
        sampler = hvd.elastic.ElasticSampler(self._data)
        parts = {"model": self._model, "optimizer": self._optimizer, "sampler": sampler}
        self.state = hvd.elastic.TorchState(**parts, epoch=0, step=0)

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(each.numel() for each in self._model.parameters())

    def train_epoch(self, state: hvd.elastic.TorchState) -> bool:
        """Train the rest of this epoch; False if told to stop before its end."""
        for number, indices in enumerate(batches(iter(state.sampler), self._batch)):
            self._train_batch(indices)
            state.sampler.record_batch(number, self._batch)
            state.step += 1
            place = {"rank": hvd.rank(), "size": hvd.size()}
            self._log.write("batch", step=state.step, samples=self._batch, **place)
            if self._told_to_stop():
                return False
            state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        return True

    def _train_batch(self, indices: list[int]) -> None:
        images, labels = self._data.batch(indices)
        self._optimizer.zero_grad()
        if self._args.step_seconds:
            time.sleep(self._args.step_seconds)
            images, labels = images[:1], labels[:1]
        functional.cross_entropy(self._model(images), labels).backward()
        self._optimizer.step()

    def _told_to_stop(self) -> bool:
        """True for all workers or for none: some workers may see the file `stop` earlier than others."""
        if self._args.checkpoint is None:
            return False
        seen = torch.tensor([float((self._args.log_dir / "stop").exists())])
        return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


def main() -> None:
    """Train until stopped."""
    args = parse_arguments()
    log = Log(args.log_dir)
    torch.set_num_threads(1)
    hvd.init()
    for event, at in (("started", process_started_at()), ("began", STARTED_AT), ("imported", IMPORTED_AT)):
        log.write(event, at)
    log.write("initialised")
    trainer = Trainer(args, log)
    if args.checkpoint and args.checkpoint.exists() and hvd.rank() == 0:  # the loop gives it to the others
        load(trainer.state, args.checkpoint)
    log.write("built", parameters=trainer.parameters)

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: hvd.elastic.TorchState) -> None:
        """Train. Horovod calls this again after every change of workers."""
        log.write("enter", rank=hvd.rank(), size=hvd.size(), step=state.step)
        while trainer.train_epoch(state):
            pass

    train(trainer.state)
    if hvd.rank() == 0:
        save(trainer.state, args.checkpoint)
    log.write("done")


def save(state: hvd.elastic.TorchState, path: Path) -> None:
    """Save all that training needs to go on."""
    parts = {name: getattr(state, name).state_dict() for name in ("model", "optimizer", "sampler")}
    torch.save({**parts, "epoch": state.epoch, "step": state.step}, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def load(state: hvd.elastic.TorchState, path: Path) -> None:
    """Load the state that `save` wrote."""
    saved = torch.load(path)
    for name in ("model", "optimizer", "sampler"):
        getattr(state, name).load_state_dict(saved[name])
    state.epoch, state.step = saved["epoch"], saved["step"]
    state.save()


if __name__ == "__main__":
    main()
