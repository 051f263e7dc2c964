"""Names and types the environment variables by which a process learns that it shares a GPU.

`flexo share` sets these variables, and so does every other room that starts a process on a shared GPU.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROLE, GPU, FOLDER = "FLEXO_SHARING_ROLE", "FLEXO_SHARING_GPU", "FLEXO_SHARING_FOLDER"
JOB, SUPERVISOR, CONSENT = "FLEXO_SHARING_JOB", "FLEXO_SHARING_SUPERVISOR", "FLEXO_SHARING_CONSENT"
ALL = (ROLE, GPU, FOLDER, JOB, SUPERVISOR, CONSENT)

DEFAULT_FOLDER = Path("/run/flexo/sharing")
"""The folder of a node's coordinator: its socket and its status file."""
_PACKAGES = Path(__file__).resolve().parents[2]
_INJECT = _PACKAGES / "horovod_elastic" / "inject"
EVERYBODY = -1
"""In a job's consent: any user's job may run beside it, because somebody else decides whose does."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")

_NUMBERED = re.compile(r"gpu(0|[1-9][0-9]*)")


class Role(enum.Enum):
    """A job's role on a shared GPU (AntMan, section 4.1: resource-guarantee and opportunistic jobs)."""

    GUARANTEE = "guarantee"
    OPPORTUNISTIC = "opportunistic"


class WrongVariable(ValueError):
    """A variable or an argument of sharing has a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How one process shares a GPU.

    `gpu`: the coordinator's name of the GPU. `job`: what people call the job, for the status only.
    `supervisor`: the socket of the job's supervisor, None without one. `consent`: user ids beside whose
    jobs this job agrees to run, or EVERYBODY; jobs of the same user need none.
    """

    role: Role
    gpu: str
    folder: Path = DEFAULT_FOLDER
    job: str = ""
    supervisor: Path | None = None
    consent: frozenset[int] = frozenset()


def for_process(sharing: Sharing, present: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables to add to the environment of a process that shares a GPU.

    `present`: the environment that the process gets otherwise; by default this process's own. Its
    PYTHONPATH is kept, behind the folder whose sitecustomize loads the layer. Raises WrongVariable for a
    GPU's name that no coordinator accepts.
    """
    checked_gpu(sharing.gpu)
    path = (os.environ if present is None else present).get("PYTHONPATH", "")
    first = [str(_INJECT), *([] if _importable_without_path() else [str(_PACKAGES)])]
    folders = [each for each in path.split(os.pathsep) if each and each not in first]
    added = {
        ROLE: sharing.role.value,
        GPU: sharing.gpu,
        FOLDER: str(sharing.folder),
        JOB: sharing.job,
        CONSENT: "*" if EVERYBODY in sharing.consent else ",".join(map(str, sorted(sharing.consent))),
        "PYTHONPATH": os.pathsep.join([*first, *folders]),
    }
    if sharing.supervisor is not None:
        added[SUPERVISOR] = str(sharing.supervisor)
    return added


def _importable_without_path() -> bool:
    """Whether this package is installed, so that Pythons of the same environment find it by themselves."""
    return _PACKAGES.name in ("site-packages", "dist-packages")


def of_guarantee(gpu: str, folder: Path = DEFAULT_FOLDER, job: str = "") -> dict[str, str]:
    """The variables to add for a process of a guarantee job."""
    return for_process(Sharing(Role.GUARANTEE, gpu, folder, job))


def of_opportunistic(gpu: str, folder: Path = DEFAULT_FOLDER, job: str = "") -> dict[str, str]:
    """The variables to add for a process of an opportunistic job."""
    return for_process(Sharing(Role.OPPORTUNISTIC, gpu, folder, job))


def read(environment: Mapping[str, str]) -> Sharing | None:
    """How the process of this environment shares a GPU; None if it shares none.

    Raises WrongVariable, which names the variable and what is allowed.
    """
    word = environment.get(ROLE, "")
    if not word:
        return None
    try:
        role = Role(word)
    except ValueError:
        roles = ", ".join(each.value for each in Role)
        raise WrongVariable(
            f"{ROLE} is {word!r}; allowed are {roles}. Start the job with flexo share"
        ) from None
    supervisor = environment.get(SUPERVISOR, "")
    return Sharing(
        role,
        checked_gpu(environment.get(GPU, "")),
        folder_of(environment),
        environment.get(JOB, ""),
        Path(supervisor) if supervisor else None,
        users(environment.get(CONSENT, "")),
    )


def folder_of(environment: Mapping[str, str]) -> Path:
    """The folder of the node's coordinator, by the environment or by default."""
    return Path(environment.get(FOLDER) or DEFAULT_FOLDER)


def checked_gpu(name: str) -> str:
    """The name of a GPU, if a coordinator can have a GPU of this name; raises WrongVariable otherwise."""
    if not _NAME.fullmatch(name):
        raise WrongVariable(
            f"{name!r} is no name of a GPU: allowed are up to 64 letters, digits and . _ : - after a"
            " letter or digit. `flexo share status` lists the GPUs of this node"
        )
    return name


def gpu_name(number: int) -> str:
    """The coordinator's name of the GPU with this number on the node: N of /dev/nvidiaN."""
    return f"gpu{number}"


def gpu_number(name: str) -> int | None:
    """The inverse of `gpu_name`; None for a device that exists by declaration under another name."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else None


def users(text: str) -> frozenset[int]:
    """User ids, written with commas between them; `*`: everybody."""
    if text == "*":
        return frozenset({EVERYBODY})
    words = [word for word in text.split(",") if word]
    if not all(word.isascii() and word.isdigit() and len(word) <= 10 for word in words):
        raise WrongVariable(f"{CONSENT} is {text!r}; allowed are user ids with commas between them")
    return frozenset(map(int, words))
