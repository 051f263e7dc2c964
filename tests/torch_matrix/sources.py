"""Finds the sources of the scripts, or gets them, and checks that nobody has changed the scripts."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path

from catalogue import Script

TIMEOUT_S = 120.0


class NotThere(Exception):
    """A repository is missing and could not be got: not every machine reaches GitHub."""


def source_of(script: Script, home: Path) -> Path:
    """The folder with the script's source in `home`, unpacked if need be.

    Raises NotThere, and ValueError if an archive or the script is not the one of the catalogue.
    """
    folder = home / script.folder
    if not (folder / script.path).exists():
        _unpack(script, folder) if script.archive else _check_out(script, folder)
    found = hashlib.sha256((folder / script.path).read_bytes()).hexdigest()
    if found != script.sha256:
        raise ValueError(f"{folder / script.path}: its SHA-256 is {found}, not {script.sha256}")
    return folder


def _unpack(script: Script, folder: Path) -> None:
    name = script.archive.partition("==")[0]
    try:
        content = _archive(name, script.archive_sha256)
    except (OSError, StopIteration) as error:
        raise ValueError(f"PyPI has not given the source archive of {script.archive}: {error!r}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != script.archive_sha256:
        raise ValueError(f"the source archive of {script.archive} has the SHA-256 {found}")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        inside = archive.getnames()[0].split("/")[0]
        archive.extractall(folder.parent)  # which is known by its hash
    if folder.name != inside:
        (folder.parent / inside).rename(folder)


def _archive(name: str, sha256: str) -> bytes:
    """The project's file with this hash, by the simple API (PEP 691), which all indexes have.

    Raises StopIteration if there is none.
    """
    address = f"https://pypi.org/simple/{name}/"
    asked = urllib.request.Request(address, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as page:
        files = json.load(page)["files"]
    url = next(each["url"] for each in files if each["hashes"].get("sha256") == sha256)
    with urllib.request.urlopen(urllib.parse.urljoin(address, url), timeout=TIMEOUT_S) as file:
        return bytes(file.read())


def _check_out(script: Script, folder: Path) -> None:
    url = f"https://github.com/{script.repository}"
    commands = (
        ["init", "--quiet", str(folder)],
        ["-C", str(folder), "fetch", "--quiet", "--depth=1", url, script.commit],
        ["-C", str(folder), "checkout", "--quiet", "FETCH_HEAD"],
    )
    for command in commands:
        done = subprocess.run(
            ["git", *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            raise NotThere(f"{url} at {script.commit} could not be had: {done.stderr.strip()[-300:]}")
