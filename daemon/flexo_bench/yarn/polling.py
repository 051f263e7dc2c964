"""What flexod's polls of a large cluster cost: a real ResourceManager, simulated nodes, a real flexod.

In turns, the ResourceManager's CPU time is watched without flexod and with it. Hadoop's own simulator (sls)
is not used: there is none of 3.5.0 on Maven Central, and its nodes are method calls inside the
ResourceManager's process, so its CPU time and theirs are one figure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from flexo.clusters.base import Site
from flexo.clusters.yarn.connecting import connect
from flexo.clusters.yarn.settings import YarnSettings
from flexo_bench.yarn import large_cluster, rm_threads
from flexo_bench.yarn.rm_threads import RmCpu
from flexo_bench.yarn.simulators import Workload
from flexo_lab.flexod import run_flexod
from flexo_lab.processes import Account, end
from flexo_lab.yarn import YarnLab

Tell = Callable[[str], None]
_NODES_PER_ORDINARY, _NODES_PER_WAITING, _NODES_PER_ELASTIC = 5, 100, 100
"""How many applications there are, and elastic jobs."""
_WARM_APART_S = 0.2
_POLLS_APART_S = 2.0
"""flexod's shortest interval by default."""
_METRICS_PORT = 9836


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured, and of what."""

    node_beat_s: float
    master_beat_s: float
    polls: int
    rounds: int
    stretch_s: float
    warm_s: float
    """Polls often for so long first: on a cluster that flexod looks after, Java has compiled what they do."""


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll."""

    seconds: float
    cpu_s: float
    """This side's CPU time in it."""
    calls: dict[str, tuple[int, float]]
    """By question: how often it was asked, and how long that took together."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time without flexod, or with it."""

    rm: RmCpu
    polls_s: tuple[float, ...]
    """flexod's polls."""
    node_late_s: float
    """The largest lateness of a node's beat."""
    node_beats: int


@dataclass(slots=True)
class Polled:
    """What was measured on one cluster."""

    workload: Workload
    asynchronous: bool
    """See large_cluster.running."""
    jobs: int
    """Jobs that one poll finds, satellites and waiting demand included."""
    containers: int
    load: float = 0.0
    """The machine's load average over the minute before the polls end: who else wants its cores."""
    polls: list[Poll] = field(default_factory=list)
    without: list[Stretch] = field(default_factory=list)
    beside: list[Stretch] = field(default_factory=list)


