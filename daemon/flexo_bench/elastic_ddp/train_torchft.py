"""The same training as train_ddp.py with torchft, as torchft's README has it.

This process is one replica group. SIGTERM tells it to leave: it ends after its step, in order. One thing is
repaired: see Repaired. (No postponed annotations here: DistributedDataParallel looks at those of the hook.)
"""

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DataLoader
from torchft import (
    DistributedDataParallel,
    DistributedSampler,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)

from flexo_bench.elastic_ddp.parts import BATCH_SIZE, MODEL, Noise, StepLog, as_it_is, parse_arguments
from flexo_bench.runtime.workload import make_model

GROUPS = 3


class Repaired(DistributedDataParallel):  # type: ignore[misc]
    """torchft's wrapper, whose workers outlive the loss of another one in the middle of an all-reduce.

    In torchft 0.2.0, `wait` notes the failure for the manager, which discards the step. But the wrapper's own
    hook then fails in `assert fut._fut`, and the workers that are left end, too.
    """

    @staticmethod
    def _comm_hook(state: Manager, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = state.allreduce(bucket.buffer())
        if work.wait() and (inner := getattr(work.get_future(), "_fut", None)) is not None:
            return inner
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future


def main() -> None:
    """Train until told to leave."""
    args = parse_arguments()
    torch.set_num_threads(1)
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    group = int(os.environ["REPLICA_GROUP_ID"])
    log = StepLog(args.log_dir)
    data = Noise(args.samples)
    sampler = DistributedSampler(data, group, GROUPS, group_rank=0, num_replicas=1)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, collate_fn=as_it_is)

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        replica_id=f"train_{group}",
    )
    model = Repaired(manager, make_model(MODEL))
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    while not told:
        for images, labels in loader:
            log.wait_at_gate(manager.current_step())
            done = manager.current_step()
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            rank = manager.participating_rank()
            if manager.current_step() != done and rank is not None:
                log.step(manager.current_step(), rank, manager.num_participants())
            if told:
                break
    manager.shutdown()


if __name__ == "__main__":
    main()
