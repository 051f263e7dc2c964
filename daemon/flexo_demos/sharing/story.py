"""Plays the story of two jobs on one device: alone, together, moved, paused, and gone on.

The devices are pretended: trainings compute on CPUs. Slurm, flexod, the coordinators, the control law and the
layer in the trainings are the real ones.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from flexo_demos.elastic.plot import EXAMPLE
from flexo_demos.elastic.story import wait_until
from flexo_demos.elastic.tell import Teller
from flexo_demos.sharing.steps import Step, read_steps
from flexo_lab import Lab, LabCommandFailed

GUEST = "opportunistic"
HOSTS = ("guarantee-1", "guarantee-2")
_LONG_S = 180.0
"""The longest time for any event of the story."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Sizes of the story."""

    nodes: int = 2
    alone_steps: int = 150
    """Steps of the guarantee jobs before anybody shares their GPUs."""
    together_s: float = 40.0
    guest_epochs: int = 14
    guest_width: int = 24
    """Channels of the other job's model. Its operations are short, because no gap is filled that is shorter
    than a hundred times what an operation may work into the guarantee job's next step."""
    guest_pause_s: float = 0.1
    host_width: int = 96
    host_pause_s: float = 0.15
    """Pause of the guarantee jobs between two steps, as for slow storage. The other job fills these gaps."""
    rigid_s: int = 15


@dataclass(slots=True)
class Seen:
    """What the demo has seen. The report uses it even if the story fails."""

    slurm_version: str = ""
    jobs: dict[str, int] = field(default_factory=dict)
    host: str = ""
    """The guarantee job whose GPU is shared, by its name."""
    alone: tuple[float, float] = (0.0, 0.0)
    together: tuple[float, float] = (0.0, 0.0)
    host_ended_at: float = 0.0
    moved_at: float = 0.0
    """When the guest trained on a GPU of its own."""
    rigid_at: float = 0.0
    rigid_started_at: float = 0.0
    paused_at: float = 0.0
    went_on_at: float = 0.0
    ended_as: str = ""


