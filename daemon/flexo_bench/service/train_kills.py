"""What is trained with Horovod while processes die: every step logs what has counted in it (kills_model.py).

ElasticDataset deals samples out as the leader has it. With --by-rank, a sample's rank follows from the step
alone, so that two runs of the same size are alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import horovod.torch as hvd
import torch

from flexo_bench.service.kills_model import EventLog, Model, Numbers, optimizer_of, options
from horovod_elastic.data import ElasticDataset

parser = options()
parser.add_argument("--commit-every", type=int, default=3)
parser.add_argument("--by-rank", action="store_true")
args = parser.parse_args()
SAMPLES: int = args.samples
BATCH: int = args.batch


class ByRank:
    """What ElasticDataset offers, for a job whose size never changes."""

    weight = 1.0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(SAMPLES // (BATCH * hvd.size())):
            first = (state.step * hvd.size() + hvd.rank()) * BATCH % SAMPLES
            yield torch.arange(first, first + BATCH)

    @property
    def epoch(self) -> int:
        """The present epoch."""
        size: int = hvd.size()
        return int(state.step) * BATCH * size // SAMPLES


torch.set_num_threads(1)
hvd.init()
torch.manual_seed(0)
log = EventLog(args.log_dir)
model = Model(SAMPLES, args.hidden)
optimizer = hvd.DistributedOptimizer(optimizer_of(model), named_parameters=model.named_parameters())


def learn(batch: torch.Tensor, weight: float) -> None:
    """One step. With weight 0, somebody else's samples are only repeated, and are not used."""
    time.sleep(args.step_seconds)
    optimizer.zero_grad()
    loss, used = model(batch)
    (loss * weight + used.sum() * (1.0 if weight > 0 else 0.0)).backward()
    optimizer.step()


def told_to_stop() -> bool:
    """All of them or none: some may see the file earlier than others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: hvd.elastic.TorchState) -> None:
    """Entered again after every change of workers."""
    place = {"rank": hvd.rank(), "size": hvd.size()}
    log.write("enter", step=state.step, **place)
    while state.step < args.steps:
        for batch in data:
            epoch = data.epoch
            log.write("begin", step=state.step + 1, epoch=epoch, **place)
            learn(batch, data.weight)
            state.step += 1
            facts = {"used": model.all_used(), "digest": model.digest()}
            log.write("step", step=state.step, epoch=epoch, **facts, **place)
            if state.step % args.commit_every:
                state.check_host_updates()
            else:
                state.commit()
            if state.step >= args.steps:
                return
        if told_to_stop():
            return


data = ByRank() if args.by_rank else ElasticDataset(Numbers(SAMPLES), BATCH, seed=1)
kept = {} if args.by_rank else {"data": data}
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, **kept)
train(state)
log.write("done", step=state.step)
