"""Objects without state_dict in a TorchState: each worker's belong to its own model and optimizer."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("horovod")

BEGIN = """
import threading
from horovod_elastic.core.c10d import standin

standin.install()
import horovod.common.elastic as elastic
import horovod.torch as hvd
import horovod.torch.elastic.state as states
import torch
from horovod_elastic.core.c10d.torch_core import TorchCore
from horovod_elastic.worker import hooks, left_out, state_messages, state_parts

TorchCore(standin.the_layer()).alone()
hooks.patch_elastic(elastic)
hooks.patch_state(states)

class Noam:
    def __init__(self, optimizer):
        self.optimizer, self.n = optimizer, 0
    def step(self):
        self.n += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 1.0 / (1 + self.n)

class Average:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
    def update(self):
        for name, each in self.model.named_parameters():
            self.shadow[name].mul_(0.5).add_(each.detach(), alpha=0.5)

def worker(beneath=False, **more):
    model = torch.nn.Linear(2, 1)
    plain = optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    if beneath:
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    noam, average = Noam(plain), Average(model)
    state = states.TorchState(model=model, optimizer=optimizer, noam=noam, average=average, **more)
    left_out.attach(state)
    return state, noam, average

def train(state, steps=1):
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.ones(1, 2)).sum().backward()
        state.optimizer.step()
        state.noam.step()
        state.average.update()

def hand_over(giver, newcomer):
    sent = {}

    def send(message, name):
        sent[name] = message.clone()
        return lambda: None

    def receive(message, name):
        message.copy_(sent[name])
        return lambda: None

    mine, theirs = state_parts.parts_of(giver), state_parts.parts_of(newcomer)
    state_messages.send(mine, send, from_gpus=False)
    state_messages.receive(theirs, receive)
    for part in (*mine, *theirs):
        part.settle()

def numbers(state):
    return [state.noam.n, state.optimizer.param_groups[0]["lr"], state.average.shadow["weight"].tolist(),
            state.model.weight.tolist()]
"""

NEWCOMER = """
torch.manual_seed(1)
giver, *_ = worker(beneath)
newcomer, noam, average = worker(beneath)
if begun:
    train(giver, 3)
    giver.save()
hand_over(giver, newcomer)
print(newcomer.noam is noam, newcomer.average is average)
print(noam.optimizer.param_groups[0] is newcomer.optimizer.param_groups[0], average.model is newcomer.model)
print(numbers(giver) == numbers(newcomer))
train(giver), train(newcomer)
print(numbers(giver) == numbers(newcomer))
"""

RESTORE = """
state, noam, average = worker()
train(state, 3)
state.save()
saved = numbers(state)
for _ in range(2):
    train(state, 2)
    print(numbers(state) != saved)
    state.restore()
    print(numbers(state) == saved)
print(state.noam is noam, noam.optimizer is state.optimizer, average.model is state.model)
"""

WARNINGS = """
class Holder:
    def __init__(self, model):
        self.model = model

more = {}
holder = Holder(None)
more["locked"] = locked = Holder(None)
more["among"] = [1, holder]
more["plain"] = Holder(None)
model = torch.nn.Linear(2, 1)
holder.model = locked.model = model
locked.lock = threading.Lock()
state = states.TorchState(model=model, **more)
left_out.attach(state)
state.save()
state.save()
state.restore()
print(state.locked is locked, state.plain is more["plain"])
"""


def told(*parts: str) -> tuple[list[str], str]:
    """What such a script prints, and what flexo says."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((BEGIN, *parts))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("begun", [False, True], ids=["before the first commit", "after some steps"])
@pytest.mark.parametrize("beneath", [False, True], ids=["its optimizer", "the one beneath it"])
def test_a_newcomers_objects_belong_to_its_own_model_and_optimizer(begun: bool, beneath: bool) -> None:
    assert told(f"begun, beneath = {begun}, {beneath}", NEWCOMER)[0] == ["True"] * 6


@pytest.mark.processes
def test_a_restore_takes_them_back_to_the_commit_in_place() -> None:
    assert told(RESTORE)[0] == ["True"] * 7


@pytest.mark.thorough
def test_what_cannot_be_handed_over_so_is_told_once_and_stays_as_it_is() -> None:
    printed, said = told(WARNINGS)
    assert printed == ["True", "True"]
    assert said.count("'locked'") == 1
    assert said.count("'among'") == 1
    assert "'plain'" not in said
