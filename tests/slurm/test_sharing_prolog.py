"""slurm_plugin/prolog_sharing.example in a real Slurm: a second job ends before another one gets its GPU.

The GPUs are pretended, and so is the work of the second job. Slurm, the Prolog, the coordinator and the
supervisor are real.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from conftest import LabFactory, cancel_all_jobs
from test_shared_gpus import USER
from thorough import rare

from flexo_lab import Lab
from horovod_elastic.sharing import status
from horovod_elastic.sharing.introduction import SOCKET
from horovod_elastic.sharing.supervisor import ENDED

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

_T = TypeVar("_T")
NODE, GPUS = "t1", (0, 1)
SHARE = [sys.executable, "-m", "horovod_elastic", "share"]
WITHIN_S = 0.8
"""How long the Prolog waits for the end of second jobs."""
NOISE_S = 1.5
"""What a busy machine adds to the second that the Prolog may wait."""
SECOND_JOB = """
import os, time
from horovod_elastic.sharing import environment
from horovod_elastic.sharing.layer.link import Link
from horovod_elastic.sharing.pages import OpportunisticPage, Page
page = Page.make("opportunistic")
page.words[OpportunisticPage.STARTED] = 1
if os.fork():
    Link(environment.read(os.environ), page, lambda _: None, lambda _: None).start()
while True:
    time.sleep(1)
"""
"""A job of two processes. One introduces itself to the coordinator, as the layer does."""
ORDINARY = """#!/bin/sh
for process in {processes}; do
  sed -n "s/^State:[[:space:]]*/$process /p" /proc/$process/status 2>/dev/null
