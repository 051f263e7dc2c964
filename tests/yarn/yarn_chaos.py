"""Things fail at random under one job on a YARN lab, one after another; what must never be is looked for."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from applications import SMALL_MIB, Application
from yarn_jobs import YarnJob

from flexo_lab.yarn import YarnLab
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records, runs
from flexo_yarn.application_master import Ask
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.resource_manager import ResourceManager

VICTIMS: Final = ("rm", "nm", "am", "leader", "flexod", "worker")
OVER_S: Final = 10.0
"""How long a container may outlive its time limit."""
LONGEST_STOP_S: Final = 12.0
GOES_ON_WITHIN_S: Final = 120.0
SERVED_WITHIN_S: Final = 60.0
"""How long an ordinary application may wait for GPUs in a round. Everybody may be silent for a while."""


@dataclass(frozen=True)
class Round:
    """What fails in a round, how, and whether somebody else wants GPUs meanwhile."""

    victim: str
    stopped_s: float
    """How long it is stopped; 0: it is killed."""
    down_s: float
    """How long a daemon that was killed stays away."""
    wanted: int
    """GPUs that an ordinary application asks for."""
    choice: float
    """Which of several such processes, from 0 to 1."""

    def __str__(self) -> str:
        how = f"stopped for {self.stopped_s:.0f} s" if self.stopped_s else "killed"
        return f"{self.victim} {how}, {self.wanted} GPUs wanted"


def rounds(seed: int) -> list[Round]:
    """Each victim once, in an order of the seed's."""
    dice = random.Random(seed)
    return [
        Round(
            victim,
            stopped_s=dice.uniform(1, LONGEST_STOP_S) if dice.random() < 0.4 else 0.0,
            down_s=dice.uniform(0, 6),
            wanted=dice.choice((0, 3, 6)),
            choice=dice.random(),
        )
        for victim in dice.sample(VICTIMS, len(VICTIMS))
    ]


def trace_of(folder: Path) -> Path:
    """Where the job's leaders write down what they do."""
    return folder / "trace"


def play(lab: YarnLab, job: YarnJob, each: Round) -> float:
    """Play one round; return how long an ordinary application waited, in seconds (0: none did)."""
    hit = _pids(lab, job, each)
    assert hit, f"nothing to hit: {each}"
    wants = Wants(lab, each.wanted) if each.wanted else None
    for pid in hit:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if each.stopped_s else signal.SIGKILL)
    if each.stopped_s:
        time.sleep(each.stopped_s)
        for pid in hit:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    else:
        time.sleep(each.down_s)
        _start_again(lab, each)
    since = time.time()
    waited = wants.served() if wants else 0.0
    job.wait_until(
        f"batches after: {each}",
        lambda: any(event["time"] > since for event in job.events("commit", "kept")),
        GOES_ON_WITHIN_S,
    )
    return waited


def _start_again(lab: YarnLab, each: Round) -> None:
    if each.victim == "flexod":
        lab.start_flexod()
    elif each.victim == "rm":
        lab.start("rm")
    elif each.victim == "nm":
        for node in lab.spec.node_names:
            if not lab.processes_of(node):
                lab.start(node)


def _pids(lab: YarnLab, job: YarnJob, each: Round) -> list[int]:
    if each.victim in ("rm", "flexod"):
        return [process.pid for process in lab.processes_of(each.victim)]
    if each.victim == "nm":
        node = lab.spec.node_names[int(each.choice * len(lab.spec.node_names))]
        return [process.pid for process in lab.processes_of(node)]
    found = {"am": _masters, "leader": _leaders, "worker": lambda job: sorted(job.workers())}[each.victim](
        job
    )
    return found[int(each.choice * len(found)) :][:1]


def _masters(job: YarnJob) -> list[int]:
    def leads(words: list[str]) -> bool:
        return "horovod_elastic.application_master" in words and "-c" not in words

    return _with_words(job, leads)


def _leaders(job: YarnJob) -> list[int]:
    agent = next((event["agent"] for event in reversed(job.trace("leader"))), "")
    found = []
    for pid in _with_words(job, lambda words: "agent" in words):
        with suppress(psutil.Error):
            environment = psutil.Process(pid).environ()
            if f"{environment.get('FLEXO_NODE')}-{environment.get('FLEXO_PART_ID')}" == agent:
                found.append(pid)
    return found


def _with_words(job: YarnJob, condition: Callable[[list[str]], bool]) -> list[int]:
    found = []
    for pid in job.processes():
        with suppress(psutil.Error):
            if condition(psutil.Process(pid).cmdline()):
                found.append(pid)
    return found


class Wants:
    """An ordinary application that wants GPUs, in a thread of its own, and leaves when it has had them."""

    def __init__(self, lab: YarnLab, gpus: int) -> None:
        self._application = Application.submit(lab, "default", user="games")
        self._gpus = gpus
        self._asked = time.monotonic()
        self._served: float | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def served(self) -> float:
        """How long it waited."""
        self._thread.join(SERVED_WITHIN_S + LONGEST_STOP_S)
        assert self._served is not None, f"{self._gpus} GPUs were not given within {SERVED_WITHIN_S} s"
        return self._served

    def _wait(self) -> None:
        self._application.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 1), self._gpus))
        self._application.wait_until(
            "its GPUs", lambda: len(self._application.held) == self._gpus, SERVED_WITHIN_S
        )
        self._served = time.monotonic() - self._asked
        self._application.end()


@dataclass
class Watcher:
    """Looks every second for what must never be. Times in which the ResourceManager is away do not count."""

    lab: YarnLab
    job: YarnJob
    findings: list[str] = field(default_factory=list)
    _limits: dict[str, float] = field(default_factory=dict)
    """By flex application: the last end of its lifetime that was seen, in time.monotonic()."""
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watcher:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        client = ResourceManager(self.lab.clients, user="root", timeout_s=5)
        looked = time.monotonic()
        while not self._over.wait(1.0):
            began = time.monotonic()
            try:
                self._look(client)
            except IpcError:
                away = time.monotonic() - looked
                self._limits = {name: limit + away for name, limit in self._limits.items()}
            looked = max(began, looked) if began - looked < 3 else time.monotonic()
        client.close()

    def _look(self, client: ResourceManager) -> None:
        base = client.application(self.job.application)
        for each in client.containers(base.current_attempt_id):
            if run := runs.run_of(each.priority.priority):
                self.findings.append(f"the base was preempted: the job is in its run {run}")
        tag = f"flexo:base={records.application_text(self.job.application)}"
        for flex in client.applications(states=(pb.RUNNING,), tags=[tag]):
            self._check_limit(client, flex)

    def _check_limit(self, client: ResourceManager, flex: pb.ApplicationReport) -> None:
        name, now = records.application_text(flex.application_id), time.monotonic()
        for each in flex.timeouts:
            if each.type == pb.APP_TIMEOUT_LIFETIME and each.timeout.remaining > 0:
                self._limits[name] = now + each.timeout.remaining
        late = now - self._limits.get(name, now)
        if late > OVER_S and records.living(client.containers(flex.current_attempt_id)):
            self.findings.append(f"satellites of {name} live {late:.0f} s after their time limit")
