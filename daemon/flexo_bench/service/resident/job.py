"""Parameter servers and workers as processes of this machine, and what the workers do in turns.

The ranks of one cluster may be the workers of several jobs, which then train by turns.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flexo.aggregation.demand import LARGEST_TASK
from flexo_bench.ranks import LOOPBACK, Cluster, Me, Rank, each
from flexo_bench.service.resident import frames
from flexo_bench.service.resident.client import WITHIN_S, Address, ResidentClient
from flexo_bench.service.resident.frames import Cycle, Frame, Introduction, Kind, Move
from flexo_bench.service.resident.partitions import Partition, partitions_of, spread
from flexo_bench.service.systems import MODULES, System
from horovod_elastic.core.choice import TORCH

NAME = "resident"
FIRST = 1
"""The number of a job that has its servers to itself."""
RATE, MOMENTUM = 0.01, 0.9
"""Of SGD."""


@contextlib.contextmanager
def servers(numbers: Sequence[int]) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[Address]]]:
    """Parameter servers with these numbers, and where they are; all have ended afterwards."""
    processes, addresses = [], []
    try:
        for number in numbers:
            with socket.create_server((LOOPBACK, 0)) as listener:
                addresses.append(Address(LOOPBACK, listener.getsockname()[1]))
                descriptor = listener.fileno()
                how = ["--number", str(number), "--listener", str(descriptor)]
                environment = {**os.environ, "PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1"}
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "flexo_bench.service.resident", *how],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[descriptor],
                        env=environment,
                    )
                )
        yield processes, addresses
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Mover:
    """Moves the partitions of a job between servers, as pMaster does it."""

    def __init__(self, addresses: Sequence[Address], holders: list[int], job: int = FIRST) -> None:
        self._addresses = addresses
        self._job = job
        self.holders = holders
        """Per partition: the server that holds it."""

    def move(self, to: Sequence[int]) -> float:
        """Move partition k to server to[k] while the job trains. Returns the seconds until all are copied."""
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            asked: dict[int, tuple[socket.socket, list[int]]] = {}
            for key, (old, new) in enumerate(zip(self.holders, to, strict=True)):
                if old == new:
                    continue
                if old not in asked:
                    connection = frames.dial(self._addresses[old].host, self._addresses[old].port)
                    connection.settimeout(WITHIN_S)
                    asked[old] = stack.enter_context(connection), []
                there = self._addresses[new]
                words = Move(new, there.host, there.port)
                frames.send_words(asked[old][0], Frame(Kind.MOVE, self._job, key), words)
                asked[old][1].append(key)
            for connection, keys in asked.values():
                for _ in keys:
                    frames.receive(connection)
        self.holders = list(to)
        return time.perf_counter() - began


def begin_cycle(server: Address, cycle: Cycle) -> None:
    """Tell a server its execution cycle, as pMaster does it."""
    with frames.dial(server.host, server.port) as connection:
        frames.send_words(connection, Frame(Kind.CYCLE), cycle)


@dataclass(frozen=True, slots=True)
class Plan:
    """A job as its workers join it. `shapes`: of its model."""

    shapes: Sequence[tuple[int, ...]]
    number: int = FIRST
    largest: int = LARGEST_TASK
    """Bytes of its largest partition."""
    ns_per_byte: float = 0.0
    contention: float = 1.0
    """See Introduction."""

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """By key."""
        return partitions_of(self.shapes, self.largest)


@dataclass(frozen=True, slots=True)
class ResidentJob:
    """Workers and their parameter servers. `system`: all of their processes."""

    system: System
    workers: Sequence[Rank]
    mover: Mover


@contextlib.contextmanager
def resident_job(
    ranks: int, count: int, shapes: Sequence[tuple[int, ...]], spare: int = 0
) -> Iterator[ResidentJob]:
    """Workers with `count` servers that hold a model of these shapes; all have ended afterwards.

    `spare`: further servers, which hold nothing at first. The workers also have a generation of the torch
    core, for barriers.
    """
    cluster = Cluster(TORCH)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        processes, addresses = stack.enter_context(servers(range(count + spare)))
        cluster.start(ranks, node=NAME)
        cluster.form(cluster.all)
        plan = Plan(shapes)
        holders = spread(plan.partitions, range(count))
        each(cluster.all, join, plan, addresses, holders)
        yield ResidentJob(System(NAME, cluster, processes), cluster.all, Mover(addresses, list(holders)))


# --- what ranks do ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Joined:
    """A job in one of its workers. `alike`: torch.optim.SGD with a model of one parameter, for comparison."""

    parameters: list[Any]
    gradients: list[Any]
    client: ResidentClient
    alike: Any

    def step(self) -> None:
        """Have the servers update the model. Every gradient is one."""
        self.client.step(self.gradients)

    def check(self) -> None:
        """Raise RuntimeError unless every parameter is what torch.optim.SGD makes of as many steps."""
        expected = float(self.alike.param_groups[0]["params"][0].detach())
        if any(bool((each != expected).any()) for each in self.parameters):
            raise RuntimeError(f"a parameter server's update differs from torch.optim.SGD's ({expected})")


def join(me: Me, plan: Plan, addresses: Sequence[Address], holders: Sequence[int]) -> None:
    """Give the servers a model of zeros, as a worker of this job."""
    parameters = [me.torch.zeros(shape) for shape in plan.shapes]
    job = Introduction(
        plan.number, me.hvd.rank(), me.hvd.size(), RATE, MOMENTUM, plan.ns_per_byte, plan.contention
    )
    me.kept[_name(plan.number)] = _Joined(
        parameters,
        [me.torch.ones(shape) for shape in plan.shapes],
        ResidentClient(job, parameters, addresses, holders, plan.largest),
        local_sgd(me, [(1,)]),
    )


def leave(me: Me, number: int) -> None:
    """Leave a job. The servers drop it when its last worker leaves."""
    me.kept.pop(_name(number)).client.close()


def push_and_pull(me: Me, shapes: Sequence[tuple[int, ...]], iterations: int) -> list[float]:
    """Have the servers update the model, as after a backward pass."""
    del shapes  # they are those of `join`
    job: _Joined = me.kept[_name(FIRST)]
    seconds = []
    for _ in range(iterations):
        me.hvd.barrier()
        began = time.perf_counter()
        job.step()
        seconds.append(time.perf_counter() - began)
        job.alike.step()
    job.check()
    return seconds


def train(me: Me, steps: int, compute_s: float, number: int = FIRST) -> list[float]:
    """Train so many steps, each of which sleeps instead of computing. Returns when each one ended."""
    job: _Joined = me.kept[_name(number)]
    ends = []
    for _ in range(steps):
        time.sleep(compute_s)
        job.step()
        ends.append(time.time())
        job.alike.step()
    job.check()
    return ends


def _name(number: int) -> str:
    return f"job {number}"


def update_locally(me: Me, shapes: Sequence[tuple[int, ...]], iterations: int) -> list[float]:
    """Update a model of these shapes in every rank, which is what an all-reduce leaves to the worker."""
    if "local" not in me.kept:
        me.kept["local"] = local_sgd(me, shapes)
    seconds = []
    for _ in range(iterations):
        me.hvd.barrier()
        began = time.perf_counter()
        me.kept["local"].step()
        seconds.append(time.perf_counter() - began)
    return seconds


def local_sgd(me: Me, shapes: Sequence[tuple[int, ...]]) -> Any:
    """torch.optim.SGD for a model of zeros, in which every gradient is one."""
    parameters = [me.torch.nn.Parameter(me.torch.zeros(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = me.torch.ones(parameter.shape)
    return me.torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)
