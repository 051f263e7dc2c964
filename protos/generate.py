"""Turns protos/flexo/v1/*.proto into the Python package flexo_protos.v1, typed. Run by setup.py.

The Python package cannot be called `flexo`, as the protobuf package is: that is the daemon's. protoc maps
the folder to the other name.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "flexo" / "v1"
TARGET = HERE / "flexo_protos" / "v1"


def generate() -> None:
    """Write the generated modules, unless all of them are newer than every source."""
    sources = sorted(SOURCES.glob("*.proto"))
    made = [TARGET / f"{source.stem}_pb2_grpc.py" for source in sources]
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    if all(path.exists() and path.stat().st_mtime > newest for path in made):
        return
    from grpc_tools import protoc

    TARGET.mkdir(exist_ok=True)
    (TARGET / "__init__.py").write_text('"""Generated from protos/flexo/v1 by protos/generate.py."""\n')
    arguments = [
        "protoc",
        f"-Iflexo_protos/v1={SOURCES}",
        f"--python_out={HERE}",
        f"--grpc_python_out={HERE}",
        f"--mypy_out={HERE}",
        f"--mypy_grpc_out={HERE}",
        *(f"flexo_protos/v1/{source.name}" for source in sources),
    ]
    if protoc.main(arguments) != 0:
        sys.exit("flexo: protoc failed on protos/flexo/v1 (its message stands above)")


if __name__ == "__main__":
    generate()