class Story:
    """Plays the plot on a lab. `out`: folder of logs."""

    def __init__(self, lab: Lab, out: Path, plot: Plot, seen: Seen, teller: Teller) -> None:
        self._lab, self._out, self._plot, self._seen, self._teller = lab, out, plot, seen, teller
        self._folders = lab.layout.sharing

    def play(self) -> None:
        """Play it. Raises StoryFailed, LabError."""
        self._seen.slurm_version = self._slurm_version()
        with self._coordinators():
            self._alone()
            self._together()
            self._move()
            self._pause()
            self._end()

    # --- the scenes ------------------------------------------------------------------------------------

    def _alone(self) -> None:
        """Both guarantee jobs fill the cluster and train alone."""
        for name in HOSTS:
            script = ["--pause", str(self._plot.host_pause_s), "--width", str(self._plot.host_width)]
            script += ["--epochs", "100000"]
            self._submit(name, ["--gpus-per-task=1", "--elastic-cohost"], script)
        self._teller.show(
            "each has a GPU, keeps it busy for a part of the time, and lets others use the rest"
        )
        self._wait("both train alone", lambda: self._trained(HOSTS, self._plot.alone_steps))
        last = min(self._steps(name)[-1].ended for name in HOSTS)
        first = max(self._steps(name)[self._plot.alone_steps // 3].ended for name in HOSTS)
        self._seen.alone = (first, last)

    def _together(self) -> None:
        """An opportunistic job comes. All GPUs are held, so it gets one of theirs."""
        self._submit(GUEST, ["--elastic-opportunistic=1-1"], self._guest_script())
        self._teller.show("no GPU is idle; its base has CPUs only, and flexod looks for a GPU to share")
        self._wait("it has a shared GPU", self._is_guest)
        self._teller.say(
            f"It trains on the GPU of {self._seen.host}: the coordinator opens its gate in the gaps"
        )
        self._wait("it has trained", lambda: self._trained((GUEST,), 3))
        self._show_why()
        began = time.time()
        time.sleep(self._plot.together_s)
        self._seen.together = (began, time.time())

    def _guest_script(self) -> list[str]:
        plot = self._plot
        script = ["--epochs", str(plot.guest_epochs), "--width", str(plot.guest_width)]
        return [*script, "--pause", str(plot.guest_pause_s)]

    def _move(self) -> None:
        """The guarantee job ends, and the other job moves to the GPU as its own."""
        self._teller.say(f"$ scancel {self._seen.jobs[self._seen.host]}", "bold")
        self._teller.show("the guarantee job ends; what it shared is nobody's now")
        self._seen.host_ended_at = time.time()
        self._lab.run(["scancel", str(self._seen.jobs[self._seen.host])])
        self._wait("the other job has a GPU of its own", lambda: self._grant_kind() == "own")
        since = time.time()
        self._wait("it trains there", lambda: self._last_step(GUEST) > since)
        self._seen.moved_at = self._first_step_after(GUEST, since)
        self._teller.say("The opportunistic job trains on a GPU of its own")

    def _pause(self) -> None:
        """An ordinary job takes the GPU. Below its minimum, the opportunistic job pauses."""
        seconds = self._plot.rigid_s
        self._teller.say("$ sbatch --gpus-per-task=1 ordinary.sbatch", "bold")
        self._seen.rigid_at = time.time()
        options = [
            "-n",
            "1",
            "--gpus-per-task=1",
            "-c",
            "1",
            "--output=/dev/null",
            "--exclude",
            self._node_held(),
        ]
        rigid = self._sbatch([*options, "--wrap", f"sleep {seconds}"])
        self._wait("the ordinary job starts", lambda: self._state(rigid) == "R")
        self._seen.rigid_started_at = time.time()
        self._wait("the opportunistic job pauses", lambda: self._told()["paused"])
        self._seen.paused_at = time.time()
        self._teller.say("The opportunistic job pauses: its base keeps the state, and holds no GPU")
        self._wait("the ordinary job ends", lambda: self._state(rigid) != "R")
        since = time.time()
        self._wait("the opportunistic job goes on", lambda: self._last_step(GUEST) > since)
        self._seen.went_on_at = self._first_step_after(GUEST, since)
        self._teller.say("It goes on where it was")

    def _end(self) -> None:
        self._wait(
            "the opportunistic job ends", lambda: self._state(self._seen.jobs[GUEST]) in ("", "CD", "F")
        )
        shown = self._lab.run(["scontrol", "show", "job", str(self._seen.jobs[GUEST]), "--oneliner"]).stdout
        self._seen.ended_as = shown.partition(" JobState=")[2].partition(" ")[0]
        self._teller.say(f"The opportunistic job has ended: {self._seen.ended_as}")

    # --- coordinators ----------------------------------------------------------------------------------

    @contextmanager
    def _coordinators(self) -> Iterator[None]:
        """A coordinator on each node, with one pretended device."""
        command = [sys.executable, "-m", "horovod_elastic", "share", "coordinator", "--pretend", "gpu0:16"]
        running = [
            subprocess.Popen([*command, "--folder", str(self._folders / node)], stdin=subprocess.DEVNULL)
            for node in self._lab.spec.train_names
        ]
        try:
            yield
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)

    def _is_guest(self) -> bool:
        """Whether a coordinator has let the opportunistic job in; notes beside which job."""
        for node in self._lab.spec.train_names:
            with suppress(OSError, ValueError):
                gpu = json.loads((self._folders / node / "status.json").read_text())["gpus"][0]
                if gpu["opportunistic"] and gpu["guarantee"]:
                    ids = {str(job_id): name for name, job_id in self._seen.jobs.items()}
                    self._seen.host = ids[gpu["guarantee"]["job"]]
                    return True
        return False

    # --- Slurm and flexod ------------------------------------------------------------------------------

    def _submit(self, name: str, request: list[str], script: list[str]) -> None:
        self._teller.say(f"$ sbatch -n 1 -c 1 {' '.join(request)} {name}.sbatch", "bold")
        flexo = Path(sys.executable).parent / "flexo"
        words = [str(flexo), "run", sys.executable, str(EXAMPLE / "train_ddp.py")]
        words += ["--log-dir", str(self._out / name), *script]
        batch = self._out / f"{name}.sbatch"
        where = f"export FLEXO_SHARING_FOLDER='{self._folders}/%N'\n"
        batch.write_text("#!/bin/bash\n" + where + shlex.join(words) + "\n")
        output = ["--job-name", name, "--output", str(self._out / f"{name}.out"), "--open-mode=append"]
        self._seen.jobs[name] = self._sbatch(["-n", "1", "-c", "1", *request, *output, str(batch)])

    def _sbatch(self, words: list[str]) -> int:
        return int(self._lab.run(["sbatch", "--parsable", *words]).stdout.split(";")[0])

    def _state(self, job_id: int) -> str:
        """The state of a job as squeue shows it; "" once it is gone."""
        asked = ["squeue", "--noheader", "--format=%t", f"--jobs={job_id}"]
        return self._lab.run(asked, check=False).stdout.strip()

    def _slurm_version(self) -> str:
        return self._lab.run(["sinfo", "--version"]).stdout.split()[-1]

    def _told(self) -> dict[str, object]:
        """What flexod tells of the opportunistic job."""
        with suppress(LabCommandFailed, ValueError):
            jobs = json.loads(self._lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
            found = [job for job in jobs if job["job_id"] == self._seen.jobs[GUEST]]
            return dict(found[0]) if found else {"paused": False, "grants": []}
        return {"paused": False, "grants": []}

    def _grant_kind(self) -> str:
        """`shared`, `own` or "", by the satellites that train."""
        grants = [grant for grant in self._told()["grants"] if grant["state"] == "training"]  # type: ignore[attr-defined]
        return "" if not grants else "shared" if grants[0]["shared_gpus"] else "own"

    def _node_held(self) -> str:
        """The node of the guarantee job that still runs."""
        name = next(each for each in HOSTS if each != self._seen.host)
        asked = ["squeue", "--noheader", "--format=%N", f"--jobs={self._seen.jobs[name]}"]
        return self._lab.run(asked).stdout.strip()

    def _show_why(self) -> None:
        for line in self._lab.run(["flexo", "why", str(self._seen.jobs[GUEST])]).stdout.splitlines():
            if not line.strip():
                return
            self._teller.show(line)

    # --- steps -----------------------------------------------------------------------------------------

    def _steps(self, name: str) -> tuple[Step, ...]:
        return read_steps(self._out / name)

    def _trained(self, names: tuple[str, ...], steps: int) -> bool:
        return all(len(self._steps(name)) >= steps for name in names)

    def _last_step(self, name: str) -> float:
        steps = self._steps(name)
        return steps[-1].ended if steps else 0.0

    def _first_step_after(self, name: str, at: float) -> float:
        return next(step.ended for step in self._steps(name) if step.ended > at)

    def _wait(self, what: str, happened: Callable[[], object]) -> None:
        wait_until(self._teller, what, happened, _LONG_S)
