"""Builds flexo's wheels: python packages/own_wheels.py FOLDER. Downloads nothing.

`flexo` enters users' environments. `flexo-site` has all other modules and requires `flexo` of the same
version. Each wheel is built from a folder with its own files and a pyproject.toml, written from that of the
checkout.

A module that goes from `flexo-site` to `flexo` in a later release gets a new name: pip installs the new
`flexo` first, and then removes the files of the old `flexo-site`, the module among them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import release

ROOT = Path(__file__).resolve().parents[1]
USERS, SITES = "flexo", "flexo-site"
_FOLDERS = ("daemon", "horovod_elastic", "protos", "yarn_plugin")
_PACKAGES = {
    "horovod_elastic": "horovod_elastic",
    "flexo_protos": "protos/flexo_protos",
    "flexo_yarn": "yarn_plugin/flexo_yarn",
}
"""The packages outside `daemon`, and their folders."""
_OF_USERS = (
    *(f"{package}/" for package in _PACKAGES),
    *("flexo/__init__.py", "flexo/py.typed", "flexo/words.py", "flexo/model/"),
    "flexo_cli/",
)
_OF_SITES = ("flexo_cli/site/",)
"""What begins with _OF_USERS is in the wheel for users, unless it begins with _OF_SITES. The contracts of
lint-imports say the same."""
_NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")


@dataclass(frozen=True, slots=True)
class _Wheel:
    """What pip reads of a wheel."""

    name: str
    description: str
    requirements: Sequence[str]
    extras: Mapping[str, Sequence[str]]
    scripts: Sequence[str]


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheels of this checkout into `folder`. Returns the path of that for users, and for sites."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version = release.version_in((ROOT / release.VERSION_FILE).read_text())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        code = Path(temporary) / "code"
        _lay_out(code)
        users, sites = _wheels(project["project"], version)
        made = [_built(each, project, version, code, folder) for each in (users, sites)]
    return made[0], made[1]


def is_of_users(name: str) -> bool:
    """Whether a file of flexo's packages, such as flexo/words.py, is in the wheel for users."""
    return name.startswith(_OF_USERS) and not name.startswith(_OF_SITES)


def _wheels(project: Mapping[str, Any], version: str) -> tuple[_Wheel, _Wheel]:
    extras = project["optional-dependencies"]
    of_both = ("etcd", "kerberos")
    users = _Wheel(
        USERS,
        project["description"],
        project["dependencies"],
        {name: extras[name] for name in of_both},
        ("flexo",),
    )
    same = f"{USERS}=={version}"
    sites = _Wheel(
        SITES,
        "flexod, flexo-web and the commands of administrators: the part of flexo for a cluster's site",
        [same, *extras["site"]],
        {
            **{name: [f"{USERS}[{name}]=={version}"] for name in of_both},
            **{name: extras[name] for name in ("openid", "torch")},
        },
        ("flexod", "flexo-web"),
    )
    return users, sites


def _lay_out(code: Path) -> None:
    """Copy all packages to `code` as they lie when they are installed, with the code of protos/ generated."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=_NOT_SOURCE)
        generate = [sys.executable, str(copy / "protos" / "generate.py")]
        made = subprocess.run(generate, capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"own_wheels: the code of protos/ could not be generated: {made.stderr.strip()}")
        shutil.move(copy / "daemon", code)
        for package, folder in _PACKAGES.items():
            shutil.move(copy / folder, code / package)


def _built(wheel: _Wheel, project: Mapping[str, Any], version: str, code: Path, folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as temporary:
        source, made = Path(temporary) / "source", Path(temporary) / "made"
        for path in sorted(code.rglob("*")):
            name = path.relative_to(code)
            if path.is_file() and is_of_users(name.as_posix()) == (wheel.name == USERS):
                (source / "code" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, source / "code" / name)
        for text in ("LICENSE", "README.md"):
            shutil.copy2(ROOT / text, source / text)
        (source / "pyproject.toml").write_text(_pyproject(wheel, project, version, source / "code"))
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(made)]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
        (built,) = made.glob("*.whl")
        return Path(shutil.move(built, folder / built.name))


def _pyproject(wheel: _Wheel, project: Mapping[str, Any], version: str, code: Path) -> str:
    """The pyproject.toml of one wheel. JSON's texts and lists of texts are TOML's, too."""
    of_all = project["project"]
    fields = {
        "name": wheel.name,
        "version": version,
        "description": wheel.description,
        "dependencies": list(wheel.requirements),
        **{name: of_all[name] for name in ("readme", "requires-python", "license", "license-files")},
    }
    scripts = {name: of_all["scripts"][name] for name in wheel.scripts}
    folders = {path.parent.relative_to(code) for path in code.rglob("*") if path.is_file()}
    packages = sorted(".".join(folder.parts) for folder in folders)  # with those of data alone
    tables = {
        "build-system": {
            "requires": ["setuptools"],
            "build-backend": project["build-system"]["build-backend"],
        },
        "project": fields,
        "project.optional-dependencies": wheel.extras,
        "project.scripts": scripts,
        "tool.setuptools": {"packages": packages, "include-package-data": False},
        "tool.setuptools.package-dir": {"": "code"},
        "tool.setuptools.package-data": {"*": ["*"]},
    }
    lines = []
    for title, table in tables.items():
        lines += [f"[{title}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: own_wheels.py FOLDER")
    print(*build(Path(sys.argv[1])), sep="\n")
