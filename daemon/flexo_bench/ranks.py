"""Training processes on this machine's loopback that carry out one command at a time.

All processes are forked from one server that has imported PyTorch once. Each process imports Horovod's Python
layer itself, on its own core. A command is a function `what(me, ...)`, written beside the tests; `me` is the
Me of that process.
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
from horovod_elastic.core.choice import HOROVOD, SERVICE, TORCH, VARIABLE
from horovod_elastic.core.interface import CoreFailed, RankPlacement
from horovod_elastic.rendezvous import Rendezvous

LOOPBACK = "127.0.0.1"
GLOO_TIMEOUT_S = 60
"""Timeout after which a rank that waits for a missing one gives up by itself."""
SOON_S = 20.0
"""Limit far below GLOO_TIMEOUT_S: a rank that has given up by then was told to. The machine may be busy."""
ANSWER_S = 120.0


@dataclass
class Me:
    """The tools of a training process."""

    hvd: Any
    torch: Any
    core: Any
    builder: threading.Thread | None = None
    failure: str = ""
    built_at: float = 0.0
    kept: dict[str, Any] = field(default_factory=dict)

    def prepare(self, place: RankPlacement) -> None:
        """Begin to build the next communicator, in the background."""

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
        """Wait until `prepare` is done. Returns "", or the reason of its failure."""
        assert self.builder is not None
        self.builder.join()
        return self.failure


class Rank:
    """One training process, as the test controls it."""

    def __init__(
        self,
        name: str,
        environment: dict[str, str],
        core: str | None = HOROVOD,
        node: str = "",
        first: Callable[[], None] | None = None,
    ) -> None:
        """`core`: flexo's core beneath Horovod; None for stock Horovod, which has none.

        `node`: the name of its pretended node; by default it has one of its own. `first`: what the process
        does before anything else.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        self.name = name
        self.node = node or name
        self._connection, theirs = context.Pipe()
        arguments = (theirs, environment, core, first)
        self.process = context.Process(target=_live, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.busy = False
        """True if the process has a command that it has not answered."""

    def begin(self, what: Callable[..., Any], *arguments: Any) -> None:
        """Send the process a command."""
        self.busy = True
        self._connection.send((what, arguments))

    def answer(self, at_most_s: float = ANSWER_S) -> Any:
        """Result of the command. Raises its error, TimeoutError, or EOFError if the process died."""
        if not self._connection.poll(at_most_s):
            raise TimeoutError(f"{self.name} has not answered within {at_most_s} s")
        result, error = self._connection.recv()
        self.busy = False
        if error is not None:
            raise error
        return result

    def do(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """Send a command and wait for its result."""
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
    """Several ranks on one core, and the leader's work for them.

    `address`: where the members of a generation meet.
    """

    def __init__(self, core: str = HOROVOD, address: str = LOOPBACK) -> None:
        self.core = core
        self.address = address
        self.all: list[Rank] = []
        self.generation = 0

    def start(
        self, count: int, *, node: str = "", first: Callable[[], None] | None = None, **environment: str
    ) -> list[Rank]:
        """Start `count` processes more; of `node` and `first`, see Rank."""
        names = [f"w{len(self.all) + i}" for i in range(count)]
        new = [Rank(name, environment, self.core, node, first) for name in names]
        self.all += new
        return new

    def offer(self, members: Sequence[Rank], late: Rank | None = None) -> Rendezvous:
        """Tell the members to prepare the next generation. The caller closes the returned rendezvous.

        `late`: a member whose answer, that it has begun, is not awaited.
        """
        self.generation += 1
        places = _places(members)
        lines = {f"{node}:{place[2]}": ",".join(map(str, place)) for node, place in places}
        server = Rendezvous(self.address, lines, "secret")
        for rank, (node, place) in zip(members, places, strict=True):
            found = RankPlacement(self.generation, *place, node, server.address, server.port)
            rank.begin(Me.prepare, found)
        for rank in members:
            if rank is not late:
                rank.answer()
        return server

    def prepare(self, members: Sequence[Rank]) -> int:
        """Let all members build the next generation. Returns its number. Raises AssertionError on failure."""
        server = self.offer(members)
        try:
            assert each(members, Me.prepared) == [""] * len(members)
        finally:
            server.close()
        return self.generation

    def form(self, members: Sequence[Rank]) -> None:
        """Prepare the next generation, and switch all members to it."""
        each(members, switch, self.prepare(members))

    def close(self) -> None:
        """End all processes."""
        for rank in self.all:
            with contextlib.suppress(ProcessLookupError):  # the native core aborts when others are gone
                rank.kill()


def _places(members: Sequence[Rank]) -> list[tuple[str, tuple[int, int, int, int, int, int]]]:
    """Each member's node, and its rank and size: of all, of those on its node, of those like it elsewhere."""
    nodes: dict[str, list[Rank]] = {}
    for member in members:
        nodes.setdefault(member.node, []).append(member)
    found = []
    for i, member in enumerate(members):
        local, count = nodes[member.node].index(member), len(nodes[member.node])
        peers = [node for node, there in nodes.items() if len(there) > local]
        place = (i, len(members), local, count, peers.index(member.node), len(peers))
        found.append((member.node, place))
    return found


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until `holds`. Raises AssertionError after `ANSWER_S`."""
    limit = time.monotonic() + ANSWER_S
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


def each(ranks: Sequence[Rank], what: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Send all ranks the same command at once. Returns their results."""
    for rank in ranks:
        rank.begin(what, *arguments)
    return [rank.answer() for rank in ranks]


def switch(me: Me, generation: int) -> float:
    """Switch to `generation`. Returns the seconds that the switch took."""
    began = time.perf_counter()
    me.core.switch(generation)
    return time.perf_counter() - began


def leave(me: Me) -> None:
    """Leave the present generation."""
    me.core.leave()


def place_of(me: Me) -> tuple[int, int]:
    """Rank and size, as Horovod reports them."""
    return me.hvd.rank(), me.hvd.size()


def all_sum(me: Me, value: float) -> float:
    """The sum of all members' values."""
    return float(me.hvd.allreduce(me.torch.tensor([value]), op=me.hvd.Sum, name="all_sum").item())


def make_model(me: Me, seed: int, device: str = "cpu") -> None:
    """Make a model with batch normalisation, and Horovod's optimizer around SGD with momentum.

    A process without a generation becomes one of its own.
    """
    if not me.hvd.is_initialized():
        me.core.alone()
    me.torch.manual_seed(seed)
    layers = me.torch.nn
    model = layers.Sequential(
        layers.Linear(10, 30), layers.BatchNorm1d(30), layers.ReLU(), layers.Linear(30, 3)
    )
    model.to(device)
    plain = me.torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    me.kept["model"] = model
    me.kept["optimizer"] = me.hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())


def train(me: Me, batches: int) -> str:
    """Train on batches that differ between ranks. Returns a digest of the parameters, which must be equal."""
    for _ in range(batches):
        me.kept["optimizer"].zero_grad()
        batch = me.torch.randn(8, 10).to(next(me.kept["model"].parameters()).device)
        loss = me.kept["model"](batch).square().mean()
        loss.backward()
        me.kept["optimizer"].step()
    return parameters(me)


def parameters(me: Me) -> str:
    """A digest of the parameters, bit for bit."""
    digest = hashlib.sha256()
    for value in me.kept["model"].parameters():
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Used:
    """The resources of a process."""

    descriptors: int
    threads: int
    resident_mib: float


def used(me: Me) -> Used:
    """Memory, descriptors and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = len(list(Path("/proc/self/task").iterdir()))
    return Used(descriptors, threads, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def _live(
    connection: Connection, environment: dict[str, str], core: str | None, first: Callable[[], None] | None
) -> None:
    if first is not None:
        first()
    if core is not None:
        os.environ[VARIABLE] = core
    os.environ.update(
        HOROVOD_ELASTIC="1",  # set as by the agent; else a lone DistributedOptimizer registers no hooks
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE="lo",
        HOROVOD_GLOO_TIMEOUT_SECONDS=str(GLOO_TIMEOUT_S),
    )
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    patching.after_import({"horovod.common.process_sets": lambda: python_layer.patch_process_sets})
    me = _on_torch() if core in (TORCH, SERVICE) else _on_horovod(with_core=core == HOROVOD)
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
