"""Every file of flexo's packages with the first sentence that it says of itself, as tables by folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from links import ROOT
from markdown_text import cell, code, table

PACKAGES = (
    "protos/flexo_protos",
    "daemon/flexo",
    "daemon/flexo_cli",
    "daemon/flexo_web",
    "daemon/flexo_simulation",
    "daemon/flexo_lab",
    "daemon/flexo_demos",
    "daemon/flexo_bench",
    "horovod_elastic",
)


class SaysNothing(Exception):
    """A file has no docstring; the message names it."""


def parts() -> Mapping[str, str]:
    """What a page can ask for, by name."""
    return {f"rooms of {package}": "\n\n".join(_folders(ROOT / package)) for package in PACKAGES}


def files(folder: Path) -> list[Path]:
    """The files of a folder that people wrote, by name."""
    return sorted(path for path in folder.glob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc")))


def first_sentence(path: Path) -> str:
    """What the file says of itself, up to the end of the first sentence. Raises SaysNothing."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not said:
        raise SaysNothing(f"{path.relative_to(ROOT)} has no docstring: say in its first line what it is for")
    return " ".join(said.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def _folders(package: Path) -> Iterator[str]:
    below = (path for path in package.rglob("*") if path.is_dir() and path.name != "__pycache__")
    for folder in sorted((package, *below)):
        named = [path for path in files(folder) if path.name != "__init__.py" or path.stat().st_size]
        if named:
            yield f"### {folder.relative_to(ROOT).as_posix()}"
            yield table(("file", ""), ((code(path.name), cell(first_sentence(path))) for path in named))