def measure(nodes: int, options: Options, tell: Tell, *, asynchronous: bool) -> Polled:
    """Measure on a cluster of so many nodes. Raises LabError, RuntimeError, TimeoutError."""
    name = f"polls{os.getpid()}"
    with large_cluster.running(name, options.node_beat_s, asynchronous=asynchronous) as lab:
        workload = Workload(
            host=lab.clients[0][0],
            nodes=nodes,
            node_beat_s=options.node_beat_s,
            ordinary=max(1, nodes // _NODES_PER_ORDINARY),
            waiting=max(1, nodes // _NODES_PER_WAITING),
            elastic=max(1, nodes // _NODES_PER_ELASTIC),
            master_beat_s=options.master_beat_s,
        )
        with _simulated(workload, tell) as beats:
            tell(f"{nodes} nodes: warming up")
            poller = _Poller(lab)
            poller.warm_up(options.warm_s)
            found = Polled(workload, asynchronous, poller.jobs, beats.last()["running"])
            tell(f"{nodes} nodes: {options.polls} polls")
            for _ in range(options.polls):
                time.sleep(_POLLS_APART_S)
                found.polls.append(poller.poll())
            found.load = os.getloadavg()[0]
            for turn in range(1, options.rounds + 1):
                where = f"{nodes} nodes, round {turn} of {options.rounds}: {options.stretch_s:.0f} s"
                tell(f"{where} without flexod")
                found.without.append(_watch(lab, options.stretch_s, beats, None))
                tell(f"{where} with flexod")
                with _flexod(lab) as page:
                    found.beside.append(_watch(lab, options.stretch_s, beats, page))
    return found


class _Poller:
    """flexod's own poll, from this process."""

    def __init__(self, lab: YarnLab) -> None:
        self.jobs = 0
        self._calls: list[tuple[str, float]] = []
        site = Site(call_ended=lambda what, _, seconds: self._calls.append((what, seconds)))
        settings = YarnSettings(conf=lab.yarn_layout.client_conf, user="root")
        self._cluster = connect(settings, site)

    def warm_up(self, seconds: float) -> None:
        """Poll often, and at least once."""
        until = time.monotonic() + seconds
        while not self.jobs or time.monotonic() < until:
            self.poll()
            time.sleep(_WARM_APART_S)

    def poll(self) -> Poll:
        """One poll, measured."""
        self._calls.clear()
        began, cpu = time.monotonic(), time.process_time()
        state = self._cluster.observe()
        seconds, cpu_s = time.monotonic() - began, time.process_time() - cpu
        self.jobs = len(state.jobs)
        names = dict.fromkeys(name for name, _ in self._calls)
        times = {name: [took for each, took in self._calls if each == name] for name in names}
        return Poll(seconds, cpu_s, {name: (len(each), sum(each)) for name, each in times.items()})


class _Beats:
    """What the simulators say of their beats."""

    def __init__(self, simulators: subprocess.Popen[str]) -> None:
        self._lines: list[dict[str, Any]] = []
        self._simulators = simulators
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._simulators.stdout is not None
        for line in self._simulators.stdout:
            self._lines.append(json.loads(line))

    def last(self) -> dict[str, Any]:
        """The newest line; the first one comes a second after the start."""
        while not self._lines:
            self.check()
            time.sleep(0.1)
        return self._lines[-1]

    def check(self) -> None:
        """Raise RuntimeError if the simulators have ended: what is measured then is another cluster."""
        if self._simulators.poll() is not None:
            raise RuntimeError("the simulated nodes have ended; their message stands above")

    def since(self, at: float) -> list[dict[str, Any]]:
        """The lines after `at`."""
        self.check()
        return [line for line in self._lines if line["at"] > at]


@contextmanager
def _simulated(workload: Workload, tell: Tell) -> Iterator[_Beats]:
    """The simulators, ready, in a process of their own."""
    command = [sys.executable, "-m", "flexo_bench.yarn.simulators"]
    simulators = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert simulators.stdin is not None
    assert simulators.stdout is not None
    try:
        print(json.dumps(asdict(workload)), file=simulators.stdin, flush=True)
        for line in simulators.stdout:
            step = json.loads(line)["step"]
            if step == "ready":
                break
            tell(step)
        else:
            raise RuntimeError("the simulated nodes have ended; their message stands above")
        yield _Beats(simulators)
    finally:
        simulators.kill()
        simulators.wait()


@contextmanager
def _flexod(lab: YarnLab) -> Iterator[Callable[[], str]]:
    """A flexod with its default intervals, which changes nothing; yields what reads its metrics."""
    host = lab.yarn_layout.flexod.rpartition(":")[0]
    lab.layout.flexod.mkdir(exist_ok=True)
    lab.layout.flexo_toml.write_text(
        textwrap.dedent(f"""\
            [service]
            address = "{lab.yarn_layout.flexod}"

            [cluster]
            kind = "yarn"

            [yarn]
            conf = "{lab.yarn_layout.client_conf}"
            user = "root"

            [event_store]
            path = "{lab.layout.flexod}/journal.sqlite"

            [metrics]
            listen = "{host}:{_METRICS_PORT}"
        """)
    )
    log = lab.layout.logs / "flexod.log"
    process = run_flexod(
        lab.layout, Account.own(), lab.yarn_layout.flexod, log, lab.environment(), ("--dry-run",)
    )

    def page() -> str:
        with urllib.request.urlopen(f"http://{host}:{_METRICS_PORT}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    try:
        while _metric(page(), "flexo_cycle_duration_seconds_count") < 2:
            time.sleep(0.5)
        yield page
    finally:
        end([psutil.Process(process.pid)], patience_s=10)
        process.wait()


def _metric(page: str, name: str) -> float:
    """The sum of a metric's values."""
    return sum(float(each) for each in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))


def _watch(lab: YarnLab, seconds: float, beats: _Beats, page: Callable[[], str] | None) -> Stretch:
    (rm,) = lab.processes_of("rm")
    output = lab.yarn_layout.log("rm").with_suffix(".out")
    polls: list[float] = []
    early = rm_threads.snapshot(rm, output)
    cycles = _metric(page(), "flexo_cycle_duration_seconds_count") if page else 0.0
    while time.monotonic() < early.at + seconds:
        time.sleep(1)
        if page is None:
            continue
        said = page()
        if (count := _metric(said, "flexo_cycle_duration_seconds_count")) != cycles:
            cycles = count
            polls.append(_metric(said, "flexo_last_read_seconds"))
    late = rm_threads.snapshot(rm, output)
    lines = beats.since(early.at)
    return Stretch(
        rm_threads.between(early, late),
        tuple(polls),
        max((line["node_late_s"] for line in lines), default=0.0),
        sum(line["node_beats"] for line in lines),
    )
