"""Folder systems: a release of Debian each, with its own Slurm, MUNGE, MariaDB, compiler, Lua and Python.

mmdebstrap makes one from the archive that this machine's own apt goes by, pip puts beside it what flexo
depends on; flexo itself and the plugin are added for every run (session.py). Made in one go, or not at all:
a folder that is there is whole. It may be removed at any time with rm -r, and is made again when needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SLURM = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libslurm-dev"),
    *("slurmdbd", "slurm-wlm-mysql-plugin", "munge", "mariadb-server-core", "mariadb-client-core"),
)
OTHERS = (
    *("procps", "util-linux", "mount", "sudo", "make", "gcc", "libc6-dev", "lua5.1", "lua5.3", "lua5.4"),
    *("python3", "python3-venv", "python3-dev"),
    *("libstdc++6", "init-system-helpers", "systemd-standalone-sysusers", "systemd-standalone-tmpfiles"),
)
NOT_NEEDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
TOOLS = (
    *("pytest", "pytest-timeout", "hypothesis", "setuptools", "wheel", "packaging", "Cython<4"),
    *("grpcio-tools", "mypy-protobuf"),
)
"""For the tests, and for building pyslurm and flexo's packages."""
PACKAGED = ("site", "etcd", "openid")
"""flexo's extras that its Debian package has."""
SHOWN = ("slurmctld", "munge", "mariadb-server-core", "python3", "gcc")
"""Packages whose versions are told."""
VENV = "/venv"
PYSLURM_FLAGS = " ".join(
    (
        *("-O1", "-DSLURM_BACKWARD_COMPAT", "-Dslurm_free_ctl_conf=slurm_free_conf"),
        "-DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2038",
    )
)
"""With which pyslurm 25.11, the last there is, compiles against the headers of 26.05."""
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
"""Mounts and processes of a command end with it, and it ends with whoever has started it, killed or not."""
_MAKE_S = 1800


class CannotMake(Exception):
    """There can be no such system here; the message says why."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A release of Debian."""

    name: str
    slurm: str
    """The release of Slurm that it is wanted for."""
    pyslurm: bool = False
    """Whether pyslurm is built."""


SUITES = (Suite("bookworm", "22.05"), Suite("trixie", "24.11"), Suite("forky", "26.05", pyslurm=True))
"""Oldest first."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a system is made of."""

    versions: dict[str, str]
    """By package."""
    made_in_s: float
    size_mb: int


@dataclass(frozen=True, slots=True)
class System:
    """One that is there."""

    suite: Suite
    root: Path
    facts: Facts


def cache() -> Path:
    """Where they are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flexo"
    return Path(os.environ.get("FLEXO_CACHE") or home) / "releases"


def why_impossible() -> str | None:
    """One sentence saying what is missing on this machine, or None."""
    if os.geteuid() != 0:
        return "folder systems need root"
    missing = [name for name in ("mmdebstrap", "unshare", "setpriv", "apt-get") if shutil.which(name) is None]
    return f"{missing[0]} is not installed" if missing else None


def system(suite: Suite, *, fresh: bool = False) -> System:
    """The system of `suite`, made if it is not there, or if a `fresh` one is wanted. Raises CannotMake."""
    if reason := why_impossible():
        raise CannotMake(reason)
    folder = cache() / f"{suite.name}-{_fingerprint(suite)}"
    if fresh or not folder.exists():
        with _locked(suite, fcntl.LOCK_EX):
            if fresh:
                _remove(folder)
            if not folder.exists():  # nobody else has made it meanwhile
                _make(suite, folder)
    return System(suite, folder / "root", Facts(**json.loads((folder / "facts.json").read_text())))


@contextmanager
def in_use(system: System) -> Iterator[None]:
    """Its folder stays as it is meanwhile."""
    with _locked(system.suite, fcntl.LOCK_SH):
        yield


def pyslurm(system: System) -> str:
    """The version of pyslurm in the system, built now if that was not tried yet; else why there is none.

    Compiling takes minutes, and flexo does without it.
    """
    if not system.suite.pyslurm:
        return "not built for this one"
    tried = system.root.parent / "pyslurm.txt"
    if not tried.exists():
        with _locked(system.suite, fcntl.LOCK_EX):
            said = _add_pyslurm(system.root)
            tried.write_text(said + "\n")
    return tried.read_text().strip()


def requirements() -> list[str]:
    """What flexo's daemon, jobs and tests need besides Slurm and Horovod, as constraints.txt pins it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {pin.partition("==")[0].lower(): pin for pin in locked if not pin.startswith("#")}
    extras = project["optional-dependencies"]
    packaged = [wanted for extra in PACKAGED for wanted in extras[extra]]
    needed = (*project["dependencies"], *packaged, *TOOLS)
    return [pins.get(re.split(r"[^\w.-]", wanted, maxsplit=1)[0].lower(), wanted) for wanted in needed]


