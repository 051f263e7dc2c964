"""The program of the benchmark's elastic jobs: an ordinary elastic Horovod program whose work is known.

Work is counted in mini-batches of one worker: a step of k workers does k of them. A step sleeps, so that
every worker has a GPU of its own on a machine with few cores. The model is tiny, and its gradients are
averaged over all workers. The program does not depend on its launcher.
"""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch
from torch.nn import functional

from flexo_bench.fidelity.job_program import CLASSES, INPUTS, Log, parse_arguments


def main() -> None:
    """Train the given number of epochs."""
    args = parse_arguments()
    torch.set_num_threads(1)
    hvd.init()
    log = Log(args.log_dir)
    torch.manual_seed(0)
    model = torch.nn.Linear(INPUTS, CLASSES)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    images, labels = torch.randn(8, INPUTS), torch.arange(8) % CLASSES

    def step(state: hvd.elastic.TorchState) -> None:
        optimizer.zero_grad()
        time.sleep(args.step_seconds * (1 + args.slower * (hvd.size() - 1)))
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        done = state.done + hvd.size()
        state.epoch, state.done = state.epoch + done // args.batches, done % args.batches

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: hvd.elastic.TorchState) -> None:
        """Train. Horovod calls this again after every change of workers."""
        log.write("enter", hvd.rank(), hvd.size())
        while state.epoch < args.epochs:
            step(state)
            log.write("batch", hvd.rank(), hvd.size())
            state.commit()

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, done=0))


if __name__ == "__main__":
    main()
