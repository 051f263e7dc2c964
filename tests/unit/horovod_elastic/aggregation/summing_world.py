"""Aggregators in processes of their own, and ranks in threads that know what must come out of their sums."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from horovod_elastic.aggregation import place
from horovod_elastic.aggregation.adding import add_up
from horovod_elastic.aggregation.client import AggregationClient, Key, SumsFailed
from horovod_elastic.aggregation.memory import KeyShape, wide
from horovod_elastic.aggregation.plan import LEAST_PART_BYTES, Plan, PlannedNode

BOUND_S = 120.0
"""Nothing here takes as long on a busy machine, unless it hangs."""
HERE = Path(__file__).resolve().parent
_generations = iter(range(1, 1 << 30))


class AggregatorProcess:
    """A node's Aggregator, which can be killed and started again.

    `jitter`: a seed for pauses inside it. `hasty`: it is as users have it, and waits no longer. `workers`:
    whether workers are on its node.
    """

    def __init__(
        self, folder: Path, jitter: int | None = None, *, hasty: bool = False, workers: bool = True
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._jitter = jitter
        self._hasty = hasty
        self._options = [] if workers else ["--no-workers"]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        module = ["-m", "horovod_elastic.aggregation"]
        if not self._hasty:
            module = [str(HERE / "patient_aggregator.py"), str(self._jitter).lower()]
        if self._jitter is not None:
            self._jitter += 1
        command = [sys.executable, *module, "--folder", str(self.folder), "--host", "127.0.0.1"]
        command += self._options
        modules = os.pathsep.join([str(HERE.parents[3]), os.environ.get("PYTHONPATH", "")])
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": modules})

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def serves(self) -> bool:
        """Whether it is there. Who is killed again before counts as away all the time."""
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(self.socket()) == 0

    def wait(self) -> None:
        limit = time.monotonic() + BOUND_S
        while not self.serves():
            assert time.monotonic() < limit, "the Aggregator never started"
            time.sleep(0.01)

    def place(self) -> place.AggregatorPlace:
        limit = time.monotonic() + BOUND_S
        while (found := place.read(self.folder)) is None:
            assert time.monotonic() < limit, "the Aggregator never started"
            time.sleep(0.01)
        return found

    def socket(self) -> str:
        return str(place.socket_path(self.folder))

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def files(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def threads(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/task").iterdir())

    def shared_bytes(self) -> int:
        """Bytes of keys' memory that the process has mapped."""
        total = 0
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            if "memfd:flexo-" in line:
                begin, end = (int(each, 16) for each in line.split()[0].split("-"))
                total += end - begin
        return total


@contextlib.contextmanager
def aggregators(
    folder: Path, count: int, jitter: int | None = None, *, hasty: bool = False
) -> Iterator[list[AggregatorProcess]]:
    seeds = [None if jitter is None else jitter + 1000 * node for node in range(count)]
    started = [AggregatorProcess(folder / str(node), seeds[node], hasty=hasty) for node in range(count)]
    try:
        yield started
    finally:
        for each in started:
            each.kill()


def plan_of(
    nodes: Sequence[AggregatorProcess],
    workers: int,
    part_bytes: int = LEAST_PART_BYTES,
    generation: int | None = None,
) -> Plan:
    """A new generation of so many workers on each node, whose ranks are next to each other."""
    planned = []
    for index, node in enumerate(nodes):
        at, ranks = node.place(), tuple(range(index * workers, (index + 1) * workers))
        planned.append(PlannedNode(f"n{index}", ranks, at.host, at.port, at.token))
    return Plan("17", next(_generations) if generation is None else generation, tuple(planned), part_bytes)


