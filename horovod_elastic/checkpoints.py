"""A job's checkpoint (Amoeba, Table 1): one file with all that the training state holds at one boundary.

Written by rank 0 between two mini-batches, so it is consistent; under another name first, so that a reader
finds the whole file or none. It is a file of torch.save that holds numbers, text and tensors only:
`torch.load(path, weights_only=True)` reads it, and reading one that somebody else made runs nobody's code.

The path comes from flexod, and so perhaps from an administrator, or from whoever has taken flexod over. So a
checkpoint replaces nothing but an earlier checkpoint of the same job, and this is decided here, in the job.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, cast

from horovod_elastic.stateful import LEFT_OUT, capture, put_back

FORMAT = 1
_MARK = "flexo checkpoint"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class CheckpointError(Exception):
    """A checkpoint that cannot be written or read; the message says what, where, and what is allowed."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Of which training a checkpoint is. Where the epoch stands is part of the state itself."""

    job_id: int
    restart_count: int
    generation: int
    commits: int
    """Mini-batches committed by the state."""
    workers: int
    node: str
    """Where it was written: the path is as this node sees it."""
    flexo_version: str
    written_at: float = 0.0
    """Seconds since the epoch; set by `write`."""
    torch_version: str = ""
    """Set by `write`."""


class _Handler(Protocol):
    value: Any


class ElasticState(Protocol):
    """Horovod's TorchState, as far as it is used here.

    It keeps what has a state_dict (models, optimizers, samplers, shards) in handlers, and everything else
    as saved attributes; Horovod has no public way to ask for either (horovod 0.28.1, torch/elastic/state.py
    and common/elastic.py: ObjectState).
    """

    _handlers: Mapping[str, _Handler]
    _saved_state: Mapping[str, object]

    def save(self) -> None:
        """Remember the present values, for restore()."""
        ...


def write(
    state: ElasticState, path: Path, about: CheckpointInfo, within: Path | None = None
) -> CheckpointInfo:
    """Write all that `state` holds to `path`; returns `about` with what is known only now.

    `path` is absolute and its folder exists, `within` that folder or one below it if that is given. Only an
    earlier checkpoint of the same job is replaced. Raises CheckpointError; then `path` is as it was, and
    nothing else is left beside it.

    The state is saved first, as a commit does: models say what they are now, data pipelines where they were
    at the last save, and the file must not hold one without the other.
    """
    _check_place(path, within)
    earlier = _earlier(path, about.job_id)
    import torch

    state.save()
    about = CheckpointInfo(
        **{**asdict(about), "written_at": time.time(), "torch_version": str(torch.__version__)}
    )
    content = {
        "format": _MARK,
        "version": FORMAT,
        "about": asdict(about),
        "state": {name: capture(handler.value) for name, handler in _kept(state).items()},
        "objects": {name: getattr(state, name) for name in state._saved_state},
    }
    _check_plain(content["state"], "state")
    _check_plain(content["objects"], "state")
    with _writing(path, earlier) as file:
        torch.save(content, file)
    return about


def load_checkpoint(path: str | Path, state: ElasticState) -> CheckpointInfo:
    """Put what `flexo checkpoint` has written into `state`.

    On every worker, or on rank 0 alone, from which the others take it over. To be called before the
    training function is entered. The state must have the same names; how many workers there are does not
    matter. Raises CheckpointError for a file that is damaged, of something else, or of another state; the
    state is then unchanged, unless a model itself refused what the file holds for it.
    """
    content = _read(Path(path))
    about = content["about"]
    parts, objects = content["state"], content["objects"]
    handlers = _kept(state)
    _check_names(path, parts, handlers)
    _check_names(path, objects, state._saved_state)
    for name, handler in handlers.items():
        try:
            put_back(handler.value, parts[name])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: its '{name}' does not fit this script's: {error}") from error
    for name, value in objects.items():
        setattr(state, name, value)
    state.save()
    known = {field.name for field in fields(CheckpointInfo)}
    return CheckpointInfo(**{name: value for name, value in about.items() if name in known})


def _kept(state: ElasticState) -> dict[str, _Handler]:
    """What the script has put into its state."""
    return {name: handler for name, handler in state._handlers.items() if name != LEFT_OUT}


