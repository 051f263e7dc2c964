"""Builds Debian packages: python packages/build_debs.py [--out FOLDER] [PACKAGE...].

The package `flexo` has daemon and command. `flexo-web` has the unit and the account of the web pages; their
code is in `flexo`. `flexo-slurm-plugin` has the files that Slurm loads, compiled
against the headers that are installed here. The build needs dpkg-deb and, for the plugin, a compiler and
libslurm-dev. It needs neither network nor root.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import manual
import python_tree

import flexo
from flexo_cli.completion import Shell, script

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "build" / "deb"
PREFIX = Path("/usr/lib/flexo")
_COMPLETIONS = {
    Shell.BASH: "usr/share/bash-completion/completions/flexo",
    Shell.ZSH: "usr/share/zsh/vendor-completions/_flexo",
    Shell.FISH: "usr/share/fish/vendor_completions.d/flexo.fish",
}
HEADER = "slurm/slurm_version.h"
_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


class CannotBuild(Exception):
    """Something that the build needs is missing; the message names it."""


def daemon_package(out: Path) -> Path:
    """Build the package of daemon and command. Returns its path: flexo_VERSION_ARCHITECTURE.deb."""
    stage = _fresh(out / "stage" / "flexo")
    python_tree.build(stage, PREFIX)
    for name in ("flexo", "flexod"):
        _link(stage / "usr/bin" / name, PREFIX / "bin" / name)
    _put(stage / "etc/flexo/flexo.toml", (ROOT / "daemon/flexo/flexo.toml.example").read_text())
    systemd = HERE / "systemd"
    _put(stage / "usr/lib/systemd/system/flexod.service", (systemd / "flexod.service").read_text())
    _put(stage / "usr/lib/sysusers.d/flexo.conf", (systemd / "flexo.sysusers").read_text())
    _put(stage / "usr/lib/tmpfiles.d/flexo.conf", (systemd / "flexo.tmpfiles").read_text())
    for name in ("grafana-dashboard.json", "alerts.yml"):
        _put(stage / "usr/share/flexo" / name, (ROOT / "daemon/flexo/metrics" / name).read_text())
    documents = stage / "usr/share/doc/flexo"
    _put(documents / "examples/flexod-lending.conf", (systemd / "flexod-lending.conf").read_text())
    _put(documents / "README.md", (ROOT / "README.md").read_text())
    for shell, path in _COMPLETIONS.items():
        _put(stage / path, script(shell) + "\n")
    _put_manual(stage, manual.pages())
    major, minor = sys.version_info[:2]
    words = {
        "VERSION": flexo.__version__,
        "PYTHON": f"{major}.{minor}",
        "NEXT_PYTHON": f"{major}.{minor + 1}",
    }
    return _packed("flexo", stage, out, words)


def web_package(out: Path) -> Path:
    """Build the package of the web pages. Returns its path: flexo-web_VERSION_all.deb."""
    stage = _fresh(out / "stage" / "flexo-web")
    _link(stage / "usr/bin/flexo-web", PREFIX / "bin/flexo-web")
    systemd = HERE / "systemd"
    _put(stage / "usr/lib/systemd/system/flexo-web.service", (systemd / "flexo-web.service").read_text())
    _put(stage / "usr/lib/sysusers.d/flexo-web.conf", (systemd / "flexo-web.sysusers").read_text())
    _put(stage / "usr/lib/tmpfiles.d/flexo-web.conf", (systemd / "flexo-web.tmpfiles").read_text())
    _put(stage / "etc/default/flexo-web", (systemd / "flexo-web.default").read_text())
    return _packed("flexo-web", stage, out, {"VERSION": flexo.__version__}, architecture="all")


def plugin_package(out: Path) -> Path:
    """Build the package of the Slurm plugin.

    Returns its path: flexo-slurm-plugin_VERSION+slurmRELEASE_ARCHITECTURE.deb.
    """
    stage = _fresh(out / "stage" / "flexo-slurm-plugin")
    release, following = slurm_release()
    libraries = Path("/usr/lib") / _said(["cc", "-print-multiarch"]) / "slurm-wlm"
    install = ["make", "--no-print-directory", "-C", str(ROOT / "slurm_plugin"), f"DESTDIR={stage}"]
    subprocess.run(
        [*install, "PREFIX=/usr", f"LIBDIR={libraries}", "install", "install-partition"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    line = (HERE / "debian/flexo-slurm-plugin/flexo.conf").read_text()
    _put(stage / "etc/slurm/plugstack.conf.d/flexo.conf", line.replace("@LIBDIR@", str(libraries)))
    _put_manual(stage, manual.plugin_pages())
    version = f"{flexo.__version__}+slurm{release}"
    return _packed(
        "flexo-slurm-plugin", stage, out, {"VERSION": version, "SLURM": release, "NEXT_SLURM": following}
    )


def slurm_release() -> tuple[str, str]:
    """Release of the Slurm headers, and a lower bound of the next: ("22.05", "22.06"). Raises CannotBuild."""
    source = f"#include <{HEADER}>\nversion SLURM_VERSION_NUMBER\n"
    flags = shlex.split(os.environ.get("CPPFLAGS", ""))  # slurm_plugin/Makefile reads CPPFLAGS, too
    done = subprocess.run(
        ["cc", *flags, "-E", "-P", "-xc", "-"], input=source, capture_output=True, text=True
    )
    match = re.search(r"^version\s+0x([0-9a-f]{2})([0-9a-f]{2})[0-9a-f]{2}$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or match is None:
        raise CannotBuild(f"{HEADER} is missing: install libslurm-dev, or Slurm's own development files")
    year, month = int(match[1], 16), int(match[2], 16)
    return f"{year}.{month:02}", f"{year}.{month + 1:02}"


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
    _put(stage / "DEBIAN/control", control)
    shutil.copyfile(source / "conffiles", stage / "DEBIAN/conffiles")
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n" for path in files]
    _put(stage / "DEBIAN/md5sums", "".join(sums))
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


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _put_manual(stage: Path, pages: Iterable[manual.Page]) -> None:
    for page in pages:
        path = stage / "usr/share/man" / page.path.parent / f"{page.path.name}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(page.text.encode(), mtime=0))


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Builds flexo's Debian packages.")
    parser.add_argument("--out", type=Path, default=OUT, help="where they are put; else %(default)s")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(PACKAGES)}; else all")
    options = parser.parse_args()
    if unknown := set(options.packages) - set(PACKAGES):
        parser.error(f"there is no package {sorted(unknown)[0]}; there are: {', '.join(PACKAGES)}")
    if shutil.which("dpkg-deb") is None:
        sys.stderr.write("packages: dpkg-deb is missing: Debian packages are built on Debian or Ubuntu\n")
        return 1
    os.umask(0o022)
    try:
        for name in options.packages or PACKAGES:
            print(PACKAGES[name](options.out.resolve()))
    except CannotBuild as error:
        sys.stderr.write(f"packages: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
