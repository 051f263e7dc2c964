"""Builds flexo's own wheel: python packages/own_wheel.py FOLDER. Downloads nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("daemon", "horovod_elastic", "protos", "yarn_plugin", "setup.py", "pyproject.toml", "README.md")
_NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")


def build(folder: Path) -> Path:
    """Build the wheel of this checkout into `folder`. Returns its path."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "source"
        copy.mkdir()
        for name in _SOURCES:  # a copy, because setuptools leaves build/ and packs an older one
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=_NOT_SOURCE)
            else:
                shutil.copy2(source, copy / name)
        made = Path(temporary) / "wheel"
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(made)]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True)
        (wheel,) = made.glob("flexo-*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: own_wheel.py FOLDER")
    print(build(Path(sys.argv[1])))
