"""Generates the typed Python package flexo_protos.v1 from protos/flexo/v1/*.proto. setup.py runs it.

The protobuf package is called `flexo`. The Python package cannot be, because the daemon's package has that
name. protoc maps the folder to the other name.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "flexo" / "v1"
TARGET = HERE / "flexo_protos" / "v1"

_PACKAGE = TARGET / "__init__.py"


def generate() -> None:
    """Write the generated modules, unless this generator made all of them after every source."""
    sources = sorted(SOURCES.glob("*.proto"))
    made = [TARGET / f"{source.stem}_pb2_grpc.py" for source in sources]
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    if _made_by_this_generator() and all(path.exists() and path.stat().st_mtime > newest for path in made):
        return
    from grpc_tools import protoc

    TARGET.mkdir(exist_ok=True)
    _PACKAGE.write_text(_package_text())
    # protoc looks for its plugins on PATH, but this environment may not be active
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
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


def _package_text() -> str:
    generator = metadata.version("grpcio-tools")
    return f'"""Generated from protos/flexo/v1 by protos/generate.py with grpcio-tools {generator}."""\n'


def _made_by_this_generator() -> bool:
    """Whether this generator made the package. Its code refuses protobuf or gRPC older than its generator."""
    try:
        return _PACKAGE.exists() and _PACKAGE.read_text() == _package_text()
    except metadata.PackageNotFoundError:  # without the generator, the code cannot be generated anew
        return True


if __name__ == "__main__":
    generate()
