"""Python runs this file at the start of every training process (the agent puts this folder on PYTHONPATH).

The file prepares the hooks of horovod_elastic.worker, and on a shared GPU those of horovod_elastic.sharing.
Then it runs the sitecustomize that it hides, if any.
"""

import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve()


class _Refuse:
    """Refuses to import Horovod in a Python without horovod_elastic, where the script would train alone."""

    def __init__(self, reason: ImportError) -> None:
        self._reason = reason

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "horovod":
            raise ImportError(
                f"flexo: the Python that runs the training script ({sys.executable}) cannot import "
                f"horovod_elastic ({self._reason}). Install flexo's wheel there: {sys.executable} -m pip "
                "install flexo-VERSION-py3-none-any.whl (`make wheel` in flexo's repository builds that file)"
            )


def _prepare() -> None:
    try:
        from horovod_elastic.worker import bootstrap
    except ImportError as error:
        sys.meta_path.insert(0, _Refuse(error))
    else:
        bootstrap.install()


def _run_hidden() -> None:
    for folder in sys.path:
        path = Path(folder, "sitecustomize.py").resolve()
        if path != _HERE and path.is_file():
            spec = importlib.util.spec_from_file_location("sitecustomize", path)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


def _prepare_sharing() -> None:
    """On a shared GPU, a process without the layer would take what is not its own: it does not start."""
    try:
        from horovod_elastic.sharing.layer import bootstrap
    except ImportError as error:
        sys.stderr.write(
            f"flexo: {sys.executable} cannot import horovod_elastic ({error}), so it cannot share a GPU. "
            "Install flexo's wheel there, or start the job without flexo share\n"
        )
        sys.stderr.flush()
        os._exit(1)
    bootstrap.install()


if "FLEXO_AGENT" in os.environ:
    _prepare()

if os.environ.get("FLEXO_SHARING_ROLE"):
    _prepare_sharing()

_run_hidden()
