"""Lays out the files of flexo's packages in a folder, as they lie on a host: for .deb and .rpm alike.

The plugin is compiled against the Slurm headers that are installed here. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import manual
import python_tree

from flexo_cli.completion import Shell, script

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PREFIX = Path("/usr/lib/flexo")
HEADER = "slurm/slurm_version.h"
_COMPLETIONS = {
    Shell.BASH: "usr/share/bash-completion/completions/flexo",
    Shell.ZSH: "usr/share/zsh/%s/_flexo",
    Shell.FISH: "usr/share/fish/vendor_completions.d/flexo.fish",
}


class CannotBuild(Exception):
    """Something that the build needs is missing; the message names it."""


def daemon(stage: Path, zsh_folder: str) -> None:
    """Lay out daemon and command in `stage`. `zsh_folder`: where the distribution's zsh finds completions."""
    python_tree.build(stage, PREFIX)
    for name in ("flexo", "flexod"):
        _link(stage / "usr/bin" / name, PREFIX / "bin" / name)
    put(stage / "etc/flexo/flexo.toml", (ROOT / "daemon/flexo/flexo.toml.example").read_text())
    systemd = HERE / "systemd"
    put(stage / "usr/lib/systemd/system/flexod.service", (systemd / "flexod.service").read_text())
    put(stage / "usr/lib/sysusers.d/flexo.conf", (systemd / "flexo.sysusers").read_text())
    put(stage / "usr/lib/tmpfiles.d/flexo.conf", (systemd / "flexo.tmpfiles").read_text())
    for name in ("grafana-dashboard.json", "alerts.yml"):
        put(stage / "usr/share/flexo" / name, (ROOT / "daemon/flexo/metrics" / name).read_text())
    documents = stage / "usr/share/doc/flexo"
    put(documents / "examples/flexod-lending.conf", (systemd / "flexod-lending.conf").read_text())
    put(documents / "README.md", (ROOT / "README.md").read_text())
    for shell, path in _COMPLETIONS.items():
        put(stage / path.replace("%s", zsh_folder), script(shell) + "\n")
    _put_manual(stage, manual.pages())


def web(stage: Path) -> None:
    """Lay out the unit and the account of the web pages in `stage`. Their code is the daemon's package."""
    _link(stage / "usr/bin/flexo-web", PREFIX / "bin/flexo-web")
    systemd = HERE / "systemd"
    put(stage / "usr/lib/systemd/system/flexo-web.service", (systemd / "flexo-web.service").read_text())
    put(stage / "usr/lib/sysusers.d/flexo-web.conf", (systemd / "flexo-web.sysusers").read_text())
    put(stage / "usr/lib/tmpfiles.d/flexo-web.conf", (systemd / "flexo-web.tmpfiles").read_text())
    put(stage / "etc/default/flexo-web", (systemd / "flexo-web.default").read_text())


def plugin(stage: Path, libraries: Path) -> None:
    """Lay out the Slurm plugin in `stage`. `libraries`: the folder where it is to lie on the host."""
    install = ["make", "--no-print-directory", "-C", str(ROOT / "slurm_plugin"), f"DESTDIR={stage}"]
    subprocess.run(
        [*install, "PREFIX=/usr", f"LIBDIR={libraries}", "install", "install-partition"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    line = (HERE / "plugstack.conf").read_text()
    put(stage / "etc/slurm/plugstack.conf.d/flexo.conf", line.replace("@LIBDIR@", str(libraries)))
    _put_manual(stage, manual.plugin_pages())


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


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def put(path: Path, text: str) -> None:
    """Write a file, and make the folders above it."""
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
