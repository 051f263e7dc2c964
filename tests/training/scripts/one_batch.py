"""Three steps on one aggregate batch, shared by the workers as AggregateBatch says; prints what came out."""

import json
import sys

import horovod.torch as hvd
import torch

from horovod_elastic.training import AggregateBatch

how = json.loads(sys.argv[1])
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
inputs, targets = torch.randn(how["samples"], 6), torch.randint(0, 3, (how["samples"],))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
    named_parameters=model.named_parameters(),
    op=getattr(hvd, how["op"]),
)
batch = AggregateBatch(how["samples"], largest=how["largest"], optimizer=optimizer)
shares = [int(share) for share in hvd.allgather(torch.tensor([batch.share.samples]))]
first = sum(shares[: hvd.rank()])
mine = slice(first, first + batch.share.samples)
for _ in range(3):
    optimizer.zero_grad()
    for x, y, weight in batch.parts(inputs[mine], targets[mine]):
        (torch.nn.functional.cross_entropy(model(x), y) * weight).backward()
    optimizer.step()
weights = [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
print(json.dumps({"weights": weights, "samples": batch.share.samples, "passes": batch.share.passes}))
