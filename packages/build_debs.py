"""Builds Debian packages: python packages/build_debs.py [--out FOLDER] [PACKAGE...].

The package `flexo` has daemon and command. `flexo-web` has the unit and the account of the web pages; their
code is in `flexo`. `flexo-slurm-plugin` has the files that Slurm loads, compiled
against the headers that are installed here. The build needs dpkg-deb and, for the plugin, a compiler and
libslurm-dev. It needs neither network nor root.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import package_command
import staged

import flexo

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "build" / "deb"
_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


def daemon_package(out: Path) -> Path:
    """Build the package of daemon and command. Returns its path: flexo_VERSION_ARCHITECTURE.deb."""
    stage = staged.fresh(out / "stage" / "flexo")
    staged.daemon(stage, zsh_folder="vendor-completions")
    major, minor = sys.version_info[:2]
    words = {
        "VERSION": flexo.__version__,
        "PYTHON": f"{major}.{minor}",
        "NEXT_PYTHON": f"{major}.{minor + 1}",
    }
    return _packed("flexo", stage, out, words)


def web_package(out: Path) -> Path:
    """Build the package of the web pages. Returns its path: flexo-web_VERSION_all.deb."""
    stage = staged.fresh(out / "stage" / "flexo-web")
    staged.web(stage)
    return _packed("flexo-web", stage, out, {"VERSION": flexo.__version__}, architecture="all")


def plugin_package(out: Path) -> Path:
    """Build the package of the Slurm plugin.

    Returns its path: flexo-slurm-plugin_VERSION+slurmRELEASE_ARCHITECTURE.deb. Raises CannotBuild.
    """
    stage = staged.fresh(out / "stage" / "flexo-slurm-plugin")
    release, following = staged.slurm_release()
    staged.plugin(stage, Path("/usr/lib") / _said(["cc", "-print-multiarch"]) / "slurm-wlm")
    version = f"{flexo.__version__}+slurm{release}"
    return _packed(
        "flexo-slurm-plugin", stage, out, {"VERSION": version, "SLURM": release, "NEXT_SLURM": following}
    )


PACKAGES: Mapping[str, Callable[[Path], Path]] = {
    "flexo": daemon_package,
    "flexo-web": web_package,
    "flexo-slurm-plugin": plugin_package,
}


def _packed(name: str, stage: Path, out: Path, words: Mapping[str, str], architecture: str = "") -> Path:
    """Build the package `name` from `stage`, with `words` filled into its control file. Returns its path.

    `architecture`: "": this machine's.
    """
    source = HERE / "debian" / name
    files = sorted(path for path in stage.rglob("*") if path.is_file() and not path.is_symlink())
    architecture = architecture or _said(["dpkg", "--print-architecture"])
    size = sum(path.stat().st_size for path in files) >> 10
    control = (source / "control").read_text()
    for word, value in {**words, "ARCHITECTURE": architecture, "SIZE": str(size)}.items():
        control = control.replace(f"@{word}@", value)
    staged.put(stage / "DEBIAN/control", control)
    shutil.copyfile(source / "conffiles", stage / "DEBIAN/conffiles")
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n" for path in files]
    staged.put(stage / "DEBIAN/md5sums", "".join(sums))
    for script_name in _SCRIPTS:
        if (source / script_name).exists():
            shutil.copyfile(source / script_name, stage / "DEBIAN" / script_name)
            (stage / "DEBIAN" / script_name).chmod(0o755)
    package = out / f"{name}_{words['VERSION']}_{architecture}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z6", "--build", str(stage), str(package)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(stage)
    return package


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = package_command.parser("Builds flexo's Debian packages.", PACKAGES, OUT)
    options = parser.parse_args()
    if shutil.which("dpkg-deb") is None:
        sys.stderr.write("packages: dpkg-deb is missing: Debian packages are built on Debian or Ubuntu\n")
        return 1
    return package_command.build(PACKAGES, options.packages, options.out)


if __name__ == "__main__":
    sys.exit(main())
