"""Builds RPM packages: python packages/build_rpms.py [--out FOLDER] [--libraries FOLDER] [PACKAGE ...].

The packages have the same files as the Debian packages, and fit the release of the system that they are built
on: its Python, and its Slurm headers. The build needs rpmbuild and, for the plugin, a compiler and
slurm-devel. It needs neither network nor root.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import package_command
import staged

import flexo

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "build" / "rpm"
LIBRARIES = Path("/usr/lib64/slurm")
_AS_THEY_ARE = {
    "__os_install_post": "%{nil}",  # what is bundled stays as its authors built it
    "debug_package": "%{nil}",
    "_build_id_links": "none",
    "_binary_payload": "w6.zstdio",
}


class _Builder(Protocol):
    def __call__(self, out: Path, libraries: Path) -> Path: ...


def daemon_package(out: Path, libraries: Path) -> Path:
    """Build the package of daemon and command. Returns its path: flexo-VERSION-RELEASE.ARCHITECTURE.rpm.

    `libraries`: of no use here.
    """
    with tempfile.TemporaryDirectory() as work:
        staged.daemon(staged.fresh(Path(work) / "stage"), zsh_folder="site-functions")
        major, minor = sys.version_info[:2]
        return _packed("flexo", Path(work), out, {"python": f"{major}.{minor}"})


def web_package(out: Path, libraries: Path) -> Path:
    """Build the package of the web pages. Returns its path: flexo-web-VERSION-RELEASE.noarch.rpm.

    `libraries`: of no use here.
    """
    with tempfile.TemporaryDirectory() as work:
        staged.web(staged.fresh(Path(work) / "stage"))
        return _packed("flexo-web", Path(work), out, {})


def plugin_package(out: Path, libraries: Path) -> Path:
    """Build the package of the Slurm plugin, whose release names that of Slurm. Returns its path.

    `libraries`: the folder of Slurm's plugins on the hosts. Raises CannotBuild.
    """
    release, following = staged.slurm_release()
    with tempfile.TemporaryDirectory() as work:
        staged.plugin(staged.fresh(Path(work) / "stage"), libraries)
        words = {"slurm": release, "next_slurm": following, "libraries": str(libraries)}
        return _packed("flexo-slurm-plugin", Path(work), out, words)


PACKAGES: Mapping[str, _Builder] = {
    "flexo": daemon_package,
    "flexo-web": web_package,
    "flexo-slurm-plugin": plugin_package,
}


def _packed(name: str, work: Path, out: Path, words: Mapping[str, str]) -> Path:
    """Build the package `name` from the folder `stage` in `work`. Returns its path in `out`."""
    defined = {
        **_AS_THEY_ARE,
        **words,
        "flexo_version": flexo.__version__,
        "stage": str(work / "stage"),
        "_topdir": str(work / "rpmbuild"),  # rpmbuild takes no blank in it, which a checkout may have
    }
    options = [word for key, value in defined.items() for word in ("--define", f"{key} {value}")]
    command = ["rpmbuild", "-bb", *options, str(HERE / "rpm" / f"{name}.spec")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise staged.CannotBuild(f"rpmbuild refuses {name}.spec:\n{done.stdout}")
    (made,) = (work / "rpmbuild" / "RPMS").glob("*/*.rpm")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(made, out / made.name))


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = package_command.parser("Builds flexo's RPM packages.", PACKAGES, OUT)
    parser.add_argument(
        "--libraries", type=Path, default=LIBRARIES, help="where Slurm's plugins lie; else %(default)s"
    )
    options = parser.parse_args()
    if shutil.which("rpmbuild") is None:
        sys.stderr.write("packages: rpmbuild is missing: install rpm-build (on Debian: rpm)\n")
        return 1
    builders = {name: partial(builder, libraries=options.libraries) for name, builder in PACKAGES.items()}
    return package_command.build(builders, options.packages, options.out)


if __name__ == "__main__":
    sys.exit(main())
