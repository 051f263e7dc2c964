"""Prepares a process that shares a GPU, before its script runs. Nothing of PyTorch is imported here."""

from __future__ import annotations

import os
import sys

from horovod_elastic import patching
from horovod_elastic.sharing import environment


def install() -> None:
    """Have the layer hook PyTorch once the script has imported it. A wrong variable ends the process."""
    try:
        sharing = environment.read(os.environ)
    except environment.WrongVariable as error:
        sys.stderr.write(f"flexo: {error}\n")
        sys.stderr.flush()
        os._exit(2)
    if sharing is not None:
        patching.after_import({"torch": lambda: lambda _: _hook(sharing)})


def _hook(sharing: environment.Sharing) -> None:
    from horovod_elastic.sharing.layer import hooks

    hooks.install(sharing)
