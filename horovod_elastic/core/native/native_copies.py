"""Copies of Horovod's native library, each with a communicator of its own.

The communicator is a global variable of the shared library. So a second copy of the file, loaded under
another name, has another communicator. (Its module is named differently too: pybind11 keeps modules by their
names.)

Horovod loads its own copy with global symbols. So every other copy must find its own symbols before those.
The loader has an option for that (RTLD_DEEPBIND). But then the copy also prefers libc's malloc to a preloaded
one (jemalloc), and the process dies of mixing the two. A flag in the file (DF_SYMBOLIC) affects the copy
alone.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from horovod_elastic.core.interface import CoreFailed

_PT_DYNAMIC = 2
_DT_NULL, _DT_SYMBOLIC, _DT_FLAGS = 0, 16, 30
_DF_SYMBOLIC = 2


class NativeCopy:
    """One copy of the library: the parts for Horovod's Python layer (`module`, `library`), start and stop."""

    def __init__(self, tag: str, module: ModuleType, library: Any) -> None:
        self.tag = tag
        """The name of the copy's threads: unique, at most 15 letters."""
        self.module = module
        self.library = library
        self._init = library["horovod_init"]
        self._init.restype = ctypes.c_bool

    def initialize(self, process_sets: Sequence[Sequence[int]] = ()) -> bool:
        """Build a communicator from the variables HOROVOD_*. Returns whether it was built.

        Blocks, and never returns if the native thread died. `process_sets`: the ranks of each of Horovod's
        process sets besides the global one.
        """
        sizes = [len(ranks) for ranks in process_sets]
        ranks = [rank for ranks in process_sets for rank in ranks]
        return bool(
            self._init(
                (ctypes.c_int * 0)(),
                0,
                (ctypes.c_int * len(ranks))(*ranks),
                (ctypes.c_int * len(sizes))(*sizes),
                len(sizes),
            )
        )

    def shut_down(self) -> None:
        """Leave the communicator, which ends for all its members. Blocks until the members have noticed."""
        self.library.horovod_shutdown()
        self.module.horovod_torch_reset()


def first(mpi_ops: ModuleType, tag: str) -> NativeCopy:
    """The copy that Horovod itself has loaded. `mpi_ops`: horovod.torch.mpi_ops."""
    return NativeCopy(tag, mpi_ops.mpi_lib, mpi_ops._basics.MPI_LIB_CTYPES)


def another(original: NativeCopy, tag: str) -> NativeCopy:
    """A new copy of the file of `original`. Raises CoreFailed if it cannot be loaded."""
    library_file = Path(original.module.__file__ or "")
    reasons = []
    for place in (_in_memory, _in_a_folder):
        try:
            with place(library_file) as path:
                return _load(path, tag, original.module.__name__.rpartition(".")[2])
        except (ImportError, OSError, ValueError) as error:
            reasons.append(f"{place.__name__.strip('_').replace('_', ' ')}: {error}")
    raise CoreFailed(
        f"a second copy of {library_file} cannot be loaded ({'; '.join(reasons)}); resizing needs one: "
        "set TMPDIR to a folder from which libraries may be loaded"
    )


def _load(path: str, tag: str, exported_name: str) -> NativeCopy:
    library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    name = f"{tag}.{exported_name}"
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"no module in {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return NativeCopy(tag, module, library)


def own_symbols_first(image: bytes) -> bytes:
    """The same shared library (64-bit ELF), marked so that it finds its own symbols before all others'.

    Raises ValueError for a file that cannot be marked.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (headers_at,) = struct.unpack_from("<Q", image, 0x20)
    header_size, header_count = struct.unpack_from("<HH", image, 0x36)
    marked = bytearray(image)
    for at in range(headers_at, headers_at + header_count * header_size, header_size):
        kind, _, begin, _, _, size = struct.unpack_from("<IIQQQQ", image, at)
        if kind == _PT_DYNAMIC:
            entries = range(begin, begin + size, 16)
            tags = [struct.unpack_from("<QQ", image, entry) for entry in entries]
            _mark(marked, list(zip(entries, tags, strict=True)))
            return bytes(marked)
    raise ValueError("no dynamic section")


def _mark(image: bytearray, entries: list[tuple[int, tuple[int, int]]]) -> None:
    """Set the flag DF_SYMBOLIC. Without flags, put the older tag of the same meaning into a free entry."""
    free = [at for at, (tag, _) in entries if tag == _DT_NULL]
    for at, (tag, flags) in entries:
        if tag == _DT_FLAGS:
            struct.pack_into("<QQ", image, at, tag, flags | _DF_SYMBOLIC)
            return
    if len(free) < 2:  # the last one ends the list
        raise ValueError("no room for a flag")
    struct.pack_into("<QQ", image, free[0], _DT_SYMBOLIC, 0)


@contextmanager
def _in_memory(library_file: Path) -> Iterator[str]:
    descriptor = os.memfd_create(library_file.name)
    try:
        with open(descriptor, "wb", closefd=False) as memory:
            memory.write(own_symbols_first(library_file.read_bytes()))
        yield f"/proc/self/fd/{descriptor}"
    except BaseException:
        os.close(descriptor)
        raise
    # The descriptor stays open: the loader knows a library by its path, so the path must not be used again.


@contextmanager
def _in_a_folder(library_file: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="flexo-core-") as folder:
        copy = Path(folder, library_file.name)
        copy.write_bytes(own_symbols_first(library_file.read_bytes()))
        yield str(copy)
