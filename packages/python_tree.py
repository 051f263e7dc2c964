"""Puts flexo and its requirements into a folder of their own, as a virtual environment without pip.

The folder holds exactly the tested versions: copies of the distributions installed beside this program, and
flexo's own wheels. Nothing is downloaded.
"""

from __future__ import annotations

import compileall
import importlib.metadata as metadata
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import own_wheels
from packaging.requirements import Requirement

EXTRAS = ("site", "etcd", "openid")
"""Extras in the tree. Nothing can be added later: flexods may keep a leader lease in etcd, and the package
flexo-web has no more than a unit."""
_LAUNCHER = """\
#!{prefix}/bin/python3 -I
import sys

from {module} import main

sys.exit(main())
"""
_LAUNCHERS = {"flexo": "flexo_cli", "flexod": "flexo.service.flexod", "flexo-web": "flexo_web.process"}


def build(stage: Path, prefix: Path) -> None:
    """Build the tree in `stage`, for use at `prefix`."""
    place = stage / prefix.relative_to("/")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = place / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    _make_environment(place, prefix, version)
    for name in sorted(needed()):
        _copy(metadata.distribution(name), site)
    _add_own_wheels(site)
    done = compileall.compile_dir(
        str(site), quiet=2, stripdir=str(stage), prependdir="/", maxlevels=100, workers=0
    )
    if not done:  # some distributions hold examples for other Pythons, which nobody imports
        sys.stderr.write("packages: some modules of others do not compile\n")


def needed() -> set[str]:
    """Names of the distributions that flexo's daemon needs, directly or through another one."""
    found: set[str] = set()
    wanted = {name for extra in EXTRAS for name in _required(metadata.distribution("flexo"), extra)}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted |= _required(metadata.distribution(name), "")
    return found


def _required(distribution: metadata.Distribution, extra: str) -> set[str]:
    requirements = [Requirement(text) for text in distribution.requires or ()]
    return {
        _normal(requirement.name)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _make_environment(place: Path, prefix: Path, version: str) -> None:
    """Make `place` a virtual environment: pyvenv.cfg above bin/python3, and the launchers."""
    home = Path(f"/usr/bin/python{version}")
    (place / "bin").mkdir()
    (place / "bin" / "python3").symlink_to(home)
    (place / "bin" / "python").symlink_to("python3")
    (place / "pyvenv.cfg").write_text(
        f"home = {home.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    for name, module in _LAUNCHERS.items():
        launcher = place / "bin" / name
        launcher.write_text(_LAUNCHER.format(prefix=prefix, module=module))
        launcher.chmod(0o755)


def _copy(distribution: metadata.Distribution, site: Path) -> None:
    """Copy the files that the distribution lists, except its programs and bytecode that was compiled here."""
    files = distribution.files
    if files is None:
        raise FileNotFoundError(f"{distribution.name} does not list its files: install it with pip")
    for file in files:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        target = site / Path(*file.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(distribution.locate_file(file)), target)
        target.chmod(0o644)


def _add_own_wheels(site: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for wheel in own_wheels.build(Path(folder)):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
