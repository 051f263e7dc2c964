"""Boundaries inside an accumulation of gradients, wherever the script keeps Horovod's optimizer."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("horovod")

SCRIPT = """
import os
os.environ["HOROVOD_ELASTIC"] = "1"  # as agents set it, for one rank, too

from horovod_elastic import patching
from horovod_elastic.core.c10d import standin
from horovod_elastic.worker import gradients

standin.install()
patching.after_import({"horovod.torch.optimizer": lambda: gradients.patch})
import horovod.torch as hvd
import horovod.torch.elastic.state as states
import torch
from horovod_elastic.core.c10d.torch_core import TorchCore

TorchCore(standin.the_layer()).alone()
model = torch.nn.Linear(2, 1)
plain = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(
    plain, named_parameters=model.named_parameters(), backward_passes_per_step=2
)

def backward():
    model(torch.ones(1, 2)).sum().backward()

def is_deferred(state):
    return bool(gradients.waiting(state))

for options in ({"optimizer": optimizer}, {"optimizer": plain}, {}):
    state = states.TorchState(model=model, **options)
    told = [is_deferred(state)]
    backward()
    told.append(is_deferred(state))
    backward()
    told.append(is_deferred(state))
    optimizer.step()
    optimizer.zero_grad()
    told.append(is_deferred(state))
    backward()
    gradients.drop(state)
    told.append(is_deferred(state) or any(each.grad is not None for each in model.parameters()))
    print(*told)

second = hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
second.param_groups[0]["params"][0].sum().backward()
print(is_deferred(state))
"""


@pytest.mark.processes
def test_a_boundary_inside_an_accumulation_is_deferred_whatever_the_state_holds() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["False True True False False"] * 3, done.stdout + done.stderr
    assert lines[3] == "True"
