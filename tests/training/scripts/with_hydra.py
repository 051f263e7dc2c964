"""A script with @hydra.main, which logs on rank 0 only. Nothing of flexo is called."""

import logging
import time
from dataclasses import dataclass, field

import hydra
import torch
import torch.distributed as dist
from hydra.core.config_store import ConfigStore
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger(__name__)


@dataclass
class Optimizer:
    lr: float = 0.001


@dataclass
class Config:
    optimizer: Optimizer = field(default_factory=Optimizer)


ConfigStore.instance().store("config", Config)


@hydra.main(version_base=None, config_path=None, config_name="config")
def main(config):
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(400, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.optimizer.lr)
    for epoch in range(100_000):
        sampler.set_epoch(epoch)
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            time.sleep(0.1)
        if dist.get_rank() == 0:
            log.info("epoch %d with %d workers at %s", epoch, dist.get_world_size(), config.optimizer.lr)


if __name__ == "__main__":
    main()
