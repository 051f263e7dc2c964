"""Training processes on this machine's loopback that are told one thing at a time.

All are forked from one server that has imported PyTorch once; each imports Horovod's Python layer itself, on
the core that it is to have. What they do is written as functions `what(me, ...)` beside the tests; `me` is
the Me of that process.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from horovod_elastic import patching
from horovod_elastic.core import python_layer
from horovod_elastic.core.choice import HOROVOD, TORCH
from horovod_elastic.core.interface import CoreFailed, Place
from horovod_elastic.rendezvous import Rendezvous

LOOPBACK = "127.0.0.1"
GLOO_TIMEOUT_S = 60
"""After it whoever waits for somebody who does not come gives up by himself."""
SOON_S = 20.0
"""Far below: who has done with it by then was told. The machine may be busy."""
ANSWER_S = 120.0


@dataclass
class Me:
    """What a training process has at hand."""

    hvd: Any
    torch: Any
    core: Any
    builder: threading.Thread | None = None
    failure: str = ""
    built_at: float = 0.0
    kept: dict[str, Any] = field(default_factory=dict)

    def prepare(self, place: Place) -> None:
        """Begin to build, in the background."""

        def build() -> None:
            try:
                self.core.prepare(place)
            except CoreFailed as error:
                self.failure = str(error)
            self.built_at = time.time()

        self.failure = ""
        self.builder = threading.Thread(target=build, daemon=True)
        self.builder.start()

    def prepared(self) -> str:
        """Wait for that; why it failed, or nothing."""
        assert self.builder is not None
        self.builder.join()
        return self.failure


class Rank:
    """One process, seen from the test."""

    def __init__(self, name: str, environment: dict[str, str], core: str | None = HOROVOD) -> None:
        """`core`: None for stock Horovod, which has no core of ours beneath it."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        self.name = name
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_live, args=(theirs, environment, core), daemon=True)
        self.process.start()
        theirs.close()
        self.busy = False
        """It has been told something and has not answered."""

    def begin(self, what: Callable[..., Any], *arguments: Any) -> None:
        """Tell it to do something."""
        self.busy = True
        self._connection.send((what, arguments))

    def answer(self, at_most_s: float = ANSWER_S) -> Any:
        """What came of it. Raises what was raised there, TimeoutError when late, EOFError if it died."""
        if not self._connection.poll(at_most_s):
            raise TimeoutError(f"{self.name} has not answered within {at_most_s} s")
        result, error = self._connection.recv()
        self.busy = False
        if error is not None:
            raise error
        return result

    def do(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """`begin` and `answer`."""
        self.begin(what, *arguments)
        return self.answer()

    def kill(self) -> None:
        """End the process with SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.process.join()

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


class Cluster:
    """Several of them on one core, and what a leader does for them."""

    def __init__(self, core: str = HOROVOD) -> None:
        self.core = core
        self.all: list[Rank] = []
        self.generation = 0

    def start(self, count: int, **environment: str) -> list[Rank]:
        """Start `count` processes more, and wait until each is ready."""
        new = [Rank(f"w{len(self.all) + i}", environment, self.core) for i in range(count)]
        self.all += new
        return new

    def offer(self, members: Sequence[Rank], late: Rank | None = None) -> Rendezvous:
        """Tell the members to prepare the next generation; the rendezvous is the caller's to close.

        Who is `late` has not been heard to have begun.
        """
        self.generation += 1
        size = len(members)
        lines = {f"{rank.name}:0": f"{i},{size},0,1,{i},{size}" for i, rank in enumerate(members)}
        server = Rendezvous(LOOPBACK, lines, "secret")
        for i, rank in enumerate(members):
            place = Place(self.generation, i, size, 0, 1, i, size, rank.name, server.address, server.port)
            rank.begin(Me.prepare, place)
        for rank in members:
            if rank is not late:
                rank.answer()
        return server

    def prepare(self, members: Sequence[Rank]) -> int:
        """The next generation, built by all its members. Raises AssertionError if one of them could not."""
        server = self.offer(members)
        try:
            assert each(members, Me.prepared) == [""] * len(members)
        finally:
            server.close()
        return self.generation

    def form(self, members: Sequence[Rank]) -> None:
        """Prepare and switch."""
        each(members, switch, self.prepare(members))

    def close(self) -> None:
        """End all processes."""
        for rank in self.all:
            with contextlib.suppress(ProcessLookupError):  # the native core aborts when others are gone
                rank.kill()


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it is so. Raises AssertionError if it never is."""
    limit = time.monotonic() + ANSWER_S
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


def each(ranks: Sequence[Rank], what: Callable[..., Any], *arguments: Any) -> list[Any]:
    """All of them at once."""
    for rank in ranks:
        rank.begin(what, *arguments)
    return [rank.answer() for rank in ranks]


def switch(me: Me, generation: int) -> float:
    """Seconds that it took."""
    began = time.perf_counter()
    me.core.switch(generation)
    return time.perf_counter() - began


def leave(me: Me) -> None:
    """Leave the present generation."""
    me.core.leave()


def place_of(me: Me) -> tuple[int, int]:
    """Rank and size, as Horovod tells them."""
    return me.hvd.rank(), me.hvd.size()


def all_sum(me: Me, value: float) -> float:
    """The sum of all members' values."""
    return float(me.hvd.allreduce(me.torch.tensor([value]), op=me.hvd.Sum, name="all_sum").item())


def make_model(me: Me, seed: int) -> None:
    """A model with batch normalisation, SGD with momentum in Horovod's optimizer; alone if need be."""
    if not me.hvd.is_initialized():
        me.core.alone()
    me.torch.manual_seed(seed)
    layers = me.torch.nn
    model = layers.Sequential(
        layers.Linear(10, 30), layers.BatchNorm1d(30), layers.ReLU(), layers.Linear(30, 3)
    )
    plain = me.torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    me.kept["model"] = model
    me.kept["optimizer"] = me.hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())


