"""Found by Python at start-up in every training process (the agent puts this folder on PYTHONPATH).

It prepares the hooks of horovod_elastic.worker and then runs the sitecustomize that this one hides, if any.
"""

import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve()


def _run_hidden() -> None:
    for folder in sys.path:
        path = Path(folder, "sitecustomize.py").resolve()
        if path != _HERE and path.is_file():
            spec = importlib.util.spec_from_file_location("sitecustomize", path)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


if "FLEXO_WORKER_ID" in os.environ:
    try:
        from horovod_elastic.worker import bootstrap
    except ImportError as error:
        sys.exit(
            f"flexo: the Python that runs the training script ({sys.executable}) cannot import "
            f"horovod_elastic ({error}); install flexo there (pip install flexo)"
        )
    bootstrap.install()

_run_hidden()
