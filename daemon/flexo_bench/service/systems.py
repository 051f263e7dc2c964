"""Ways to sum gradients, each with ranks and, if it has any, Aggregators of its own, timed turn by turn.

All systems of a comparison live side by side. Only one of them works at a time, and turns are short, so that
whatever else the machine does meets all alike.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flexo_bench.ranks import LOOPBACK, Cluster, Me, each
from flexo_protos.aggregation_token import KEY_BYTES, MOST_QUOTA, AggregationToken, sign
from horovod_elastic.aggregation import control, place
from horovod_elastic.aggregation.control import AssignedAggregator
from horovod_elastic.core.choice import SERVICE, TORCH

MODULES = os.pathsep.join(path for path in sys.path if path)
_STARTS_WITHIN_S = 20.0
_TOKEN_S = 86400


class SystemFailed(Exception):
    """A system did not do what is measured; the message says what."""


@dataclass(frozen=True, slots=True)
class Node:
    """A pretended node: how many ranks it has, and its address.

    `prefix`: a command before that of its processes. `first`: what its ranks do before anything else.
    """

    ranks: int
    host: str = LOOPBACK
    prefix: tuple[str, ...] = ()
    first: Callable[[], None] | None = None
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """Some iterations of one system.

    `seconds`: of each iteration, those of its slowest rank. `cpu_s`: of all processes, for one iteration.
    """

    seconds: tuple[float, ...]
    cpu_s: float


class System:
    """Ranks in one generation. `aggregated`: with an Aggregator on each node, otherwise the torch core."""

    def __init__(self, name: str, cluster: Cluster, aggregators: Sequence[subprocess.Popen[bytes]]) -> None:
        self.name = name
        self._cluster = cluster
        ranks = [rank.process.pid for rank in cluster.all]
        self._processes = [pid for pid in (*ranks, *(each.pid for each in aggregators)) if pid is not None]

    def turn(self, what: Callable[..., list[float]], *arguments: object) -> Turn:
        """Have all ranks carry out `what`, which returns the seconds of each of its iterations."""
        before = sum(map(_cpu_s, self._processes))
        told = each(self._cluster.all, what, *arguments)
        cpu_s = sum(map(_cpu_s, self._processes)) - before
        seconds = tuple(max(of_all) for of_all in zip(*told, strict=True))
        return Turn(seconds, cpu_s / len(seconds))


@contextlib.contextmanager
def system(
    name: str,
    nodes: Sequence[Node],
    folder: Path,
    *,
    aggregated: bool,
    pool: Sequence[Node] = (),
    address: str = LOOPBACK,
    meeting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[System]:
    """The system with these nodes; all of its processes have ended afterwards. Raises SystemFailed.

    `pool`: nodes without ranks, each with a pool's Aggregator that sums an equal share. `address`: where its
    ranks meet. `meeting`: entered while they do.
    """
    cluster = Cluster(SERVICE if aggregated else TORCH, address)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        aggregators = []
        for number, node in enumerate(nodes):
            variables = dict(node.variables)
            if aggregated:
                own = folder / f"{name}-{number}"
                aggregators.append(stack.enter_context(_aggregator(own, node)))
                variables[place.VARIABLE] = str(own)
            cluster.start(node.ranks, node=f"{name}-{number}", first=node.first, **variables)
        if pool:
            processes, assigned = _pool(stack, name, pool, folder)
            aggregators += processes
            control.assign(folder / f"{name}-0", 1, assigned)
        with meeting():
            cluster.form(cluster.all)
        if not all(each(cluster.all, _is_aggregated, aggregated)):
            raise SystemFailed(f"{name}: the ranks do not sum as they were told")
        yield System(name, cluster, aggregators)


@contextlib.contextmanager
def _aggregator(folder: Path, node: Node) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, mode=0o700)
    arguments = ["horovod_elastic.aggregation", "--folder", str(folder), "--host", node.host]
    with _process(node, arguments) as process:
        _wait_until_there(process, f"the Aggregator in {folder}", lambda: place.read(folder) is not None)
        yield process


def _pool(
    stack: contextlib.ExitStack, name: str, nodes: Sequence[Node], folder: Path
) -> tuple[list[subprocess.Popen[bytes]], list[AssignedAggregator]]:
    """A pool's Aggregator on each of these nodes, in a process of its own, and the job's way to it."""
    processes, assigned = [], []
    for number, node in enumerate(nodes):
        key, file = secrets.token_bytes(KEY_BYTES), folder / f"{name}-pool-{number}"
        arguments = ["flexo_bench.service.pool_aggregator", "--host", node.host, "--port-file", str(file)]
        process = stack.enter_context(_process(node, arguments, key.hex()))
        _wait_until_there(process, f"{name}'s pool Aggregator {number}", file.exists)
        token = sign(AggregationToken(name, "bench", MOST_QUOTA, int(time.time()) + _TOKEN_S), key)
        assigned.append(AssignedAggregator(node.host, int(file.read_text()), token))
        processes.append(process)
    return processes, assigned


@contextlib.contextmanager
def _process(node: Node, arguments: Sequence[str], text: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A Python module with arguments that runs on this node, with `text` as its standard input."""
    process = subprocess.Popen(
        [*node.prefix, sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1", **node.variables},
    )
    try:
        assert process.stdin is not None
        with process.stdin as its_input:
            its_input.write(text.encode())
        yield process
    finally:
        process.kill()  # it ignores the other signals
        process.wait()


def _wait_until_there(process: subprocess.Popen[bytes], what: str, is_there: Callable[[], bool]) -> None:
    limit = time.monotonic() + _STARTS_WITHIN_S
    while not is_there():
        if process.poll() is not None or time.monotonic() > limit:
            raise SystemFailed(f"{what} does not come")
        time.sleep(0.02)


def _is_aggregated(me: Me, aggregated: bool) -> bool:
    return bool(me.core.outlives) is aggregated


def _cpu_s(pid: int) -> float:
    """CPU seconds of another process so far, to the nanosecond: clock_getcpuclockid's number of it."""
    return time.clock_gettime((~pid << 3) | 2)


# --- what ranks do ----------------------------------------------------------------------------------------


def reduce_gradients(me: Me, shapes: Sequence[tuple[int, ...]], iterations: int) -> list[float]:
    """Average gradients of these shapes, as DistributedOptimizer does it after a backward pass."""
    gradients = me.kept.get("gradients")
    if gradients is None:
        gradients = me.kept["gradients"] = [me.torch.ones(shape) for shape in shapes]
    seconds = []
    for _ in range(iterations):
        me.hvd.barrier()
        began = time.perf_counter()
        handles = [
            me.hvd.allreduce_async_(gradient, name=f"gradient.{number}")
            for number, gradient in reversed(list(enumerate(gradients)))
        ]
        for handle in handles:
            me.hvd.synchronize(handle)
        seconds.append(time.perf_counter() - began)
    if any(float(gradient.view(-1)[-1]) != 1.0 for gradient in gradients):
        raise RuntimeError("the average of ones is not one")
    return seconds
