"""Ways to sum gradients, each with ranks and, if it has any, Aggregators of its own, timed turn by turn.

All systems of a comparison live side by side. Only one of them works at a time, and turns are short, so that
whatever else the machine does meets all alike.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flexo_bench.ranks import LOOPBACK, Cluster, Me, each
from horovod_elastic.aggregation import place
from horovod_elastic.core.choice import SERVICE, TORCH

MODULES = os.pathsep.join(path for path in sys.path if path)
_STARTS_WITHIN_S = 20.0


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
    address: str = LOOPBACK,
    meeting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[System]:
    """The system with these nodes; all of its processes have ended afterwards. Raises SystemFailed.

    `address`: where its ranks meet. `meeting`: entered while they do.
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
        with meeting():
            cluster.form(cluster.all)
        if not all(each(cluster.all, _is_aggregated, aggregated)):
            raise SystemFailed(f"{name}: the ranks do not sum as they were told")
        yield System(name, cluster, aggregators)


@contextlib.contextmanager
def _aggregator(folder: Path, node: Node) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, mode=0o700)
    command = [*node.prefix, sys.executable, "-m", "horovod_elastic.aggregation"]
    process = subprocess.Popen(
        [*command, "--folder", str(folder), "--host", node.host],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1", **node.variables},
    )
    try:
        limit = time.monotonic() + _STARTS_WITHIN_S
        while place.read(folder) is None:
            if process.poll() is not None or time.monotonic() > limit:
                raise SystemFailed(f"the Aggregator in {folder} does not come")
            time.sleep(0.02)
        yield process
    finally:
        process.kill()  # it ignores the other signals
        process.wait()


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
