"""How soon an idle GPU is used: from the moment it gets free until a satellite's container runs there.

Beside it, in the same run: an ordinary application that waits for that GPU, which YARN serves alone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flexo_bench.yarn import elastic_job
from flexo_bench.yarn.elastic_job import BASE_WORKERS, ElasticJob, ask_for_gpu
from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn
from flexo_lab.yarn.files import ORDINARY_QUEUE
from flexo_lab.yarn.unmanaged import UnmanagedApplication, described
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.node_managers import NodeManagers
from flexo_yarn.records import container_text
from flexo_yarn.resource_manager import ResourceManager

Tell = Callable[[str], None]
NODES = 8
"""With a GPU each. A job's base has two of them; the others get free one after the other, until the job has
all. Then another job begins: no GPU is taken back, after which flexod would let its node rest."""
_SETTLED_S = (6.0, 10.0)
"""From one growth to the next GPU that gets free: more than min_resize_interval_s, and at random, so that
flexod's polls come at any time in between."""
_LIMIT_S = 120.0
_BEAT_S = 0.1
_SEED = 1


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds since a GPU got free."""

    allocated_s: float
    """Until YARN had allocated a container on it."""
    running_s: float
    """Until that container's first process ran."""
    training_s: float | None = None
    """Until the job had trained a step with the new worker."""


@dataclass(slots=True)
class Grants:
    """What was measured."""

    flexo: list[Used] = field(default_factory=list)
    yarn: list[Used] = field(default_factory=list)
    """The same for an ordinary application that waits for the GPU."""


def measure(count: int, folder: Path, tell: Tell) -> Grants:
    """Let a GPU get free `count` times, for a job and for an ordinary application.

    Raises LabError, JobFailed, TimeoutError.
    """
    lab = bring_up_yarn(YarnLabSpec(name=f"grants{os.getpid()}", nodes=NODES, gpus_per_node=1))
    client = ResourceManager(lab.clients, user="root")
    try:
        return _Measurement(lab, client, folder, tell).run(count)
    finally:
        client.close()
        lab.down()


class _Measurement:
    def __init__(self, lab: YarnLab, client: ResourceManager, folder: Path, tell: Tell) -> None:
        self._lab, self._client, self._folder, self._tell = lab, client, folder, tell
        context = described(client, "holds GPUs", ORDINARY_QUEUE)
        self._holder = UnmanagedApplication.submit(client, lab.scheduler, context)
        self._chance = random.Random(_SEED)
        self._held: dict[str, pb.Container] = {}
        """By node."""
        self._nodes = [lab.yarn_layout.node(number + 1) for number in range(BASE_WORKERS, NODES)]

    def run(self, count: int) -> Grants:
        """Measure, job by job, then the ordinary application."""
        found = Grants()
        while len(found.flexo) < count:
            self._take_all()
            folder = self._folder / f"job{len(found.flexo)}"
            folder.mkdir()
            job = ElasticJob.submit(self._lab, self._client, NODES, folder)
            for used in self._growing(job, self._nodes[: count - len(found.flexo)]):
                found.flexo.append(used)
                self._tell(f"{len(found.flexo)} of {count}: a satellite runs after {used.running_s:.2f} s")
            job.kill()
        self._take_all()
        for turn in range(count):
            found.yarn.append(self._used_by_application(self._nodes[turn % len(self._nodes)]))
        return found

    def _growing(self, job: ElasticJob, nodes: Sequence[str]) -> Iterator[Used]:
        """Let the GPUs of these nodes get free, one after the other."""
        self._wait(job, f"{BASE_WORKERS} workers", lambda: job.trains_with(BASE_WORKERS))
        for size, node in enumerate(nodes, BASE_WORKERS + 1):
            self._settle()
            yield self._used_by_job(job, node, size)

    def _wait(self, job: ElasticJob, what: str, happened: Callable[[], bool]) -> None:
        """Wait for the job, with the holder's heartbeats."""

        def beat_and_look() -> bool:
            self._holder.beat()
            return happened()

        job.wait_until(what, beat_and_look, _LIMIT_S)

    def _settle(self) -> None:
        until = time.monotonic() + self._chance.uniform(*_SETTLED_S)
        while time.monotonic() < until:
            self._holder.beat()
            time.sleep(_BEAT_S)

    def _take_all(self) -> None:
        for node in self._nodes:
            if node not in self._held:
                self._take(node)

    def _take(self, node: str) -> None:
        """Have the holder get the GPU of this node, which nobody has any more. Raises TimeoutError."""
        self._holder.master.ask(ask_for_gpu(len(self._held) + 1, node))
        deadline = time.monotonic() + _LIMIT_S
        while not (found := [e for e in self._holder.held.values() if e.node_id.host == node]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no GPU on {node} within {_LIMIT_S:.0f} s")
            self._holder.beat()
            time.sleep(_BEAT_S)
        self._held[node] = found[0]

    def _free(self, node: str) -> tuple[float, float]:
        """Give the GPU of this node back. Returns the time, as time.time and as time.monotonic."""
        self._holder.give_back(self._held.pop(node))
        return time.time(), time.monotonic()

    def _used_by_job(self, job: ElasticJob, node: str, size: int) -> Used:
        """Let a GPU get free, and wait until the job trains with `size` workers on it, too."""
        at, began = self._free(node)
        found: list[pb.ContainerReport] = []

        def running() -> bool:
            if not found:
                found.extend(each for each in [job.satellite_on(node)] if each is not None)
            return bool(found) and elastic_job.runs(found[0].container_id)

        self._wait(job, f"a satellite on {node}", running)
        running_s = time.monotonic() - began
        self._wait(job, f"{size} workers", lambda: job.trains_with(size))
        return Used(found[0].creation_time / 1000 - at, running_s, time.monotonic() - began)

    def _used_by_application(self, node: str) -> Used:
        """The same for an application that has asked before, and starts its container when it gets it."""
        context = described(self._client, "waits", ORDINARY_QUEUE)
        waiting = UnmanagedApplication.submit(self._client, self._lab.scheduler, context)
        waiting.master.ask(ask_for_gpu(1, node))
        waiting.beat()
        at, began = self._free(node)
        deadline = began + _LIMIT_S
        while not waiting.held:
            if time.monotonic() > deadline:
                raise TimeoutError(f"YARN did not allocate the GPU on {node} within {_LIMIT_S:.0f} s")
            time.sleep(_BEAT_S)
            waiting.beat()
        (container,) = waiting.held.values()
        launch = pb.ContainerLaunchContext(command=["sleep 600"])
        NodeManagers(waiting.master.nm_tokens).start(container, launch)
        while not elastic_job.runs(container.id):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the container on {node} did not run within {_LIMIT_S:.0f} s")
            time.sleep(_BEAT_S / 2)
        running_s = time.monotonic() - began
        used = Used(self._report(waiting, container).creation_time / 1000 - at, running_s)
        waiting.master.finish(pb.APP_SUCCEEDED)
        self._take(node)
        return used

    def _report(self, of: UnmanagedApplication, container: pb.Container) -> pb.ContainerReport:
        attempt = self._client.application(of.application_id).current_attempt_id
        name = container_text(container.id)
        return next(
            each for each in self._client.containers(attempt) if container_text(each.container_id) == name
        )
