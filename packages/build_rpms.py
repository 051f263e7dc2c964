"""Builds RPM packages: python packages/build_rpms.py [--out FOLDER] [--libraries FOLDER] [PACKAGE ...].

The packages have the same files as the Debian packages, and fit the release of the system that they are built
on: its Python, and its Slurm headers. The build needs rpmbuild and, for the plugin, a compiler and
slurm-devel. It needs neither network nor root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

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


def daemon_package(out: Path, _: Path) -> Path:
    """Build the package of daemon and command. Returns its path: flexo-VERSION-RELEASE.ARCHITECTURE.rpm."""
    with tempfile.TemporaryDirectory() as work:
        staged.daemon(staged.fresh(Path(work) / "stage"), zsh_folder="site-functions")
        major, minor = sys.version_info[:2]
        return _packed("flexo", Path(work), out, {"python": f"{major}.{minor}"})


def plugin_package(out: Path, libraries: Path) -> Path:
    """Build the package of the Slurm plugin, whose release names that of Slurm. Returns its path.

    `libraries`: the folder of Slurm's plugins on the hosts. Raises CannotBuild.
    """
    release, following = staged.slurm_release()
    with tempfile.TemporaryDirectory() as work:
        staged.plugin(staged.fresh(Path(work) / "stage"), libraries)
        words = {"slurm": release, "next_slurm": following, "libraries": str(libraries)}
        return _packed("flexo-slurm-plugin", Path(work), out, words)


PACKAGES: Mapping[str, Callable[[Path, Path], Path]] = {
    "flexo": daemon_package,
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
    parser = argparse.ArgumentParser(description="Builds flexo's RPM packages.")
    parser.add_argument("--out", type=Path, default=OUT, help="where they are put; else %(default)s")
    parser.add_argument(
        "--libraries", type=Path, default=LIBRARIES, help="where Slurm's plugins lie; else %(default)s"
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(PACKAGES)}; else all")
    options = parser.parse_args()
    if unknown := set(options.packages) - set(PACKAGES):
        parser.error(f"there is no package {sorted(unknown)[0]}; there are: {', '.join(PACKAGES)}")
    if shutil.which("rpmbuild") is None:
        sys.stderr.write("packages: rpmbuild is missing: install rpm-build (on Debian: rpm)\n")
        return 1
    os.umask(0o022)
    try:
        for name in options.packages or PACKAGES:
            print(PACKAGES[name](options.out.resolve(), options.libraries))
    except staged.CannotBuild as error:
        sys.stderr.write(f"packages: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
