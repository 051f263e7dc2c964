"""The same training as train_ddp.py, as an elastic Horovod program."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from flexo_bench.elastic_ddp.parts import BATCH_SIZE, MODEL, Noise, StepLog, as_it_is, parse_arguments
from flexo_bench.runtime.workload import make_model


def main() -> None:
    """Train until killed."""
    args = parse_arguments()
    torch.set_num_threads(1)
    hvd.init()
    log = StepLog(args.log_dir)
    data, model = Noise(args.samples), make_model(MODEL)
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(data)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, collate_fn=as_it_is)

    def train_epoch(state: hvd.elastic.TorchState) -> None:
        for number, (images, labels) in enumerate(loader):
            log.wait_at_gate(state.step)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            sampler.record_batch(number, BATCH_SIZE)
            state.step += 1
            log.step(state.step, hvd.rank(), hvd.size())
            state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: hvd.elastic.TorchState) -> None:
        while True:
            train_epoch(state)

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0))


if __name__ == "__main__":
    main()
