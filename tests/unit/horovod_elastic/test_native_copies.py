"""Copies of a library that find their own symbols first, and the ends of native threads and of processes."""

from __future__ import annotations

import _ctypes
import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from horovod_elastic.core.native import native_copies

pytestmark = pytest.mark.processes

LIBRARY = Path(_ctypes.__file__ or "")  # any shared library will do


def test_a_marked_library_differs_in_a_flag_and_loads(tmp_path: Path) -> None:
    image = LIBRARY.read_bytes()
    marked = native_copies.own_symbols_first(image)
    changed = [(old, new) for old, new in zip(image, marked, strict=True) if old != new]
    assert [new ^ old for old, new in changed] in ([2], [16])  # DF_SYMBOLIC, or DT_SYMBOLIC for nothing
    copy = tmp_path / "copy.so"
    copy.write_bytes(marked)
    ctypes.CDLL(str(copy))


@pytest.mark.parametrize("image", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100)])
def test_what_cannot_be_marked_is_said(image: bytes) -> None:
    with pytest.raises(ValueError, match="64-bit little-endian ELF"):
        native_copies.own_symbols_first(image)


def run(program: str) -> subprocess.CompletedProcess[str]:
    begin = "import ctypes, sys, threading, time\nfrom horovod_elastic.core.native import native_threads\n"
    return subprocess.run(
        [sys.executable, "-c", begin + program], capture_output=True, text=True, timeout=120, check=False
    )


TERMINATE = """
terminate = ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev
asked = []
def expendable(name):
    asked.append(name)
    return name == "expendable"
terminations = native_threads.Terminations(expendable)
def throw():
    native_threads.name_this_thread("expendable")
    terminate()
threading.Thread(target=throw, daemon=True).start()
while not asked:
    time.sleep(0.01)
time.sleep(0.1)
print(asked, native_threads.name_of_this_thread() != "expendable", flush=True)
"""


def test_an_expendable_thread_ends_alone() -> None:
    done = run(TERMINATE + "terminations.close()\nsys.exit(4)")
    assert (done.returncode, done.stdout) == (4, "['expendable'] True\n")


@pytest.mark.parametrize("last", ["terminate()", "terminations.close()\nthrow()"])
def test_any_other_thread_aborts_the_process_as_ever(last: str) -> None:
    done = run(TERMINATE + last)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "['expendable'] True\n")


def test_a_thread_that_throws_at_the_very_end_stands_still() -> None:
    last = "threading.Thread(target=throw, daemon=True).start()\ntime.sleep(0.2)\nsys.exit(4)"
    done = run(f"{TERMINATE}terminations.close_and_block()\n{last}")
    assert done.returncode == 4


@pytest.mark.parametrize("code", [0, 7])
def test_a_process_ends_without_destructors_with_its_output_and_exit_code(code: int) -> None:
    done = run(f"""
libc = ctypes.CDLL(None)
libc["__cxa_atexit"](libc.abort, None, None)  # stands for a destructor that does harm
native_threads.exit_without_destructors()
libc.printf(b"kept")
sys.exit({code})
""")
    assert (done.returncode, done.stdout) == (code, "kept")
