"""Generates the typed Python packages flexo_protos.v1 and flexo_protos.hadoop. setup.py runs it.

Their sources are in protos/flexo/v1 and protos/hadoop. The protobuf package of flexo's own is called `flexo`.
The Python package cannot be, because the daemon's package has that name. protoc maps the folders to other
names.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGETS = {"v1": HERE / "flexo" / "v1", "hadoop": HERE / "hadoop"}
"""The folder of the sources of each generated package."""


def generate() -> None:
    """Write the generated modules, unless this generator made all of them after every source."""
    for name, sources in TARGETS.items():
        _generate(HERE / "flexo_protos" / name, sources)


def _generate(target: Path, folder: Path) -> None:
    sources = sorted(folder.glob("*.proto"))
    made = [target / f"{source.stem}_pb2_grpc.py" for source in sources]
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    package, text = target / "__init__.py", _package_text(folder)
    if _is_made(package, text) and all(path.exists() and path.stat().st_mtime > newest for path in made):
        return
    from grpc_tools import protoc

    target.mkdir(exist_ok=True)
    package.write_text(text)
    # protoc looks for its plugins on PATH, but this environment may not be active
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    arguments = [
        "protoc",
        f"-Iflexo_protos/{target.name}={folder}",
        f"--python_out={HERE}",
        f"--grpc_python_out={HERE}",
        f"--mypy_out={HERE}",
        f"--mypy_grpc_out={HERE}",
        *(f"flexo_protos/{target.name}/{source.name}" for source in sources),
    ]
    if protoc.main(arguments) != 0:
        sys.exit(f"flexo: protoc failed on protos/{folder.relative_to(HERE)} (its message stands above)")


def _package_text(folder: Path) -> str:
    """The first line of the package; "" without the generator, which must not be newer than its code."""
    try:
        generator = metadata.version("grpcio-tools")
    except metadata.PackageNotFoundError:
        return ""
    source = f"protos/{folder.relative_to(HERE)}"
    return f'"""Generated from {source} by protos/generate.py with grpcio-tools {generator}."""\n'


def _is_made(package: Path, text: str) -> bool:
    """Whether this generator made the package. Its code refuses protobuf or gRPC older than its generator."""
    return not text or (package.exists() and package.read_text() == text)


if __name__ == "__main__":
    generate()