done >{out}.new
echo "gpus $SLURM_JOB_GPUS" >>{out}.new
mv {out}.new {out}
exec sleep 600
"""
"""An ordinary job. Its first process notes which of these processes there are, and in which state."""


@pytest.fixture(scope="module")
def prolog_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """A node with two GPUs that can be shared. Its Prolog notes job, exit code, beginning and end."""
    lab = make_lab(nodes=1, gpus_per_node=len(GPUS), infer_nodes=0, sharing=True, flexod=False)
    prolog = lab.layout.prolog
    sites = prolog.rename(prolog.with_name("prolog-of-the-site"))
    prolog.write_text(
        f"#!/bin/sh\nbegan=$(date +%s.%N)\n{sites}\ncode=$?\n"
        f'echo "$SLURM_JOB_ID $code $began $(date +%s.%N)" >>{lab.directory}/prologs\nexit $code\n'
    )
    prolog.chmod(0o755)
    yield lab
    lab.down()


@pytest.fixture
def quiet(prolog_lab: Lab) -> Iterator[Lab]:
    """That lab without jobs."""
    yield prolog_lab
    cancel_all_jobs(prolog_lab)


@contextmanager
def coordinator(lab: Lab) -> Iterator[subprocess.Popen[bytes]]:
    """The coordinator of the node, with a pretended device for each GPU."""
    declared = [word for gpu in GPUS for word in ("--pretend", f"gpu{gpu}:16")]
    folder = lab.layout.sharing / NODE
    process = subprocess.Popen([*SHARE, "coordinator", "--folder", str(folder), *declared])
    try:
        wait((folder / SOCKET).exists, "the coordinator listens")
        yield process
    finally:
        process.kill()
        process.wait()
        (folder / SOCKET).unlink(missing_ok=True)


@dataclass
class SecondJob:
    """An opportunistic job. `processes`: without its supervisor."""

    supervisor: subprocess.Popen[bytes]
    processes: tuple[int, ...]


@contextmanager
def second_job(lab: Lab, gpu: int) -> Iterator[SecondJob]:
    """An opportunistic job that has this GPU."""
    folder = lab.layout.sharing / NODE
    command = ["opportunistic", "--gpu", f"gpu{gpu}", "--folder", str(folder), "--"]
    supervisor = subprocess.Popen([*SHARE, *command, sys.executable, "-c", SECOND_JOB])
    try:
        first = wait(lambda: member(folder, gpu), "the second job has the GPU")
        children = Path(f"/proc/{first}/task/{first}/children")
        forked = wait(children.read_text, "its other process is there")
        yield SecondJob(supervisor, (first, *map(int, forked.split())))
    finally:
        supervisor.terminate()  # it ends all processes of its job
        supervisor.wait()


def member(folder: Path, gpu: int) -> int:
    """The process that has the GPU as its second job; 0 for none."""
    found = status.read(folder).gpu(f"gpu{gpu}")
    return found.opportunistic.pid if found and found.opportunistic else 0


def wait(look: Callable[[], _T], what: str, bound_s: float = 60) -> _T:
    """What `look` returns once that is something."""
    end = time.monotonic() + bound_s
    while True:
        try:
            if found := look():
                return found
        except (status.NoStatus, OSError):
            pass
        assert time.monotonic() < end, f"in vain for {bound_s} s: {what}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Started:
    """An ordinary job that runs. `running`: those of the processes that it looked for that had not ended."""

    gpus: str
    running: set[int]
    prolog_s: float
    node: str

    @property
    def waited_in_vain(self) -> bool:
        """Whether its Prolog waited as long as it may: the node was too busy for an end in time."""
        return self.prolog_s > WITHIN_S


def start(lab: Lab, *options: str, looking_for: tuple[int, ...] = ()) -> Started:
    """Start an ordinary job of another user. Its Prolog has to succeed."""
    out = lab.scratch / f"started-{time.monotonic_ns()}"
    script = ORDINARY.format(processes=" ".join(map(str, looking_for)) or "none", out=out)
    command = ["sbatch", "--parsable", "-o", "/dev/null", "-n1", "-c1", *options]
    job_id = lab.run(command, user=USER, stdin=script).stdout.strip()
    wait(out.exists, f"job {job_id} runs")
    *states, gpus = (line.split(maxsplit=1) for line in out.read_text().splitlines())
    prologs = [line.split() for line in (lab.directory / "prologs").read_text().splitlines()]
    (code, began, ended) = next(words for number, *words in prologs if number == job_id)
    assert code == "0"
    node = lab.run(["sinfo", "--noheader", "--format=%T"]).stdout.strip()
    running = {int(process) for process, state in states if not state.startswith("Z")}
    return Started("".join(gpus[1:]), running, float(ended) - float(began), node)


def test_the_second_job_is_gone_when_the_first_process_of_an_ordinary_job_starts(quiet: Lab) -> None:
    with coordinator(quiet), second_job(quiet, 0) as first, second_job(quiet, 1) as second:
        jobs = dict(zip("01", (first, second), strict=True))
        every = (*first.processes, *second.processes)
        one = start(quiet, "--gpus-per-task=1", looking_for=every)
        evicted, spared = jobs.pop(one.gpus), *jobs.values()
        assert one.running >= set(spared.processes)
        assert one.running == set(spared.processes) or one.waited_in_vain
        assert evicted.supervisor.wait(timeout=10) == ENDED
        assert one.prolog_s < 1 + NOISE_S
        other = start(quiet, "--gres=gpu:1", looking_for=every)
        assert other.gpus != one.gpus
        assert not other.running or other.waited_in_vain


@pytest.mark.parametrize("how", ["hangs", rare("was killed"), "was never there"])
def test_a_coordinator_that_does_not_answer_costs_a_second_at_most_and_no_node(quiet: Lab, how: str) -> None:
    with coordinator(quiet) as process:
        if how == "hangs":
            process.send_signal(signal.SIGSTOP)
        else:
            process.kill()
            process.wait()
        if how == "was never there":
            (quiet.layout.sharing / NODE / SOCKET).unlink()
        job = start(quiet, "--gpus-per-task=2")
    assert job.gpus == "0,1"
    assert job.prolog_s < (1 if how == "hangs" else 0) + NOISE_S
    assert job.node == "mixed"


def test_a_job_without_gpus_ends_nobody_and_does_not_wait(quiet: Lab) -> None:
    with coordinator(quiet) as process, second_job(quiet, 0) as second:
        process.send_signal(signal.SIGSTOP)
        job = start(quiet, looking_for=second.processes)
        assert job.running == set(second.processes)
    assert (job.gpus, job.node) == ("", "mixed")
    assert job.prolog_s < 0.9
