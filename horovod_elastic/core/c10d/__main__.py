"""`python -m horovod_elastic.core.c10d SCRIPT ...` runs a Horovod script in one process, without a leader.

The script needs no native library of Horovod either.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from horovod_elastic.core.c10d import standin


def main(arguments: list[str]) -> None:
    """Run the script `arguments[0]` as Python would, with the rest as its arguments."""
    if not arguments:
        sys.exit("usage: python -m horovod_elastic.core.c10d SCRIPT [ARGUMENT ...]")
    standin.install()
    import horovod.torch  # noqa: F401  the core needs it imported

    from horovod_elastic.core.c10d.torch_core import TorchCore

    TorchCore(standin.the_layer()).alone()
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
