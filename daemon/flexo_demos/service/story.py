"""Plays the story of two jobs that share a pool's Aggregators, and of processes that are killed."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexo_demos.elastic.plot import EXAMPLE
from flexo_demos.elastic.story import wait_until
from flexo_demos.elastic.tell import Teller
from flexo_demos.service import cores
from flexo_demos.service.cores import Use
from flexo_demos.service.steps import Line, joined, read_lines
from flexo_lab import Lab, LabCommandFailed
from flexo_lab.slurm_files import INFERENCE_PARTITION

JOBS = ("first", "second")
_FLEXO = str(Path(sys.executable).parent / "flexo")
_LONG_S = 240.0
"""The longest time for any event of the story."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Sizes of the story."""

    nodes: int = 2
    gpus_per_node: int = 2
    """Both jobs together hold all GPUs, so that none grows."""
    aggregators: int = 2
    """Pool Aggregators at the beginning, each a Slurm job with one CPU core."""
    cores_each: int = 1
    """CPU cores that each job would reserve for Aggregators of its own."""
    pause_s: float = 0.25
    """Pause before each step, as of a GPU that computes. It makes the steps of both jobs alike, on a machine
    whose cores they share."""
    drain_after_s: int = 8
    """flexod ends an Aggregator that no job has needed for so long."""
    rest_s: int = 5
    """A job that was sent back to its own Aggregators rests so long, such as when other programs slow it."""
    calm_steps: int = 20
    """Steps of each job that are waited for after each event."""
    instant_s: tuple[float, float] = (0.3, 1.5)
    """A process is killed at a random time between these, after a step."""


@dataclass(slots=True)
class Seen:
    """What the demo has seen. The report uses it even if the story fails."""

    slurm_version: str = ""
    jobs: dict[str, int] = field(default_factory=dict)
    aggregators: list[int] = field(default_factory=list)
    """The Slurm jobs of all Aggregators, in the order of their start."""
    pool_at: float = 0.0
    """When the pool's Aggregators were submitted."""
    shared_at: float = 0.0
    """When both jobs shared an Aggregator."""
    losses: dict[str, float] = field(default_factory=dict)
    """Per job: the part of its speed that sharing costs, by flexod's measurement; only measured ones."""
    drained: int = 0
    """Aggregators that flexod has ended, because no job needed them."""
    aggregator_killed_at: float = 0.0
    shared_again_at: float = 0.0
    worker_killed_at: float = 0.0
    worker_back_at: float = 0.0
    fell_back: int = 0
    """How often a job said that it goes back to its all-reduce."""
    uses: dict[int, Use] = field(default_factory=dict)
    """Slurm's accounting of all these jobs."""


