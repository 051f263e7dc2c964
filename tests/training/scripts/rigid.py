"""Plain Horovod as of 2018: no elastic loop, broadcasts before training, metrics averaged after it."""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--batches", type=int, default=20)
parser.add_argument("--fail-on-rank", type=int, default=-1, help="this rank ends with status 3 halfway")
args, _ = parser.parse_known_args()

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for batch in range(args.batches):
    if hvd.rank() == args.fail_on_rank and batch == args.batches // 2:
        raise SystemExit(3)
    data = torch.randn(8, 8, generator=torch.Generator().manual_seed(100 * batch + hvd.rank()))
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
ranks = hvd.allgather(torch.tensor([hvd.rank()])).tolist()
hosts = hvd.allgather_object(os.environ["SLURMD_NODENAME"])
parameters = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
line = {"event": "done", "time": time.time(), "rank": hvd.rank(), "size": hvd.size(),
        "ranks": ranks, "hosts": hosts,
        "local_rank": hvd.local_rank(), "local_size": hvd.local_size(), "cross_rank": hvd.cross_rank(),
        "horovod": hvd.__file__, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "argv": sys.argv[3:],
        "cross_size": hvd.cross_size(), "parameters": hashlib.sha256(parameters).hexdigest()}  # fmt: skip
(args.log_dir / f"{os.getpid()}.jsonl").write_text(json.dumps(line) + "\n")
