"""Native threads beyond Python's reach: their names, how they end, how the process ends despite them.

Horovod's native core throws in threads of its own when a communicator cannot be built; nobody catches that,
and C++ ends the whole process. While one is built beside the other, only that thread may end. And when the
process exits, the destructors of a library wait for its threads, also for those that never end.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NAME, _PR_GET_NAME = 15, 16
_NAME_BYTES = 16
_SYS_EXIT = {"x86_64": 60, "aarch64": 93}.get(platform.machine())
_Handler = ctypes.CFUNCTYPE(None)


def name_this_thread(name: str) -> None:
    """At most 15 letters. Threads that it starts natively inherit the name."""
    _libc.prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode("ascii"), _NAME_BYTES))


def name_of_this_thread() -> str:
    """As the kernel knows it."""
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _libc.prctl(_PR_GET_NAME, name)
    return name.value.decode("ascii", "replace")


class Terminations:
    """Takes the place of C++'s std::terminate for threads that `expendable` says may end alone.

    `expendable(name of the thread)` is called in the thread that threw; if it is false, what would have
    happened happens (the process aborts). Everything is as it was after `close`.
    """

    def __init__(self, expendable: Callable[[str], bool]) -> None:
        self._expendable = expendable
        self._handler = _Handler(self._terminate)
        self._set = ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"]
        self._set.restype = ctypes.c_void_p
        self._set.argtypes = [ctypes.c_void_p]
        self._before = self._set(ctypes.cast(self._handler, ctypes.c_void_p))

    def close(self) -> None:
        """To be called before the interpreter goes: the handler is a Python function."""
        self._set(self._before)

    def close_and_block(self) -> None:
        """As `close`, but a thread that throws from now on stands still until the process ends."""
        self._set(ctypes.cast(_libc.pause, ctypes.c_void_p))

    def _terminate(self) -> None:
        if self._expendable(name_of_this_thread()):
            while _SYS_EXIT is None:
                threading.Event().wait()  # stands still for ever: there is no other way to say it
            _libc.syscall(_SYS_EXIT, 0)  # this thread alone; unwinding it would end in std::terminate again
        _Handler(self._before)()


def exit_without_destructors() -> None:
    """Let this process end with the exit code it has, its C streams flushed, but no native destructors run.

    Those of libraries loaded later than this still run.
    """
    _libc.on_exit(_libc["_exit"], None)
    flush = ctypes.cast(_libc.fflush, ctypes.c_void_p)
    _libc["__cxa_atexit"](flush, None, None)  # the last registered is called first
