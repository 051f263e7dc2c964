"""SIGTERM on a satellite: the signal announces that the satellite must end, not that training ends.

The cluster signals all processes of a satellite, or only the processes that it started itself. The agent
tells the leader, and workers leave at the next mini-batch boundary. Until then, neither the workers nor the
processes that load their data may end. Programs that a script starts get the default action back, and the
process that starts them can still terminate them. In the base job, SIGTERM has its usual meaning.
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
"""The variable that the agent of a satellite sets for everything that runs there."""
_OUTLIVED_BY = "FLEXO_OUTLIVES_SIGTERM"
"""The variable with the pid of the process that the agent started, or of the first Python below it."""

_training_process = 0


def prepare() -> None:
    """Prepare a Python process at its start. The satellite's first one below the agent counts as the training
    process."""
    if SATELLITE not in os.environ:
        return
    if _is_child_of_multiprocessing():
        _heed_the_parent_only()
    elif _OUTLIVED_BY not in os.environ:
        os.environ[_OUTLIVED_BY] = str(os.getpid())
        outlive()
    # Forked processes call this function before their own work.
    util.register_after_fork(_heed_the_parent_only, lambda heed: heed())


def outlive() -> None:
    """Make a training process on a satellite outlive SIGTERM, whatever handler the script has set."""
    global _training_process
    if SATELLITE in os.environ and threading.current_thread() is threading.main_thread():
        _training_process = os.getpid()
        signal.signal(signal.SIGTERM, _outlive)


def _outlive(signum: int, frame: FrameType | None) -> None:
    """Ignore the signal in the training process; a process that the script has forked ends.

    This is a handler, and not SIG_IGN, which programs that the script starts would inherit.
    """
    if os.getpid() != _training_process:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _is_child_of_multiprocessing() -> bool:
    """Whether multiprocessing started this process, not by forking its parent: spawn, or the fork server."""
    return any("--multiprocessing-fork" in word or "multiprocessing.fork" in word for word in sys.orig_argv)


def _heed_the_parent_only() -> None:
    """Let a process of multiprocessing die of a SIGTERM that its parent sends, and of no other."""
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
    threading.Event().wait()  # this thread is the only one that can receive the signal
