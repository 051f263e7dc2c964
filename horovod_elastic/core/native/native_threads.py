"""Control of native threads that Python cannot reach: their names, their end, the process's end despite them.

Horovod's native core throws in threads of its own when a communicator cannot be built. Nothing catches the
exception, and C++ ends the whole process. While one communicator is built beside another, only the thread
that threw may end. When the process exits, the destructors of a library wait for the library's threads, even
for threads that never end.
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
    """Name this thread, with at most 15 letters. Threads that it starts natively inherit the name."""
    _libc.prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode("ascii"), _NAME_BYTES))


def name_of_this_thread() -> str:
    """The name by which the kernel knows this thread."""
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _libc.prctl(_PR_GET_NAME, name)
    return name.value.decode("ascii", "replace")


class Terminations:
    """Replaces C++'s std::terminate, so that threads that `expendable` accepts end alone.

    `expendable`: called with the thread's name, in the thread that threw. If it returns False, the previous
    handler runs (the process aborts). `close` restores the previous handler.
    """

    def __init__(self, expendable: Callable[[str], bool]) -> None:
        self._expendable = expendable
        self._handler = _Handler(self._terminate)
        self._set = ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"]
        self._set.restype = ctypes.c_void_p
        self._set.argtypes = [ctypes.c_void_p]
        self._before = self._set(ctypes.cast(self._handler, ctypes.c_void_p))

    def close(self) -> None:
        """Restore the previous handler, before the interpreter ends: this handler is a Python function."""
        self._set(self._before)

    def close_and_block(self) -> None:
        """Like `close`, but a thread that throws from now on pauses until the process ends."""
        self._set(ctypes.cast(_libc.pause, ctypes.c_void_p))

    def _terminate(self) -> None:
        if self._expendable(name_of_this_thread()):
            while _SYS_EXIT is None:
                threading.Event().wait()  # waits for ever: the exit call of this machine is not known
            _libc.syscall(_SYS_EXIT, 0)  # ends this thread alone; unwinding would call std::terminate again
        _Handler(self._before)()


def exit_without_destructors() -> None:
    """Let this process end with its exit code and flushed C streams, but without native destructors.

    Destructors of libraries that are loaded after this call still run.
    """
    _libc.on_exit(_libc["_exit"], None)
    flush = ctypes.cast(_libc.fflush, ctypes.c_void_p)
    _libc["__cxa_atexit"](flush, None, None)  # the last registered is called first
