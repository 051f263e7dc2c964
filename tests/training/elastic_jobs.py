"""Elastic jobs on a lab as the training tests see them: submitted with sbatch, watched through their logs."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from training_logs import Event, TrainingLogs

from flexo_bench import native_horovod
from flexo_lab import Lab

SCRIPTS = Path(__file__).resolve().parent / "scripts"
BOUND_S = 220.0
"""How long anything may take: the machine may be busy. Tests ask for order, not for speed."""

TRACE = "FLEXO_TRACE=$PWD/trace"
"""Has the job's leaders write down what they do."""

SOMEBODY = "games"
"""A user of this machine without any rights."""

Submit = Callable[..., "Job"]
"""The fixture `submit`."""


@dataclass(frozen=True)
class Job(TrainingLogs):
    """One submitted job."""

    lab: Lab
    job_id: int
    user: str | None = None

    def output(self) -> str:
        """What it and its satellites have printed."""
        path = self.folder / "output.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def shown(self) -> str:
        """What scontrol says of it."""
        return self.lab.run(["scontrol", "show", "job", str(self.job_id), "--oneliner"]).stdout

    def findings(self) -> str:
        """What is known of a job that does not go on: output, state, last events, stacks of its processes."""
        now = time.time()
        last = [
            f"{event['time'] - now:.1f} s: {event['event']} by {event['log']}, step {event.get('step')}, "
            f"rank {event.get('rank')} of {event.get('size')}"
            for event in self.events()[-20:]
        ]
        return "\n".join([self.output()[-6000:], self.shown(), *last, *map(_stack, self.processes())])

    def satellites(self) -> list[tuple[int, str]]:
        """(job id, node) of satellites that Slurm still has in its queue."""
        listed = self.lab.run(["squeue", "--noheader", "--format=%i|%N|%k"]).stdout
        rows = [line.split("|", 2) for line in listed.splitlines()]
        return [(int(number), node) for number, node, tag in rows if f"base={self.job_id} " in tag]

    def wait_until(self, what: str, condition: Callable[[], object], bound_s: float = BOUND_S) -> None:
        """Wait for `condition`; what it printed stands in the failure."""
        deadline = time.monotonic() + bound_s
        while not condition():
            ended = self.exit_code() if time.monotonic() < deadline else -1
            if ended is not None and not condition():
                raise AssertionError(f"waiting for {what}; job: {ended}\n{self.findings()}")
            time.sleep(0.2)

    def wait_for_size(self, size: int, after: float = 0.0) -> None:
        """Wait until it trains with `size` workers: each has committed something in that generation."""
        self.wait_until(f"{size} workers", lambda: len(self.committing(size, after)) == size)

    def exit_code(self) -> int | None:
        """Its exit code if it has ended, 128 + signal for one that a signal ended; None before."""
        shown = self.shown()
        if re.search(r"JobState=(PENDING|RUNNING|SUSPENDED|COMPLETING|CONFIGURING)", shown):
            return None
        match = re.search(r" ExitCode=(\d+):(\d+)", shown)
        assert match is not None, shown
        return int(match[1]) or (128 + int(match[2]) if int(match[2]) else 0)

    def wait(self, bound_s: float = BOUND_S) -> int:
        """Wait for its end; its exit code."""
        deadline = time.monotonic() + bound_s
        while (code := self.exit_code()) is None:
            assert time.monotonic() < deadline, f"job does not end\n{self.findings()}"
            time.sleep(0.3)
        return code

    def check_done(self, workers: int) -> list[Event]:
        """It ended with 0 and left nothing; `workers` workers got to the end, with the same parameters."""
        assert self.wait() == 0, self.output()[-6000:]
        self.check_nothing_left()
        done = self.events("done")
        assert sorted(event["rank"] for event in done) == list(range(workers)), done
        assert len({event["parameters"] for event in done}) == 1, done
        return done

    def check_finished(self) -> list[Event]:
        """As `check_done`, for an elastic script: all who trained at last got to the end, equally far."""
        assert self.wait() == 0, self.output()[-6000:]
        done = self.check_done(self.events("enter")[-1]["size"])
        assert len({event["steps"] for event in done}) == 1, done
        return done

    def check_nothing_left(self) -> None:
        """No satellite in the queue and none of its processes on the machine, within a while."""
        deadline = time.monotonic() + BOUND_S
        while self.satellites() or self.processes():
            assert time.monotonic() < deadline, f"left: {self.satellites()} {self.processes()}"
            time.sleep(0.3)

    def cancel(self) -> None:
        """scancel."""
        self.lab.run(["scancel", str(self.job_id)])


