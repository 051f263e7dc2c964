"""The batch script of a satellite: which of Slurm's words reach the job's output, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from horovod_elastic.platforms.slurm.job_control import SATELLITE
from horovod_elastic.platforms.slurm.satellite_script import Filter

pytestmark = pytest.mark.processes

BOUND_S = 60.0
OF_AN_END = """\
slurmstepd: error: *** STEP 26.0 ON t3 CANCELLED AT 2026-11-23T18:58:41 ***
slurmstepd-t3: error: *** STEP 26.0 ON t3 CANCELLED AT 2026-11-23T18:58:41 DUE TO PREEMPTION ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: got SIGCONT
srun: forcing job termination
srun: error: t3: task 0: Exited with exit code 143
srun: error: t3: task 0: Terminated
"""
REAL = """\
slurmstepd: error: *** STEP 26.0 ON t3 CANCELLED AT 2026-11-23T18:58:41 DUE TO TIME LIMIT ***
slurmstepd: error: *** JOB 26 ON t3 CANCELLED AT 2026-11-23T18:58:41 DUE TO NODE FAILURE, SEE LOG ***
slurmstepd: error: Detected 1 oom_kill event in StepId=26.0. Some of the step tasks have been OOM Killed.
srun: error: t3: task 0: Out Of Memory
srun: error: t3: task 0: Exited with exit code 1
srun: error: Unable to create step for job 26: Invalid generic resource (gres) specification
Traceback (most recent call last):
ValueError: slurmstepd: error: *** STEP 26.0 ON t3 CANCELLED AT 2026-11-23T18:58:41 ***
"""


def test_every_byte_that_is_not_slurms_word_on_an_end_is_passed_on_and_in_order() -> None:
    """However the stream is cut into pieces."""
    text = "".join(a + b for a, b in zip(OF_AN_END.splitlines(True), REAL.splitlines(True), strict=False))
    text += REAL.splitlines(True)[-1] + "a bar 10%\ra bar 20%\rsrun is what I say\nsrun: "
    data = text.encode()
    for size in (1, 2, 7, 100, len(data)):
        sorts = Filter()
        passed = b"".join(sorts.feed(data[at : at + size]) for at in range(0, len(data), size))
        passed += sorts.end()
        assert b"".join(sorts.held).decode() == OF_AN_END
        left = [line for line in text.splitlines(True) if line not in OF_AN_END.splitlines(True)]
        assert passed.decode() == "".join(left)


def test_progress_bars_and_half_lines_are_not_held_back() -> None:
    sorts = Filter()
    assert sorts.feed(b"epoch 1:  10%") == b"epoch 1:  10%"
    assert sorts.feed(b"\repoch 1:  20%") == b"\repoch 1:  20%"
    assert sorts.feed(b"\nsl") == b"\n"
    assert sorts.feed(b"ow") == b"slow"
    assert sorts.feed(b"\xff\xfe\n") == b"\xff\xfe\n"


def satellite(step: str, **how: object) -> subprocess.Popen[str]:
    """One whose srun is this shell script."""
    command = [sys.executable, "-I", "-S", str(SATELLITE), "sh", "-c", step]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload,no-any-return]


SAYS = f"cat >&2 <<'EOF'\n{OF_AN_END}{REAL}EOF\n"


@pytest.mark.parametrize(("code", "told"), [(0, REAL), (3, REAL + OF_AN_END), (143, REAL + OF_AN_END)])
def test_slurms_words_are_dropped_after_a_departure_in_order_and_kept_after_a_failure(
    code: int, told: str
) -> None:
    process = satellite(f"{SAYS}exit {code}")
    _, said = process.communicate(timeout=BOUND_S)
    assert (process.returncode, said) == (code, told)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_satellite_that_is_to_end_ends_with_0_and_without_a_word(
    number: signal.Signals, tmp_path: Path
) -> None:
    """SIGUSR1 is the leader's word, and ends the step; after SIGTERM from Slurm the step ends by itself."""
    there = tmp_path / "there"
    step = f"trap 'cat >&2 {tmp_path}/words; exit 143' TERM\necho $$ > {there}\nwhile :; do sleep 0.1; done"
    (tmp_path / "words").write_text(OF_AN_END)
    process = satellite(step)
    deadline = time.monotonic() + BOUND_S
    while not (there.exists() and there.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, number)
    if number == signal.SIGTERM:
        os.kill(int(there.read_text()), number)
    _, said = process.communicate(timeout=BOUND_S)
    assert (process.returncode, said) == (0, "")


def test_output_that_cannot_be_written_does_not_end_the_step() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-I", "-S", str(SATELLITE), "sh", "-c", "echo x >&2; sleep 0.2; exit 4"]
        assert subprocess.run(command, stderr=full, timeout=BOUND_S, check=False).returncode == 4