def train(me: Me, batches: int) -> str:
    """Batches that differ from rank to rank; a digest of the parameters, which must not."""
    for _ in range(batches):
        me.kept["optimizer"].zero_grad()
        loss = me.kept["model"](me.torch.randn(8, 10)).square().mean()
        loss.backward()
        me.kept["optimizer"].step()
    return parameters(me)


def parameters(me: Me) -> str:
    """A digest of the parameters, bit for bit."""
    digest = hashlib.sha256()
    for value in me.kept["model"].parameters():
        digest.update(value.detach().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Used:
    """What a process holds."""

    descriptors: int
    threads: int
    resident_mib: float


def used(me: Me) -> Used:
    """Memory, descriptors and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = len(list(Path("/proc/self/task").iterdir()))
    return Used(descriptors, threads, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def _live(connection: Connection, environment: dict[str, str], core: str | None) -> None:
    os.environ.update(
        HOROVOD_ELASTIC="1",  # as the agent does; else DistributedOptimizer registers no hooks when alone
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE="lo",
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(GLOO_TIMEOUT_S),
    )
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    patching.after_import({"horovod.common.process_sets": lambda: python_layer.patch_process_sets})
    me = _on_torch() if core == TORCH else _on_horovod(with_core=core == HOROVOD)
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((what(me, *arguments), None))
        except Exception as error:
            connection.send((None, error))


def _on_horovod(*, with_core: bool) -> Me:
    import horovod.torch as hvd
    import torch
    from horovod.torch import mpi_ops

    from horovod_elastic.core.native.horovod_core import HorovodCore

    return Me(hvd, torch, HorovodCore(mpi_ops) if with_core else None)


def _on_torch() -> Me:
    from horovod_elastic.core.c10d import standin

    standin.install()
    import horovod.torch as hvd
    import torch

    from horovod_elastic.core.c10d.torch_core import TorchCore

    return Me(hvd, torch, TorchCore(standin.the_layer()))