def submit(
    lab: Lab,
    folder: Path,
    script: str,
    *arguments: str,
    options: Sequence[str] = ("-n", "1", "--gpus-per-task=1"),
    elastic: str = "",
    user: str | None = None,
    environment: Iterable[str] = (),
    launch: str = "",
) -> Job:
    """Submit a job that runs one of the scripts under flexo run, as a user would."""
    logs = folder / "logs"
    logs.mkdir()
    if user:
        shutil.chown(logs, user)
    flexo, python, source = (
        shlex.quote(str(path))
        for path in (Path(sys.executable).parent / "flexo", sys.executable, SCRIPTS / script)
    )
    launch = launch or f'{flexo} run {python} {source} --log-dir {logs} "$@"'
    settings = [*native_horovod.exports(), *environment]
    (folder / "job.sbatch").write_text(
        "#!/bin/bash\n" + "".join(f"export {setting}\n" for setting in settings) + f"{launch}\n"
    )
    command = ["sbatch", "--parsable", f"--output={folder}/output.txt", *options]
    if elastic:
        command.append(f"--elastic={elastic}")
    answer = lab.run([*command, f"{folder}/job.sbatch", *arguments], user=user, cwd=folder).stdout
    return Job(folder, lab, int(answer.split(";")[0]), user)


def take_nodes(lab: Lab, nodes: int, gpus: int, seconds: int, *options: str) -> int:
    """An ordinary job of a higher tier that wants `gpus` GPUs on each of `nodes` nodes; its id."""
    request = ("-N", str(nodes), f"--gpus-per-node={gpus}", *options, "--wrap", f"sleep {seconds}")
    return int(lab.run(["sbatch", "--parsable", "--output=/dev/null", *request]).stdout)


def wait_for_start(job: Job, other: int) -> None:
    """Wait until an ordinary job has started."""

    def started() -> bool:
        state = job.lab.run(["squeue", "--noheader", "--format=%t", f"--jobs={other}"], check=False).stdout
        return state.strip() not in ("PD", "CF")

    job.wait_until(f"job {other} to start", started)


def went_on(job: Job, since: float) -> bool:
    """Whether a new generation has begun since then."""
    return any(event["time"] > since for event in job.events("enter"))


def base_node(job: Job) -> str:
    """The node that its batch script runs on."""
    match = re.search(r" BatchHost=(\S+)", job.shown())
    assert match is not None
    return match[1]


def agents(job: Job, *, but: str | None = None) -> list[psutil.Process]:
    """The agents' own processes (not the srun that started them); without those started with `but`."""
    found = []
    for pid in job.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            words = process.cmdline()
            if "agent" in words and "srun" not in words[0] and (but is None or but not in words):
                found.append(process)
    return found


def agent_called(job: Job, name: str) -> psutil.Process:
    """The process of the agent that is called NODE-JOB."""
    found = {}
    for process in agents(job):
        with contextlib.suppress(psutil.NoSuchProcess, KeyError):  # it is gone, or just ending
            its = process.environ()
            found[f"{its['SLURMD_NODENAME']}-{its['SLURM_JOB_ID']}"] = process
    return found[name]


def agents_of_satellites(job: Job) -> list[psutil.Process]:
    """Those of them that do not belong to the base."""
    return agents(job, but="--base")


def _stack(pid: int) -> str:
    """The stacks of a process's Python threads, as far as they can be read."""
    command = [str(Path(sys.executable).parent / "py-spy"), "dump", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout or f"process {pid}: {done.stderr.strip()}"
