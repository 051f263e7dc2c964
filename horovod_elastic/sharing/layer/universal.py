"""Universal memory: allocations that the GPU has no room for go to pinned memory of the host, and do not
fail.

AntMan (OSDI'20, section 3.2) has it in TensorFlow's allocator. Here it is a memory pool of PyTorch
(torch.cuda.MemPool with use_on_oom) over a small library, which is compiled once per user. PyTorch takes only
what is in the pool already, and counts it as memory of the GPU (2.11, on an H100).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("universal_allocator.c")
ALLOC, FREE = "flexo_universal_alloc", "flexo_universal_free"


class NoUniversalMemory(RuntimeError):
    """Universal memory cannot be had here. The job runs without it."""


def library(cache: Path | None = None) -> Path:
    """The compiled library, compiled now unless it is in `cache` already. Raises NoUniversalMemory."""
    source = SOURCE.read_bytes()
    folder = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flexo")
    path = folder / f"universal-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            made = Path(beside, path.name)
            command = [
                os.environ.get("CC", "cc"),
                "-O2",
                "-shared",
                "-fPIC",
                "-o",
                str(made),
                str(SOURCE),
                "-ldl",
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=60, env=_without_the_layer())
            made.replace(path)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoUniversalMemory(f"{SOURCE.name} could not be compiled: {error}") from error
    return path


def _without_the_layer() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FLEXO_SHARING_")}


_held: list[UniversalMemory] = []


def hold(blocks: tuple[int, ...], cache: Path | None = None) -> None:
    """Have a pool of these blocks, in bytes, in this process from now on. Raises NoUniversalMemory."""
    if not _held:
        _held.append(UniversalMemory(blocks, cache))


def pinned() -> int:
    """Bytes of the pool, which PyTorch counts as memory of the GPU."""
    return sum(each.size for each in _held)


def peak_before() -> int:
    """The most bytes that PyTorch had reserved before there was a pool; 0 without one."""
    return max((each.peak_before for each in _held), default=0)


class UniversalMemory:
    """The pool of one process, used only where an allocation on the GPU would fail."""

    def __init__(self, blocks: tuple[int, ...] = (), cache: Path | None = None) -> None:
        self.size, self.peak_before = sum(blocks), int(torch.cuda.max_memory_reserved())
        if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get(
            "PYTORCH_ALLOC_CONF", ""
        ):
            raise NoUniversalMemory("PyTorch's expandable segments do not work with memory pools")
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library(cache)), ALLOC, FREE)
        self._allocator = allocator  # the pool does not keep it
        self.pool: Any = torch.cuda.MemPool(allocator.allocator(), use_on_oom=True)
        self._fill(blocks)

    def _fill(self, blocks: tuple[int, ...]) -> None:
        """Put blocks of these bytes into the pool now: pinning takes long, and would take it in a step."""
        with torch.cuda.use_mem_pool(self.pool):
            held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in blocks]
        del held
