"""Which of the functions that run now are the script's, and not Python's own or an installed package's."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

_KNOWN = "torch", "horovod_elastic", "accelerate", "transformers", "lightning", "pytorch_lightning", "tqdm"
"""Packages whose loops over batches may stand between flexo and the script's function."""


def unknown_trainer() -> str:
    """The installed package that runs the training loop, if flexo does not know it; "" if the script does.

    What such a package counts is not handed over, so a newcomer might take other branches than the others.
    Generators and iterators only pass batches on.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_script(frame.f_code.co_filename):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        passes_on = frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_code.co_name in (
            "__next__",
            "__iter__",
        )
        if not passes_on and package not in _KNOWN and package not in sys.stdlib_module_names:
            return package
        frame = frame.f_back
    return ""


@functools.cache
def is_of_script(file: str) -> bool:
    """Whether the file is neither Python's own nor an installed package's."""
    return not file.startswith(("<", *_not_the_scripts()))


@functools.cache
def _not_the_scripts() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # The first folder of the path is the script's. Others may come from pip install --target.
    installed |= {folder for folder in sys.path[1:] if folder and any(Path(folder).glob("*.dist-info"))}
    return tuple(f"{folder}/" for folder in (*installed, Path(__file__).resolve().parents[2]))


def caller() -> str:
    """The place in the script from which PyTorch was called: "train.py:41"."""
    for frame in reversed(traceback.extract_stack()):
        if is_of_script(frame.filename):
            return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
    return "?"
