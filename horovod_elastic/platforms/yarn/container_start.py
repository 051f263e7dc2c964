"""The first program of a container: takes the container's GPUs and secret, and becomes the supervisor.

YARN counts GPUs. Without its GPU plugin it does not say which ones a container may use. Then flexo's
containers on a node agree by locks on files, one for each GPU. The lock lives in the supervisor's process, so
it ends with the container. Programs other than flexo's do not heed it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from flexo_protos.credentials import JOB_SECRET, SCHEME_VARIABLE
from flexo_protos.job_secret import FILE_VARIABLE
from flexo_yarn import credentials
from flexo_yarn.credentials import Credentials
from horovod_elastic.platforms.base import MODULES
from horovod_elastic.platforms.yarn.environment import GPU_PLUGIN, GPUS, NM_HOST
from horovod_elastic.trace import say

SECRET: Final = "flexo-job"
"""The name of the job's secret in its credentials."""
_FILE = ".flexo-secret"
_SUPERVISOR = Path(__file__).resolve().parents[2] / "agent" / "supervisor.py"
_LOCKS = "/tmp/flexo-gpus-{}"
_MOST_GPUS = 64
WAITS_FOR_S: Final = 30.0
"""Longest wait for GPUs that an ending container still holds."""
_PAUSE_S = 0.2


class NoGpus(Exception):
    """Other jobs' containers hold the node's GPUs; the message says how many are wanted."""


def take_credentials() -> Credentials:
    """This container's credentials. The job's secret goes into a file, which the environment names.

    Raises OSError, and ValueError for a file without the secret.
    """
    found = credentials.read(Path(os.environ[credentials.VARIABLE]))
    if SECRET not in found.secrets:
        raise ValueError(f"the credentials of this container have no secret '{SECRET}'")
    path = Path.cwd() / _FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, found.secrets[SECRET].hex().encode())
    os.close(descriptor)
    os.environ[FILE_VARIABLE], os.environ[SCHEME_VARIABLE] = str(path), JOB_SECRET
    return found


def prepare_python() -> None:
    """Let `python` in the user's command be this Python, and let scripts import the container's modules.

    Files in the container's folder are links to other folders, and Python looks beside the script only.
    """
    folder = Path(sys.executable).parent  # not resolved: a virtual environment's Python is a link
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    os.environ[MODULES] = str(Path.cwd())


def take_gpus(count: int, environment: Mapping[str, str]) -> tuple[int, ...]:
    """Lock `count` of the node's GPUs while this process lives; return their numbers. Raises NoGpus."""
    folder = Path(_LOCKS.format(environment.get(NM_HOST) or os.uname().nodename))
    folder.mkdir(exist_ok=True)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o1777)
    deadline = time.monotonic() + WAITS_FOR_S
    taken: dict[int, int] = {}
    while len(taken) < count:
        for number in _numbers():
            if len(taken) < count and number not in taken:
                descriptor = _lock(folder / str(number))
                if descriptor is not None:
                    taken[number] = descriptor
        if len(taken) < count:
            if time.monotonic() > deadline:
                raise NoGpus(
                    f"{count} GPUs are wanted, and other jobs hold all but {len(taken)} of the node's"
                )
            time.sleep(_PAUSE_S)
    for descriptor in taken.values():
        os.set_inheritable(descriptor, True)
    return tuple(sorted(taken))


def _numbers() -> Sequence[int]:
    """The numbers of the node's GPUs; where there is no NVIDIA device, YARN's count is all there is."""
    devices = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(map(int, devices)) or range(_MOST_GPUS)


def _lock(path: Path) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        before = os.umask(0)
        try:
            descriptor = os.open(path, flags, 0o666)
        finally:
            os.umask(before)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def main(arguments: Sequence[str]) -> NoReturn:
    """Entry point of `python -m horovod_elastic.platforms.yarn.container_start --gpus N -- ARGUMENTS`."""
    parser = argparse.ArgumentParser(prog="container_start")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of this container")
    parser.add_argument("supervisor", nargs=argparse.REMAINDER, help="-- and the supervisor's arguments")
    options = parser.parse_args(arguments)
    take_credentials()
    prepare_python()
    if options.gpus and os.environ.get(GPU_PLUGIN) != "1":
        try:
            taken = ",".join(map(str, take_gpus(options.gpus, os.environ)))
        except NoGpus as error:
            say(str(error))
            sys.exit(os.EX_TEMPFAIL)
        os.environ[GPUS] = os.environ["CUDA_VISIBLE_DEVICES"] = taken
    words = options.supervisor[1:] if options.supervisor[:1] == ["--"] else options.supervisor
    os.execv(sys.executable, [sys.executable, "-I", "-S", str(_SUPERVISOR), *words])


if __name__ == "__main__":
    main(sys.argv[1:])
