"""A job's checkpoint (Amoeba, Table 1): one file with all that the training state holds at one boundary.

Rank 0 writes the checkpoint between two mini-batches, so the checkpoint is consistent. Rank 0 writes it under
another name first, so that a reader finds the whole file or none. The checkpoint is a file of torch.save that
holds numbers, text and tensors only. `torch.load(path, weights_only=True)` reads it, so loading somebody
else's checkpoint runs no code of theirs.

flexod passes the path on. The path may come from an administrator, or from somebody who has taken flexod
over. So a checkpoint replaces only an earlier checkpoint of the same job. The job itself checks that, here.
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
from collections.abc import Callable, Iterator, Mapping
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
    """The training that a checkpoint belongs to. The epoch is part of the state itself."""

    job_id: int
    restart_count: int
    generation: int
    commits: int
    """Number of mini-batches that the state has committed."""
    workers: int
    node: str
    """Node that wrote the checkpoint: the path is as this node sees it."""
    flexo_version: str
    written_at: float = 0.0
    """Time of writing, in seconds since the epoch; `write` sets it."""
    torch_version: str = ""
    """PyTorch's version; `write` sets it."""


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds of the training, by names that the script knows."""

    state: Mapping[str, object]
    """What state_dict() has returned."""
    objects: Mapping[str, object]
    """Other values, as they are."""


class _Handler(Protocol):
    value: Any


class ElasticState(Protocol):
    """The parts of Horovod's TorchState that checkpoints use.

    TorchState keeps objects with a state_dict (models, optimizers, samplers, shards) in handlers, and all
    other objects as saved attributes. Horovod has no public way to ask for either (horovod 0.28.1,
    torch/elastic/state.py and common/elastic.py: ObjectState).
    """

    _handlers: Mapping[str, _Handler]
    _saved_state: Mapping[str, object]

    def save(self) -> None:
        """Remember the present values, for restore()."""
        ...


def write(
    state: ElasticState, path: Path, about: CheckpointInfo, within: Path | None = None
) -> CheckpointInfo:
    """Write all that `state` holds to `path`; return `about` with the time and PyTorch's version.

    `path` is absolute, and its folder exists. `within`: if given, `path` must be in this folder or below it.
    Only an earlier checkpoint of the same job is replaced. Raises CheckpointError; then no other file
    is left beside `path`, and `path` is unchanged unless it was the folder that the disk could not write.

    The function saves the state first, as a commit does. Models report their present values, but data
    pipelines report those of the last save. The save makes both belong to the same boundary.
    """

    def contents() -> Contents:
        state.save()
        return Contents(
            {name: capture(handler.value) for name, handler in _kept(state).items()},
            {name: getattr(state, name) for name in state._saved_state},
        )

    return write_contents(contents, path, about, within)


def write_contents(
    contents: Callable[[], Contents], path: Path, about: CheckpointInfo, within: Path | None = None
) -> CheckpointInfo:
    """See `write`. `contents` is called if the path is allowed."""
    _check_place(path, within)
    earlier = _earlier(path, about.job_id)
    import torch

    about = CheckpointInfo(
        **{**asdict(about), "written_at": time.time(), "torch_version": str(torch.__version__)}
    )
    content = {"format": _MARK, "version": FORMAT, "about": asdict(about), **vars(contents())}
    _check_plain(content["state"], "state")
    _check_plain(content["objects"], "state")
    with _writing(path, earlier) as file:
        torch.save(content, file)
    return about


def load_checkpoint(path: str | Path, state: ElasticState) -> CheckpointInfo:
    """Load a checkpoint that `flexo checkpoint` has written into `state`.

    Call it before the training function is entered: on every worker, or on rank 0 alone, whose state the
    others take over. The state must have the same names. The number of workers may differ. Raises
    CheckpointError for a file that is damaged, is no checkpoint, or is of another state. The state is then
    unchanged, unless a model itself refused the values that the file holds for it.
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
    """The handlers of the script's own objects, without the one that flexo adds (LEFT_OUT)."""
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
    """Refuse a value that can be read back only by running code. Raises CheckpointError."""
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
    """The file that a name leads to, and the time of its last change."""

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
    """This job's checkpoint at `path`; None if no file is there. Raises CheckpointError for anything else."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:  # fdopen raises it for a folder
        raise CheckpointError(f"{path} is a folder: name a file in it") from error
    except OSError as error:
        if os.path.lexists(path):  # a link, or a file that may not be read
            raise _not_ours(path, job_id) from error
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or _job_of(file.fileno()) != job_id:
            raise _not_ours(path, job_id)
        return _File.of(status)


def _job_of(descriptor: int) -> int | None:
    """The id of the job whose checkpoint the open file is; None if it is no checkpoint. Reads no tensor."""
    import torch

    try:
        name = f"/proc/self/fd/{descriptor}"  # mmap requires a name
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
    """Open a file that becomes `path` once it is whole and on disk. An error removes the unfinished file."""
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
    except RuntimeError as error:  # torch's writer raises it for an error of the disk
        _remove(beside)
        cause = error.__context__
        why = cause.strerror if isinstance(cause, OSError) else str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be written: {why}") from error
    except BaseException:
        _remove(beside)
        raise


def _put(beside: Path, path: Path, earlier: _File | None) -> None:
    """Rename the finished file to `path`, if `path` still leads to `earlier` (None: to no file)."""
    if earlier is not None:
        if _File.of(path.lstat()) != earlier:
            raise FileExistsError(errno.EEXIST, "it was changed by somebody else meanwhile")
        beside.replace(path)
        return
    try:
        path.hardlink_to(beside)  # unlike a rename, a link never replaces another file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        path.open("xb").close()
        try:
            beside.replace(path)
        except OSError:
            _remove(path)  # the empty file of the line above
            raise
    else:
        beside.unlink()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