class Story:
    """Plays the plot on a lab. `out`: folder of logs."""

    def __init__(self, lab: Lab, out: Path, plot: Plot, seen: Seen, teller: Teller) -> None:
        self._lab, self._out, self._plot, self._seen, self._teller = lab, out, plot, seen, teller
        self._dice = random.Random()

    def play(self) -> None:
        """Play it. Raises StoryFailed, LabError."""
        self._seen.slurm_version = self._lab.run(["sinfo", "--version"]).stdout.split()[-1]
        self._train()
        self._start_pool()
        self._share()
        self._kill_an_aggregator()
        self._kill_a_worker()
        self._end()

    # --- the scenes ------------------------------------------------------------------------------------

    def _start_pool(self) -> None:
        """The pool's Aggregators start, each as a Slurm job on the node without training."""
        for _ in range(self._plot.aggregators):
            self._start_aggregator()
        self._seen.pool_at = time.time()
        self._wait("the pool's Aggregators are attached", lambda: self._attached() == self._plot.aggregators)
        self._teller.show("each has one CPU core and no GPU; flexod decides whose gradients it sums")

    def _train(self) -> None:
        """Both jobs start, with Aggregators of their own."""
        for name in JOBS:
            self._submit(name)
        self._wait("both train", lambda: all(self._counting(name) for name in JOBS))
        self._teller.say("Both train on handwritten digits, each with two workers on two nodes")
        self._teller.show("so far, an Aggregator of its own on each node sums each job's gradients")

    def _share(self) -> None:
        """flexod profiles both jobs, then has them share an Aggregator, and ends the one that is left."""
        said: dict[str, str] = {}

        def both_share() -> bool:
            states = {name: self._told(name).get("state") or "" for name in JOBS}
            for name in JOBS:
                if (why := self._why(name)) and said.get(name) != why:
                    said[name] = why
                    self._teller.say(f"Job {self._seen.jobs[name]}: {why}")
            return set(states.values()) == {"shares"}

        self._teller.show("flexod profiles each job: 110 iterations on Aggregators that no other job uses")
        self._wait("both share the pool", both_share)
        self._seen.shared_at = time.time()
        self._wait_for_steps("both train on the shared Aggregator", self._plot.calm_steps)
        self._command("why", str(self._seen.jobs[JOBS[0]]))
        self._command("top", "--once")
        self._wait("the Aggregator that is left ends", lambda: self._attached() < self._plot.aggregators)
        self._seen.drained = self._plot.aggregators - self._attached()
        self._teller.say(
            "No job needs the other Aggregator any more: flexod has ended it, and its core is free"
        )
        self._wait_for_steps("both train on", self._plot.calm_steps)
        self._seen.losses = {
            name: loss for name in JOBS if (loss := self._told(name).get("loss")) is not None
        }

    def _kill_an_aggregator(self) -> None:
        """The Aggregator that sums for both jobs dies without warning."""
        victim = self._running_aggregators()[0]
        number = self._seen.aggregators.index(victim) + 1
        pid = int((self._out / f"aggregator-{number}.pid").read_text())
        self._at_a_random_instant()
        self._teller.say(f"$ kill -KILL {pid}    # the Aggregator of both jobs, Slurm job {victim}", "bold")
        os.kill(pid, signal.SIGKILL)
        self._seen.aggregator_killed_at = time.time()
        self._wait_for_steps("both train on without it", self._plot.calm_steps)
        self._teller.say("Both train on: the Aggregators of their nodes make the sums")
        self._teller.show("a site's service manager starts another one")
        self._start_aggregator()
        self._wait(
            "both share the new one",
            lambda: (
                {self._told(name).get("state") for name in JOBS} == {"shares"}
                and all(self._shares_with_a_living_one(name) for name in JOBS)
            ),
        )
        self._seen.shared_again_at = time.time()
        self._wait_for_steps("both train on it", self._plot.calm_steps)
        self._teller.say("Both share the new one")

    def _kill_a_worker(self) -> None:
        """A worker of the second job dies without warning; its place is filled again."""
        name = JOBS[1]
        pid = next(line.pid for line in reversed(self._counting(name)) if line.rank == 1)
        self._at_a_random_instant()
        self._teller.say(f"$ kill -KILL {pid}    # rank 1 of job {self._seen.jobs[name]}", "bold")
        os.kill(pid, signal.SIGKILL)
        self._seen.worker_killed_at = time.time()
        self._wait(
            "another worker has its place",
            lambda: any(line.rank == 1 and line.pid != pid for line in self._counting(name)[-10:]),
        )
        self._seen.worker_back_at = next(
            line.ended
            for line in self._counting(name)
            if line.rank == 1 and line.began > self._seen.worker_killed_at
        )
        self._teller.say("Rank 0 has trained on alone; another worker has the dead one's place now")
        self._wait_for_steps("both train on", self._plot.calm_steps)

    def _end(self) -> None:
        """The jobs end, then the pool."""
        every = [*self._seen.jobs.values(), *self._seen.aggregators]
        self._teller.say(f"$ scancel {' '.join(map(str, self._seen.jobs.values()))}", "bold")
        self._lab.run(["scancel", *map(str, self._seen.jobs.values())])
        self._wait("the jobs end", lambda: not self._queued(list(self._seen.jobs.values())))
        self._lab.run(
            ["scancel", "--signal=TERM", "--full", *map(str, self._running_aggregators())], check=False
        )
        self._wait("the pool ends", lambda: not self._queued(every))
        self._wait("Slurm's accounting has them", lambda: self._accounted(every))
        outputs = [(self._out / f"{name}.out").read_text() for name in JOBS]
        self._seen.fell_back = sum(text.count("uses its all-reduce") for text in outputs)

    # --- Slurm -----------------------------------------------------------------------------------------

    def _submit(self, name: str) -> None:
        options = ["-N2", "-n2", "--gpus-per-task=1", "-c1", "--elastic=2-3"]
        run = ["--core=service", "--aggregators=pool", f"--aggregator-cores={self._plot.cores_each}"]
        self._teller.say(f"$ sbatch {' '.join(options)} {name}.sbatch", "bold")
        self._teller.show(f"flexo run {' '.join(run)} python train_ddp.py")
        script = [str(EXAMPLE / "train_ddp.py"), "--epochs", "100000", "--pause", str(self._plot.pause_s)]
        words = [_FLEXO, "run", *run, sys.executable, *script, "--log-dir", str(self._out / name)]
        self._seen.jobs[name] = self._sbatch(name, options, shlex.join(words))

    def _start_aggregator(self) -> None:
        """Submit one Aggregator. It notes its process, which is killed later."""
        name = f"aggregator-{len(self._seen.aggregators) + 1}"
        options = [f"--partition={INFERENCE_PARTITION}", "-n1", "-c1"]
        self._teller.say(f"$ sbatch {' '.join(options)} {name}.sbatch    # flexo aggregator", "bold")
        note = f"echo $$ > {shlex.quote(str(self._out / name))}.pid"
        words = [_FLEXO, "aggregator", "--memory-mib", "512"]
        self._seen.aggregators.append(self._sbatch(name, options, f"{note}\nexec {shlex.join(words)}"))

    def _sbatch(self, name: str, options: list[str], lines: str) -> int:
        batch = self._out / f"{name}.sbatch"
        batch.write_text(f"#!/bin/bash\n{lines}\n")
        output = ["--job-name", name, "--output", str(self._out / f"{name}.out"), "--open-mode=append"]
        return int(
            self._lab.run(["sbatch", "--parsable", *options, *output, str(batch)]).stdout.split(";")[0]
        )

    def _queued(self, job_ids: list[int]) -> list[int]:
        """Which of these jobs are still in the queue."""
        asked = ["squeue", "--noheader", "--format=%A", f"--jobs={','.join(map(str, job_ids))}"]
        told = self._lab.run(asked, check=False).stdout.split()
        return [int(each) for each in told]

    def _running_aggregators(self) -> list[int]:
        return [job for job in self._seen.aggregators if job in self._queued(self._seen.aggregators)]

    def _accounted(self, job_ids: list[int]) -> bool:
        """Whether Slurm's accounting knows the end of all these jobs; notes what it knows."""
        asked = ["sacct", "-X", "--noheader", "--parsable2", f"--format={cores.FIELDS}"]
        told = self._lab.run([*asked, f"--jobs={','.join(map(str, job_ids))}"]).stdout
        self._seen.uses = cores.parse(told)
        return all(job in self._seen.uses and self._seen.uses[job].state != "RUNNING" for job in job_ids)

    # --- flexod ----------------------------------------------------------------------------------------

    def _command(self, *words: str) -> None:
        """Run a command of flexo's, and show the part of its output about the present."""
        self._teller.say(f"$ flexo {' '.join(words)}", "bold")
        for line in self._lab.run(["flexo", *words]).stdout.splitlines():
            if not line.strip():
                return
            self._teller.show(line.rstrip())

    def _why(self, name: str) -> str:
        """flexod's sentence on who sums the job's gradients."""
        told = self._lab.run(["flexo", "why", str(self._seen.jobs[name])], check=False).stdout
        return next((line for line in told.splitlines() if "sum its gradients" in line), "")

    def _told(self, name: str) -> dict[str, Any]:
        """What `flexo jobs` says of who sums the job's gradients; {} while it says nothing."""
        with suppress(LabCommandFailed, ValueError):
            for job in json.loads(self._lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]:
                if job["job_id"] == self._seen.jobs[name]:
                    return dict(job["aggregation"] or {})
        return {}

    def _pool(self) -> list[dict[str, Any]]:
        """The attached Aggregators, as `flexo status` has them."""
        with suppress(LabCommandFailed, ValueError):
            return list(
                json.loads(self._lab.run(["flexo", "status", "--json"]).stdout)["pool"]["aggregators"]
            )
        return []

    def _attached(self) -> int:
        return len(self._pool())

    def _shares_with_a_living_one(self, name: str) -> bool:
        living = {each["name"] for each in self._pool()}
        return all(each["name"] in living for each in self._told(name).get("aggregators", ()))

    # --- steps -----------------------------------------------------------------------------------------

    def _counting(self, name: str) -> tuple[Line, ...]:
        return joined(read_lines(self._out / name))

    def _wait_for_steps(self, what: str, steps: int) -> None:
        """Wait until each job has taken so many more steps."""
        before = {name: self._last(name) for name in JOBS}
        self._wait(what, lambda: all(self._last(name) >= before[name] + steps for name in JOBS))

    def _last(self, name: str) -> int:
        return max((line.step for line in self._counting(name)), default=0)

    def _at_a_random_instant(self) -> None:
        time.sleep(self._dice.uniform(*self._plot.instant_s))

    def _wait(self, what: str, happened: Callable[[], object]) -> None:
        wait_until(self._teller, what, happened, _LONG_S)
