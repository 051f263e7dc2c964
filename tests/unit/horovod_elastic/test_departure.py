"""A worker that leaves does what its script does at its end, and nothing that only costs time."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.processes

BEFORE = """
    import atexit, sys
    from horovod_elastic.worker import departure
    departure.install()

    class Model:
        def __del__(self):
            sys.__stdout__.write("taken apart\\n")

    model = Model()
    atexit.register(print, "as registered")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(BEFORE) + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)


def test_what_the_script_does_at_its_end_is_done_and_python_ends_at_once() -> None:
    done = run("""
        try:
            print("leaves", end=" ")
            departure.leave()
        finally:
            print("finally")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaves finally\nas registered\n", "")


def test_a_worker_that_ends_otherwise_ends_as_ever() -> None:
    done = run("sys.exit(3)")
    assert (done.returncode, done.stdout) == (3, "as registered\ntaken apart\n")


def test_a_script_that_fails_while_it_leaves_has_failed() -> None:
    done = run("""
        try:
            departure.leave()
        finally:
            raise RuntimeError("no disk")
    """)
    assert done.returncode == 1
    assert "RuntimeError: no disk" in done.stderr


def test_output_that_nobody_reads_any_more_does_not_keep_it() -> None:
    done = run("""
        import os
        print("lost")
        os.close(1)
        departure.leave()
    """)
    assert done.returncode == 0
