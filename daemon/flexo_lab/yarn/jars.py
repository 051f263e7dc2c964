"""Hadoop's jars for a YARN lab: downloaded once with Maven, as pom.xml says, and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flexo_lab.errors import LabFailed, LabUnavailable
from flexo_lab.teardown import Progress, silent

POM = Path(__file__).with_name("pom.xml")
LEAST_JAVA = 17
_DOWNLOAD_S = 1800
_PACKAGE_OF = {"java": "openjdk-17-jre-headless", "mvn": "maven"}


def hadoop_version() -> str:
    """The version of Hadoop in pom.xml."""
    (version,) = re.findall(r"<hadoop\.version>(.*?)</hadoop\.version>", POM.read_text())
    return str(version)


def cached() -> Path:
    """The directory of the jars, whether they are there or not."""
    home = os.environ.get("FLEXO_CACHE")
    cache = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flexo"
    return cache / f"hadoop-{hadoop_version()}"


def ensure(progress: Progress = silent) -> Path:
    """The directory of the jars. Downloads them if they are missing. Raises LabUnavailable, LabFailed."""
    jars = cached()
    jars.parent.mkdir(parents=True, exist_ok=True)
    with _lock(jars.with_name(f"{jars.name}.lock")):
        if not jars.is_dir():
            progress(f"downloading Hadoop {hadoop_version()} (once, 90 MB)")
            _download(jars)
    return jars


def why_unavailable() -> str | None:
    """One sentence saying what is missing for a YARN lab, or None."""
    needed = ["java"] if cached().is_dir() else ["java", "mvn"]
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        packages = " ".join(_PACKAGE_OF[name] for name in missing)
        return f"a YARN lab needs {', '.join(missing)} (on Debian: apt-get install {packages})"
    if (found := _java_version()) < LEAST_JAVA:
        return f"a YARN lab needs Java {LEAST_JAVA} or later; `java -version` names {found or 'none'}"
    return None


def _java_version() -> int:
    """The major version of java; 0 if it cannot be read."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', said)
    return int(match[1]) if match else 0


def _download(jars: Path) -> None:
    """Let Maven copy all jars into a new directory, which becomes `jars` when it is complete."""
    if (reason := why_unavailable()) is not None:
        raise LabUnavailable(reason)
    with tempfile.TemporaryDirectory(dir=jars.parent) as work:
        shutil.copy(POM, work)
        command = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line][:5]
            raise LabFailed("\n".join([f"{' '.join(command)} failed:", *(f"    {line}" for line in lines)]))
        Path(work, "jars").rename(jars)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
