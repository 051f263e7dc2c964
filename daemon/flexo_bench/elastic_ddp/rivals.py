"""The rivals of this benchmark: flexo, torchft and torchrun, whose third worker comes and goes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from flexo_bench.elastic_ddp.parts import MODEL
from flexo_bench.elastic_ddp.results import (
    FLEXO_DDP,
    FLEXO_HOROVOD,
    PLAIN_DDP,
    TORCHFT,
    TORCHFT_TUNED,
    TORCHRUN,
)
from flexo_bench.runtime.rivals import BOUND_S, POLL_S, Flexo, Rival, RivalFailed, Training, kill_marked, make
from flexo_bench.runtime.worklog import WorkLog
from flexo_lab import Lab
from horovod_elastic.core.choice import TORCH

HERE = Path(__file__).resolve().parent
TRAIN_DDP, TRAIN_HOROVOD, TRAIN_TORCHFT = (
    HERE / f"train_{name}.py" for name in ("ddp", "horovod", "torchft")
)
PACKAGES_OF_TORCHFT = HERE.parents[2] / ".venv" / "torchft"
"""torchft and what it needs besides PyTorch (setup.sh torchft)."""
SMALL, BIG = 2, 3
README_JOIN_MS, TUNED_JOIN_MS = 10_000, 1_000
"""Time for which torchft's lighthouse waits for stragglers: in torchft's README, and tuned."""
RENDEZVOUS = {"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 3}
"""Settings of torchrun's rendezvous, in seconds. The defaults are 30 s for more nodes, 15 s for lost ones."""

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For torchrun. Without it, PyTorch 2.13's does not grow: a new node waits for the address of a store that
nodes of earlier rounds remember, and nobody tells it."""


class Contender(Rival, Protocol):
    """A rival that can also lose a worker."""

    after_kill: int
    """Number of workers that train first after the third was killed."""

    def kill_third(self, log: WorkLog) -> float:
        """SIGKILL the third worker. Returns the time of it."""

    def calm(self, log: WorkLog) -> None:
        """Go back to SMALL workers after a loss, until nothing is under way."""


def training(name: str, folder: Path, samples: int) -> Training:
    """The training of the rival `name`, with epochs of `samples` samples."""
    scripts = {FLEXO_HOROVOD: TRAIN_HOROVOD, TORCHFT: TRAIN_TORCHFT, TORCHFT_TUNED: TRAIN_TORCHFT}
    script, options = scripts.get(name, TRAIN_DDP), ("--samples", str(samples))
    return Training(folder, MODEL, largest=BIG, script=script, options=options)


def contender(name: str, lab: Lab | None) -> Contender:
    """The rival `name`. flexo's need the lab."""
    if name in (FLEXO_DDP, FLEXO_HOROVOD):
        assert lab is not None
        # The other rivals' workers keep their batch, too, when there are more or fewer of them.
        return FlexoJob(lab, name, TORCH, ("FLEXO_BATCH_RULE=grow",))
    if name == TORCHRUN:
        return Torchrun()
    return Torchft(name=name, join_ms=README_JOIN_MS if name == TORCHFT else TUNED_JOIN_MS)


@dataclass
class FlexoJob(Flexo):
    """flexo's job, of which a satellite's worker may be killed."""

    after_kill: int = SMALL

    def kill_third(self, log: WorkLog) -> float:
        """Kill the worker of the satellite, which flexo starts again."""
        return _kill(_youngest(log))

    def calm(self, log: WorkLog) -> None:
        """Send the satellite away, and wait until only the base job is left."""
        self.resize(SMALL)
        deadline = time.monotonic() + BOUND_S
        while len(self.lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split()) > 1:
            if time.monotonic() > deadline:
                raise RivalFailed(f"the satellite does not end\n{self.said()}")
            time.sleep(POLL_S)


class _Launched:
    """The launchers of a run, one a node, and all that they start."""

    def __init__(self, training: Training) -> None:
        make(training.folder)
        self.training = training
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._output = training.folder / "output.txt"

    def launch(self, command: list[str], **variables: str) -> subprocess.Popen[bytes]:
        """Start a program, whose output is kept."""
        with self._output.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, **variables},
            )  # fmt: skip

    def add_node(self, how: list[str], *more: str, **variables: str) -> None:
        """Start a torchrun with one worker, unless told otherwise."""
        command = [*_TORCHRUN, *how, *self.training.command(*more)[1:]]
        self.nodes.append(self.launch(command, **variables))

    def worker(self, node: int) -> int:
        """The process id of the node's worker. Raises RivalFailed."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.nodes[node].pid).children():
                if str(self.training.script) in process.cmdline():
                    return process.pid
        raise RivalFailed(f"node {node} has no worker\n{self.said()}")

    def wait_for_last(self) -> None:
        """Wait until the last node's launcher has ended, and forget it."""
        try:
            self.nodes[-1].wait(BOUND_S)
        except subprocess.TimeoutExpired:
            raise RivalFailed(f"the third node does not end\n{self.said()}") from None
        self.nodes.pop()

    def end(self) -> None:
        """Kill all of it."""
        for node in self.nodes:
            node.kill()
            node.wait()
        kill_marked(str(self.training.folder))

    def said(self) -> str:
        """The output of all of it so far."""
        return self._output.read_text(errors="replace")[-4000:]


