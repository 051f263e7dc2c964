"""Parameter servers and workers as processes of this machine, and what the workers do in turns."""

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

from flexo_bench.ranks import LOOPBACK, Cluster, Me, Rank, each
from flexo_bench.service.resident import frames
from flexo_bench.service.resident.client import WITHIN_S, Address, ResidentClient
from flexo_bench.service.resident.frames import Frame, Introduction, Kind, Move
from flexo_bench.service.resident.partitions import partitions_of, spread
from flexo_bench.service.systems import MODULES, System
from horovod_elastic.core.choice import TORCH

NAME = "resident"
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
    """Moves partitions between servers, as pMaster does it."""

    def __init__(self, addresses: Sequence[Address], holders: list[int]) -> None:
        self._addresses = addresses
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
                frames.send_words(asked[old][0], Frame(Kind.MOVE, key), words)
                asked[old][1].append(key)
            for connection, keys in asked.values():
                for _ in keys:
                    frames.receive(connection)
        self.holders = list(to)
        return time.perf_counter() - began


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
        holders = spread(partitions_of(shapes), range(count))
        each(cluster.all, join, shapes, addresses, holders)
        yield ResidentJob(System(NAME, cluster, processes), cluster.all, Mover(addresses, list(holders)))


# --- what ranks do ----------------------------------------------------------------------------------------


def join(
    me: Me, shapes: Sequence[tuple[int, ...]], addresses: Sequence[Address], holders: Sequence[int]
) -> None:
    """Give the servers a model of zeros, with these shapes."""
    parameters = [me.torch.zeros(shape) for shape in shapes]
    job = Introduction(me.hvd.rank(), me.hvd.size(), RATE, MOMENTUM)
    me.kept["parameters"] = parameters
    me.kept["gradients"] = [me.torch.ones(shape) for shape in shapes]
    me.kept["client"] = ResidentClient(job, parameters, addresses, holders)
    me.kept["alike"] = local_sgd(me, [(1,)])


def push_and_pull(me: Me, shapes: Sequence[tuple[int, ...]], iterations: int) -> list[float]:
    """Have the servers update the model, as after a backward pass. Every gradient is one."""
    del shapes  # they are those of `join`
    seconds = []
    for _ in range(iterations):
        me.hvd.barrier()
        began = time.perf_counter()
        me.kept["client"].step(me.kept["gradients"])
        seconds.append(time.perf_counter() - began)
        me.kept["alike"].step()
    check(me)
    return seconds


def train(me: Me, steps: int, compute_s: float) -> list[float]:
    """Train so many steps, each of which sleeps instead of computing. Returns when each one ended."""
    ends = []
    for _ in range(steps):
        time.sleep(compute_s)
        me.kept["client"].step(me.kept["gradients"])
        ends.append(time.time())
        me.kept["alike"].step()
    check(me)
    return ends


def check(me: Me) -> None:
    """Raise RuntimeError unless every parameter is what torch.optim.SGD makes of as many steps."""
    expected = float(me.kept["alike"].param_groups[0]["params"][0].detach())
    if any(bool((each != expected).any()) for each in me.kept["parameters"]):
        raise RuntimeError(f"a parameter server's update differs from torch.optim.SGD's ({expected})")


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