def _read(path: Path) -> dict[str, Any]:
    import torch

    try:
        with zipfile.ZipFile(path) as archive:  # torch.load itself compares no checksums
            damaged = archive.testzip()
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path} is damaged, or no checkpoint of flexo's: {error}") from error
    except Exception as error:  # torch raises what its unpickler and its archive reader happen to raise
        text = f"{path} is damaged, or no checkpoint of flexo's; nothing that it holds was run"
        raise CheckpointError(text) from error
    if damaged:
        raise CheckpointError(f"{path} is damaged: the checksum of {damaged} is wrong")
    if not isinstance(content, dict) or content.get("format") != _MARK:
        raise CheckpointError(f"{path} is no checkpoint of flexo's, though torch.load reads it")
    if (version := content.get("version")) != FORMAT:
        raise CheckpointError(f"{path} is of version {version}, this flexo reads version {FORMAT}")
    return cast("dict[str, Any]", content)


def _check_names(path: str | Path, found: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    if found.keys() != wanted.keys():
        raise CheckpointError(
            f"{path} is of another state: it holds {_names(found)}, this script's state {_names(wanted)}"
        )


def _names(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _check_plain(value: object, where: str) -> None:
    """Refuse what could only be read back by running code."""
    import torch

    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return
    if isinstance(value, torch.Tensor | torch.Size | torch.dtype | torch.device):
        return
    if isinstance(value, Mapping) and type(value).__name__ in ("dict", "OrderedDict", "defaultdict"):
        for name, item in value.items():
            _check_plain(name, f"{where}, a key")
            _check_plain(item, f"{where}[{name!r}]")
    elif type(value) in (list, tuple, set):
        for number, item in enumerate(cast("list[object]", value)):
            _check_plain(item, f"{where}[{number}]")
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"{where} is a {kind}, which a checkpoint cannot hold:"
            " numbers, text, tensors, and lists, sets, tuples and dictionaries of them are allowed"
        )


@dataclass(frozen=True, slots=True)
class _File:
    """Which file a name leads to, and as of when."""

    device: int
    inode: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> _File:
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns)


def _check_place(path: Path, within: Path | None) -> None:
    if not path.is_absolute():
        raise CheckpointError(f"'{path}' is not absolute: name the file as /scratch/ada/model.pt does")
    if within is not None and not path.parent.resolve().is_relative_to(within.resolve()):
        raise CheckpointError(
            f"{path} is outside {within}, where this job allows checkpoints: name a file there"
        )


def _earlier(path: Path, job_id: int) -> _File | None:
    """The checkpoint that `path` holds, or None if nothing is there. Raises CheckpointError for all else."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:  # what fdopen says of a folder
        raise CheckpointError(f"{path} is a folder: name a file in it") from error
    except OSError as error:
        if os.path.lexists(path):  # a link, or one that may not be read
            raise _not_ours(path, job_id) from error
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or _job_of(file.fileno()) != job_id:
            raise _not_ours(path, job_id)
        return _File.of(status)


def _job_of(descriptor: int) -> int | None:
    """Which job's checkpoint an open file is; None if it is none. Reads no tensor."""
    import torch

    try:
        name = f"/proc/self/fd/{descriptor}"  # mmap wants a name
        content = torch.load(name, mmap=True, map_location="cpu", weights_only=True)
        return int(content["about"]["job_id"]) if content["format"] == _MARK else None
    except Exception:  # torch raises what its unpickler and its archive reader happen to raise
        return None


def _not_ours(path: Path, job_id: int) -> CheckpointError:
    return CheckpointError(
        f"{path} exists and is no checkpoint of job {job_id}, so it is not replaced:"
        " name a new file, or move this one away"
    )


@contextlib.contextmanager
def _writing(path: Path, earlier: _File | None) -> Iterator[io.BufferedWriter]:
    """A file that becomes `path` when it is whole and on disk; on any error it is as if nothing had been."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(beside, path, earlier)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        _remove(beside)
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
    except RuntimeError as error:  # torch's writer, around an error of the disk's
        _remove(beside)
        cause = error.__context__
        why = cause.strerror if isinstance(cause, OSError) else str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be written: {why}") from error
    except BaseException:
        _remove(beside)
        raise


def _put(beside: Path, path: Path, earlier: _File | None) -> None:
    """Give the finished file its name, which leads to `earlier` or nowhere, also by now."""
    if earlier is not None:
        if _File.of(path.lstat()) != earlier:
            raise FileExistsError(errno.EEXIST, "it was changed by somebody else meanwhile")
        beside.replace(path)
        return
    try:
        path.hardlink_to(beside)  # unlike a rename, never onto another file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        path.open("xb").close()
        beside.replace(path)
    else:
        beside.unlink()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
