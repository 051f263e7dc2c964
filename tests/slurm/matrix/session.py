"""A session in a folder system: flexo's wheels and the plugin are put into it, tests run, nothing stays.

What is written goes to memory, laid over the folder (overlayfs), in name spaces of mounts, processes and
network of its own; all three end with the session, also when it is killed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matrix.parts import Part
from matrix.systems import ALONE, ROOT, VENV, CannotMake, System, in_use

TAKEN = ("tests", "examples", "slurm_plugin", "pyproject.toml")
"""Of this checkout; flexo itself comes as wheels."""
SOURCE = (
    *("packages", "daemon", "horovod_elastic", "protos", "yarn_plugin", "slurm_plugin"),
    *("setup.py", "pyproject.toml", "README.md", "LICENSE"),
)
"""What packages are built from, in a folder `source` of its own: nothing else imports from there."""
_ENTER = """
set -eu
root=$1 stage=$2 out=$3; shift 3
over=$stage/over
mount -t tmpfs -o mode=755 none "$over"
mkdir "$over/upper" "$over/work" "$over/root"
mount -t overlay -o "lowerdir=$root,upperdir=$over/upper,workdir=$over/work" overlay "$over/root"
cd "$over/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs none run
mkdir -p run/munge flexo out
cp -a "$stage/tree/." flexo/
mount --bind "$out" out
# from 24.11 on, a job with --export=NONE starts only for a user who can log in
sed -i -E '/^(games|news):/s|/usr/sbin/nologin|/bin/sh|' etc/passwd
printf '127.0.0.1 localhost %s\\n' "$(hostname)" > etc/hosts
ip link set lo up
ip address add 192.0.2.1/32 dev lo  # with 127.0.0.1 alone, Slurm finds no address to listen on
exec chroot . "$@"
"""


def run(system: System, parts: Sequence[Part], out: Path) -> None:
    """Run `parts` in the system; `out` then has result.json and logs (inside.py). Raises CannotMake."""
    stage = out / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "over").mkdir(parents=True)
    try:
        _take(stage / "tree")
        (out / "parts.json").write_text(json.dumps([asdict(part) for part in parts]))
        _enter(system, stage, out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _take(tree: Path) -> None:
    """This checkout's files as they are, without what was built; and flexo's wheels."""
    _copy(TAKEN, tree)
    _copy(SOURCE, tree / "source")
    build = [sys.executable, str(ROOT / "packages" / "own_wheels.py"), str(tree)]
    made = subprocess.run(build, capture_output=True, text=True)
    if made.returncode:
        raise CannotMake(f"flexo's wheels could not be built: {made.stderr.strip()[-500:]}")


def _copy(names: Sequence[str], folder: Path) -> None:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *names]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def _enter(system: System, stage: Path, out: Path) -> None:
    environment = {
        "PATH": f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
        "CI": "true",  # what cannot run fails instead of being skipped
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "FLEXO_SLURM_MATRIX": system.suite.name,
    }
    inside = [f"{VENV}/bin/python", "/flexo/tests/slurm/matrix/inside.py"]
    places = [str(system.root), str(stage), str(out)]
    with in_use(system), (out / "session.log").open("w") as log:
        subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", *ALONE, "--net", "bash", "-c", _ENTER, "_", *places, *inside],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if not (out / "result.json").exists():
        words = (out / "session.log").read_text().strip().splitlines()[-8:]
        raise CannotMake(f"the session ended early: {' | '.join(words)}")