def inputs_of(shape: KeyShape, rank: int, number: int) -> np.ndarray[Any, Any]:
    """What this rank adds to this round of a key: numbers whose sum depends on the order of adding."""
    generator = np.random.default_rng([rank, number, shape.elements])
    if shape.dtype in ("int64", "int32"):
        return generator.integers(-(2**40), 2**40, shape.elements).astype(shape.dtype)
    drawn = generator.standard_normal(shape.elements) * 10.0 ** generator.integers(-3, 3, shape.elements)
    if shape.dtype == "bfloat16":
        return (drawn.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return drawn.astype(shape.dtype)


def expected(plan: Plan, shape: KeyShape, number: int, contributors: Sequence[frozenset[int]]) -> bytes:
    """The sum by rank within each node, then over nodes by their lowest ranks, part by part."""
    kind = "uint16" if shape.dtype == "bfloat16" else shape.dtype
    result = np.empty(shape.elements, dtype=kind)
    inputs = {rank: inputs_of(shape, rank, number) for rank in frozenset().union(*contributors)}
    for part, who in enumerate(contributors):
        where = shape.part(part, plan.part_bytes)
        sums = []
        for node in plan.nodes:
            if ranks := [rank for rank in node.ranks if rank in who]:
                total = np.empty(
                    where.stop - where.start, dtype=wide(shape.dtype) if len(plan.nodes) > 1 else kind
                )
                add_up([inputs[rank][where] for rank in ranks], total, shape.dtype)
                sums.append(total)
        add_up(sums, result[where], shape.dtype)
    return result.tobytes()


@dataclass
class Rank:
    """A rank in a thread of its own. It sums all keys in every round, and keeps what came out."""

    plan: Plan
    rank: int
    socket: str
    shapes: Sequence[KeyShape]
    rounds: int
    pause_s: float = 0.0
    results: dict[tuple[int, int], tuple[bytes, tuple[frozenset[int], ...]]] = field(default_factory=dict)
    """By key and round: the numbers, and each part's contributors."""
    error: str = ""
    failures: list[str] = field(default_factory=list)
    begun: int = 0
    dead: bool = False

    def __post_init__(self) -> None:
        self.client = AggregationClient(self.socket, self.plan, self.rank, self.failures.append)
        self.met = threading.Event()
        self.go = threading.Event()
        self.leave = threading.Event()
        self.through = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"rank-{self.rank}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def die(self) -> None:
        """Go without a word, as a killed process does."""
        self.dead = True
        self.client.close(in_order=False)

    def _run(self) -> None:
        try:
            self.client.connect(BOUND_S, lambda: self.dead)
            self.met.set()
            self.go.wait(BOUND_S)
            self._sum()
        except SumsFailed as error:
            self.error = str(error)
        finally:
            self.met.set()
            self.through.set()
        self.leave.wait(BOUND_S)
        self.client.close(in_order=not self.dead and not self.error)

    def _sum(self) -> None:
        keys = [self.client.key(shape) for shape in self.shapes]
        for number in range(1, self.rounds + 1):
            waits = [self._begin(key, number) for key in keys]
            for key, wait in zip(keys, waits, strict=True):
                if self.dead:
                    return
                wait()
                assert key.result is not None
                self.results[key.number, number] = (
                    key.result.numbers.tobytes(),
                    tuple(self.client.contributors(key)),
                )
            if self.pause_s:
                time.sleep(self.pause_s)

    def _begin(self, key: Key, number: int) -> Callable[[], None]:
        key.input.numbers[:] = inputs_of(key.shape, self.rank, number)
        return begin(self.client, key, lambda: setattr(self, "begun", number))


def begin(
    client: AggregationClient, key: Key, begun: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Begin to sum this key's input. What comes back waits for the sum."""
    over, errors = threading.Event(), list[str]()

    def ends(error: str) -> None:
        errors.append(error)
        over.set()

    client.begin(key, ends)
    begun()

    def wait() -> None:
        assert over.wait(BOUND_S), f"the sum of {key.shape.name} hangs"
        if errors[0]:
            raise SumsFailed(errors[0])

    return wait


class Ranks:
    """All ranks of a generation."""

    def __init__(
        self,
        nodes: Sequence[AggregatorProcess],
        workers: int,
        shapes: Sequence[KeyShape],
        rounds: int,
        pause_s: float = 0.0,
        plan: Plan | None = None,
        apart: Collection[int] = (),
    ) -> None:
        """`apart`: ranks that are elsewhere, and die."""
        self.plan = plan_of(nodes, workers) if plan is None else plan
        self.all = [
            Rank(self.plan, rank, nodes[self.plan.node_of(rank)].socket(), shapes, rounds, pause_s)
            for rank in range(self.plan.size)
            if rank not in apart
        ]
        for each in self.all:
            each.start()
        for each in self.all:
            assert each.met.wait(BOUND_S)
        errors = [each.error for each in self.all if each.error]
        assert not errors, errors
        for each in self.all:
            each.go.set()

    def dies(self, rank: int) -> None:
        next(each for each in self.all if each.rank == rank).die()

    def end(self) -> None:
        """Wait until all that live have all sums; then let all leave."""
        for each in self.all:
            assert each.through.wait(BOUND_S), f"rank {each.rank} hangs in round {each.begun}"
        for each in self.all:
            each.leave.set()
        for each in self.all:
            each.thread.join(BOUND_S)

    def live(self) -> list[Rank]:
        return [each for each in self.all if not each.dead]

    def check(self) -> None:
        """All that live have all sums, the same ones bit for bit, by the same contributors."""
        errors = [each.error for each in self.live() if each.error]
        assert not errors, errors
        first, *others = self.live()
        for each in (first, *others):
            assert len(each.results) == len(each.shapes) * each.rounds, f"rank {each.rank} lacks results"
        for other in others:
            for what, result in first.results.items():
                assert other.results[what] == result, f"ranks {first.rank} and {other.rank} differ in {what}"
        everybody = frozenset(range(self.plan.size))
        living = frozenset(each.rank for each in self.live())
        for (key, number), (numbers, contributors) in first.results.items():
            assert all(living <= who <= everybody for who in contributors)
            assert numbers == expected(self.plan, first.shapes[key], number, contributors), (key, number)

    def check_undisturbed(self) -> None:
        """As `check`, and nobody is missing in any sum."""
        self.check()
        everybody = frozenset(range(self.plan.size))
        for each in self.all:
            assert all(who == everybody for _, parts in each.results.values() for who in parts)


def sums(*keys: tuple[str, int]) -> list[KeyShape]:
    """Shapes of keys, by type and number of elements."""
    return [KeyShape(f"key {index}", dtype, elements) for index, (dtype, elements) in enumerate(keys)]


class RankProcess:
    """A rank in a process of its own. It sums until it is killed."""

    def __init__(self, plan: Plan, rank: int, socket_path: str, shapes: Sequence[KeyShape]) -> None:
        self._what = pickle.dumps((plan, rank, socket_path, shapes))

    def __enter__(self) -> RankProcess:
        begin = (
            "import pickle, sys; from summing_world import be_rank; be_rank(*pickle.load(sys.stdin.buffer))"
        )
        modules = os.pathsep.join([str(HERE.parents[3]), str(HERE), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-c", begin],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": modules},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self._what)
        self._process.stdin.close()
        return self

    def kill(self) -> None:
        self._process.kill()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def be_rank(plan: Plan, rank: int, socket_path: str, shapes: Sequence[KeyShape]) -> None:
    """Sum as this rank, for longer than any test lasts."""
    each = Rank(plan, rank, socket_path, shapes, 1_000_000)
    each.start()
    each.go.set()
    each.thread.join()


SEVERAL = sums(("float32", 1), ("float32", 3001), ("float64", 20_000), ("int64", 700), ("float32", 60_001))


def at_random_instants(seed: int, count: int, within_s: float) -> Iterator[random.Random]:
    """Wait until each of so many random instants. What is drawn at it comes from the generator."""
    drawn = random.Random(seed)
    began = time.monotonic()
    for instant in sorted(drawn.uniform(0, within_s) for _ in range(count)):
        time.sleep(max(0.0, began + instant - time.monotonic()))
        yield drawn
