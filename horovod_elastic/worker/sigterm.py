"""SIGTERM on a satellite: it announces the end of the node's loan, not the end of training.

The cluster signals all processes of a satellite, or those only that it started itself. The agent passes the
word on to the leader, and workers leave at the next mini-batch boundary; until then neither they nor the
processes that load their data may end. Programs that a script starts get the default back, and whoever starts
a process can still terminate it. On the base, SIGTERM means what it always means.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import util
from types import FrameType

SATELLITE = "FLEXO_SATELLITE"
"""Set by the agent of a satellite for everything that runs there."""
_OUTLIVED_BY = "FLEXO_OUTLIVES_SIGTERM"
"""Pid of the process that the agent started, or the first Python below it."""

_training_process = 0


def prepare() -> None:
    """At the start of a Python process. Its first is the training process, as far as one can know."""
    if SATELLITE not in os.environ:
        return
    if _is_child_of_multiprocessing():
        _heed_the_parent_only()
    elif _OUTLIVED_BY not in os.environ:
        os.environ[_OUTLIVED_BY] = str(os.getpid())
        outlive()
    # Processes that are forked run this before their own work.
    util.register_after_fork(_heed_the_parent_only, lambda heed: heed())


def outlive() -> None:
    """In a training process on a satellite, whatever handler the script has set."""
    global _training_process
    if SATELLITE in os.environ and threading.current_thread() is threading.main_thread():
        _training_process = os.getpid()
        signal.signal(signal.SIGTERM, _outlive)


def _outlive(signum: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which programs that the script starts would inherit. Processes that it forks may end."""
    if os.getpid() != _training_process:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _is_child_of_multiprocessing() -> bool:
    """Started by it in any other way than by forking: spawn, or the server that forks for it."""
    return any("--multiprocessing-fork" in word or "multiprocessing.fork" in word for word in sys.orig_argv)


def _heed_the_parent_only() -> None:
    """In a process of multiprocessing: die of a SIGTERM that the parent sends, and of no other."""
    if signal.getsignal(signal.SIGTERM) is _outlive:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_the_parents_word, name="flexo-sigterm", daemon=True).start()


def _wait_for_the_parents_word() -> None:
    while True:
        sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
        parent = multiprocessing.parent_process()
        if sender in (os.getppid(), os.getpid()) or (parent is not None and sender == parent.pid):
            break
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(OSError):
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()  # this thread is the only one that can receive it
