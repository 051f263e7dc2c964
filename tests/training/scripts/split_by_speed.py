"""One epoch whose mini-batches are split by the speeds that the leader has said; prints what each rank took.

There is no leader to ask for samples, so the ranks divide the dataset among themselves.
"""

import json
import os
import sys

import horovod.torch as hvd
import torch
from torch.utils.data import TensorDataset

from flexo_protos.v1 import tasks_pb2, workers_pb2
from horovod_elastic.data import ElasticDataset
from horovod_elastic.training import AggregateBatch
from horovod_elastic.worker import session

how = json.loads(sys.argv[1])
torch.set_num_threads(1)
hvd.init()
os.environ |= {"FLEXO_WORKER_ID": f"w{hvd.rank()}", "FLEXO_WORKER_SECRET": "-", "FLEXO_AGENT": "nobody:1"}
speed = tasks_pb2.SetSpeed(speed=how["speeds"][hvd.rank()])
session.current()._hear(workers_pb2.ToWorker(task=tasks_pb2.Task(set_speed=speed)))

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
inputs, targets = torch.randn(how["samples"], 6), torch.randint(0, 3, (how["samples"],))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), named_parameters=model.named_parameters()
)
data = ElasticDataset(TensorDataset(inputs, targets, torch.arange(how["samples"])), batch_size=1, seed=1)
batch = AggregateBatch(how["batch"], largest=how["largest"], optimizer=optimizer, dataset=data)
took = []
for x_all, y_all, indices in data:
    took.append(indices.tolist() if data.weight else [])
    optimizer.zero_grad()
    for x, y, weight in batch.parts(x_all, y_all):
        (torch.nn.functional.cross_entropy(model(x), y) * weight).backward()
    optimizer.step()
weights = [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
print(json.dumps({"weights": weights, "took": took}))