def archive_address() -> str:
    """The archive that this machine's apt has Debian itself from. Raises CannotMake."""
    wanted = ["--format", "$(REPO_URI) $(SUITE) $(COMPONENT)", "Created-By: Packages", "Origin: Debian"]
    said = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True).stdout
    rows = [line.split() for line in said.splitlines()]
    found = [uri for uri, suite, component in rows if component == "main" and "-" not in suite]
    if not found:
        raise CannotMake("apt knows no archive of Debian's (`apt-get indextargets`); apt-get update?")
    return found[0]


def _fingerprint(suite: Suite) -> str:
    made_of = (*SLURM, *OTHERS, *NOT_NEEDED, *requirements(), PYSLURM_FLAGS if suite.pyslurm else "")
    return hashlib.sha256(" ".join(made_of).encode()).hexdigest()[:8]


def _make(suite: Suite, folder: Path) -> None:
    began = time.monotonic()
    half = folder.with_suffix(".new")
    _remove(half)
    half.mkdir()
    try:
        root = half / "root"
        _bootstrap(suite, root)
        _add_python(root)
        size_mb = int(_said(["du", "-sxm", str(root)]).split()[0])
        facts = Facts(_versions(root), round(time.monotonic() - began, 1), size_mb)
        (half / "facts.json").write_text(json.dumps(asdict(facts), indent=2) + "\n")
        half.rename(folder)
    except subprocess.CalledProcessError as failure:
        words = (failure.stderr or failure.stdout or "no words").strip().splitlines()[-6:]
        raise CannotMake(f"`{' '.join(failure.cmd)[:200]}` failed: {' | '.join(words)}") from failure
    finally:
        _remove(half)


def _bootstrap(suite: Suite, root: Path) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join((*SLURM, *OTHERS))}"]
    command += [f"--dpkgopt=path-exclude={path}" for path in NOT_NEEDED]
    # a suite that still changes is signed for days only: a mirror that stands still would be refused
    command += ['--aptopt=Acquire::Check-Valid-Until "false"']
    _said([*ALONE, *command, suite.name, str(root), archive_address()])


def _add_python(root: Path) -> None:
    """What flexo and its tests import, in /venv: this machine's pip downloads, the system's installs."""
    python = _in(root, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    wheels = root / "wheels"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels)]
    _said([*download, "--only-binary=:all:", "--python-version", python, *requirements()])
    _in(root, "python3", "-m", "venv", VENV)
    _in(root, f"{VENV}/bin/pip", "install", "--quiet", "--no-index", "--find-links=/wheels", *requirements())
    shutil.rmtree(wheels)


def _add_pyslurm(root: Path) -> str:
    """Its version, or why it is not there: flexo does without it, so that is no failure."""
    sources, headers = root / "wheels", root / "headers"
    _remove(headers)  # of an attempt that was killed
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(sources), "--no-deps"]
    try:
        _said([*download, "--no-build-isolation", "--no-binary=pyslurm", "pyslurm==25.11.*"])
        shutil.copytree(root / "usr/include/slurm", headers / "slurm", symlinks=True)
        version = headers / "slurm/slurm_version.h"
        _said(["sed", "-i", r"s/^\(#define SLURM_VERSION_NUMBER\).*/\1 0x190b02/", str(version)])
        library = _in(root, "find", "/usr/lib", "-name", "libslurmfull.so", "-printf", "%h").strip()
        flags = [f"SLURM_LIB_DIR={library}", "SLURM_INCLUDE_DIR=/headers", f"CFLAGS={PYSLURM_FLAGS}"]
        install = [f"{VENV}/bin/pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
        _in(root, "env", *flags, *install, "--find-links=/wheels", "pyslurm")
    except subprocess.CalledProcessError as failure:
        words = (failure.stderr or failure.stdout or "no words").strip().splitlines()
        return f"none: {words[-1][:200] if words else 'no words'}"
    finally:
        shutil.rmtree(sources, ignore_errors=True)
    return _in(
        root, f"{VENV}/bin/python", "-c", "import importlib.metadata as m; print(m.version('pyslurm'))"
    ).strip()


def _versions(root: Path) -> dict[str, str]:
    listed = _in(root, "dpkg-query", "-W", "-f", "${Package} ${Version}\n", *SHOWN)
    return dict(line.split() for line in listed.splitlines())


def _in(root: Path, *command: str) -> str:
    """What a command prints in the system."""
    enter = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root"]
    return _said([*clean, *ALONE, "/bin/sh", "-c", enter, str(root), *command])


def _said(command: list[str]) -> str:
    """Run it so that it ends with us."""
    tied = ["setpriv", "--pdeathsig", "KILL", *command]
    done = subprocess.run(tied, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MAKE_S)
    done.check_returncode()
    return done.stdout


def _remove(folder: Path) -> None:
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)


@contextmanager
def _locked(suite: Suite, how: int) -> Iterator[None]:
    """LOCK_EX to change its folder, LOCK_SH for it to stay as it is."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{suite.name}.lock").open("a") as file:
        fcntl.flock(file, how)
        yield
