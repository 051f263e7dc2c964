"""A credential leaves no garbage that waits for Python's collector: flexod checks one for every call."""

from __future__ import annotations

import ctypes
import gc

import pytest

from flexo_protos import credentials
from flexo_protos.credentials import Munge


class Library:
    """libmunge as far as it is called, with memory of its own, as the real one."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.strdup.restype = ctypes.c_void_p
        self._strdup = libc.strdup

    def munge_ctx_create(self) -> int:
        return 1

    def munge_ctx_set(self, *arguments: object) -> None: ...

    def munge_ctx_destroy(self, context: object) -> None: ...

    def munge_encode(self, credential: object, *rest: object) -> int:
        credential._obj.value = self._strdup(b"MUNGE:")  # type: ignore[attr-defined]
        return 0

    def munge_decode(
        self, text: bytes, context: object, payload: object, length: object, *rest: object
    ) -> int:
        payload._obj.value = self._strdup(b"flexo /method")  # type: ignore[attr-defined]
        length._obj.value = len(b"flexo /method")  # type: ignore[attr-defined]
        return 0


@pytest.mark.thorough
def test_credentials_made_and_checked_leave_no_garbage_in_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(credentials, "libmunge", lambda: library)
    munge = Munge()

    def once() -> None:
        assert munge.credential("/method") == "MUNGE:"
        munge.verify("MUNGE:", "/method")

    once()
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            once()
        assert gc.collect() < 100
    finally:
        gc.enable()
