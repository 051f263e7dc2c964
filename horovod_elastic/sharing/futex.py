"""Waits for a word of shared memory to change, and wakes those who wait: Linux's futex(2)."""

from __future__ import annotations

import ctypes
import errno
import platform

_NUMBERS = {"x86_64": 202, "aarch64": 98, "ppc64le": 221}
_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class NoFutex(OSError):
    """This machine has no futex that flexo knows."""


def number() -> int:
    """The number of the system call on this machine. Raises NoFutex, which names the machine."""
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise NoFutex(f"GPU sharing knows no futex on {machine}; allowed are {', '.join(_NUMBERS)}")
    return _NUMBERS[machine]


_NUMBER = _NUMBERS.get(platform.machine(), -1)


def wait(address: int, expected: int, timeout_s: float) -> None:
    """Wait while the 32-bit word at `address` is `expected`, for at most `timeout_s` seconds.

    Returns early without reason, too: the caller reads the word again. The word may be in memory that
    this process only reads. Other threads run meanwhile.
    """
    timeout = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    result = _libc.syscall(
        ctypes.c_long(_NUMBER),
        ctypes.c_void_p(address),
        _WAIT,
        ctypes.c_uint32(expected),
        ctypes.byref(timeout),
        None,
        0,
    )
    if result < 0 and (error := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
        raise NoFutex(error, f"futex wait: {errno.errorcode.get(error, error)}")


def wake(address: int) -> None:
    """Wake everybody who waits for the word at `address`."""
    _libc.syscall(ctypes.c_long(_NUMBER), ctypes.c_void_p(address), _WAKE, _EVERYBODY, None, None, 0)