_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--local-addr=127.0.0.1"]


@dataclass
class _Launching:
    """What the rivals that torchrun starts have in common."""

    by_rank: bool = False
    _run: _Launched | None = None

    @property
    def run(self) -> _Launched:
        """The run. It must have begun."""
        assert self._run is not None
        return self._run

    def stop(self) -> None:
        """Kill the training: its end is not measured."""
        if self._run:
            self._run.end()

    def said(self) -> str:
        """The output so far."""
        return self._run.said() if self._run else ""


@dataclass
class PlainDdp(_Launching):
    """DistributedDataParallel of fixed size, under torchrun: what the others' steps are compared with."""

    name: str = PLAIN_DDP

    def start(self, training: Training, size: int) -> None:
        """Begin to train, on one node."""
        self._run = _Launched(training)
        how = [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--nnodes=1"]
        self._run.add_node([*how, f"--nproc-per-node={size}"])

    def resize(self, size: int) -> float:
        """Not possible."""
        raise NotImplementedError


@dataclass
class Torchrun(_Launching):
    """torchrun with a range of nodes: any change restarts all workers, which go on from a checkpoint."""

    name: str = TORCHRUN
    by_rank: bool = True
    after_kill: int = BIG
    _how: list[str] = field(default_factory=list)

    def start(self, training: Training, size: int) -> None:
        """Begin to train, on `size` nodes of one worker each."""
        self._run = _Launched(training)
        conf = ",".join(f"{name}={value}" for name, value in RENDEZVOUS.items())
        self._how = [
            *(f"--nnodes={SMALL}:{BIG}", "--nproc-per-node=1", "--max-restarts=1000"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"),
            *("--rdzv-id=flexo-bench", f"--rdzv-conf={conf}"),
        ]
        for _ in range(size):
            self._add()

    def _add(self) -> None:
        checkpoint = self.run.training.folder / "checkpoint.pt"
        self.run.add_node(self._how, "--checkpoint", str(checkpoint), **OWN_STORE)

    def resize(self, size: int) -> float:
        """Start the third node, or end it with SIGTERM, as a cluster does it."""
        asked_at = time.time()
        if size > len(self.run.nodes):
            self._add()
        elif size < len(self.run.nodes):
            self.run.nodes[-1].terminate()
            self.run.wait_for_last()
        return asked_at

    def kill_third(self, log: WorkLog) -> float:
        """Kill the worker of the third node; its torchrun has all three begin again."""
        return _kill(self.run.worker(BIG - 1))

    def calm(self, log: WorkLog) -> None:
        """Nothing: three workers train again."""


@dataclass
class Torchft(_Launching):
    """torchft: a lighthouse, and a torchrun for each replica group of one worker."""

    name: str = TORCHFT
    join_ms: int = README_JOIN_MS
    after_kill: int = SMALL
    _lighthouse: subprocess.Popen[bytes] | None = None
    _address: str = ""

    def start(self, training: Training, size: int) -> None:
        """Start the lighthouse and the replica groups."""
        self._run = _Launched(training)
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        options = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", str(self.join_ms)]
        program = str(PACKAGES_OF_TORCHFT / "bin" / "torchft_lighthouse")
        self._lighthouse = self._run.launch(
            [sys.executable, program, "--bind", f"127.0.0.1:{port}", *options],
            PYTHONPATH=str(PACKAGES_OF_TORCHFT),
        )
        for group in range(size):
            self._add(group)

    def _add(self, group: int) -> None:
        how = ["--nnodes=1", "--nproc-per-node=1", f"--master-port={free_port()}"]
        self.run.add_node(
            how,
            PYTHONPATH=str(PACKAGES_OF_TORCHFT),
            TORCHFT_LIGHTHOUSE=self._address,
            REPLICA_GROUP_ID=str(group),
        )

    def resize(self, size: int) -> float:
        """Start the third replica group, or have its worker end in order."""
        asked_at = time.time()
        if size > len(self.run.nodes):
            self._add(size - 1)
        elif size < len(self.run.nodes):
            os.kill(self.run.worker(BIG - 1), signal.SIGTERM)
            self.run.wait_for_last()
        return asked_at

    def kill_third(self, log: WorkLog) -> float:
        """Kill the third replica group's worker. Its torchrun ends then."""
        killed_at = _kill(self.run.worker(BIG - 1))
        self.run.wait_for_last()
        return killed_at

    def calm(self, log: WorkLog) -> None:
        """Nothing: two workers train."""

    def stop(self) -> None:
        """Kill the training, and the lighthouse."""
        super().stop()
        if self._lighthouse:
            self._lighthouse.kill()
            self._lighthouse.wait()


def _youngest(log: WorkLog) -> int:
    """The process id of the worker that trains since the latest."""
    first: dict[int, float] = {}
    for batch in log.batches:
        first.setdefault(batch.worker, batch.at)
    return max(first, key=lambda worker: first[worker])


def _kill(pid: int) -> float:
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    return killed_at


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
