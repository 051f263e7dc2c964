"""The key of flexod's signatures of grants: made once, and read by every flexod of the cluster.

It is beside the lease of several flexods, or beside the event store of a single one. A flexod that cannot
read it still acts, with a key of its own. Another flexod then knows the grants by the event store only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

import structlog

from flexo.availability.places import etcd_access
from flexo.config import Settings
from flexo.grant_signatures import KEY_BYTES, GrantSigner
from flexo_protos import lease_place

NAME: Final = "grant.key"
ETCD_NAME: Final = "active-flexod.grant-key"
_ETCD_WITHIN_S: Final = 5.0

_log = structlog.get_logger("flexo.service")


class KeyUnusable(Exception):
    """The key cannot be read or made; the message says where it is, why, and what to do."""


def grant_signer(settings: Settings) -> GrantSigner:
    """A signer with the key of all flexods of this cluster. Never raises: see `GrantSigner.trouble`."""
    available = settings.high_availability
    try:
        if available.hosts and available.folder is None:
            return GrantSigner(_key_in_etcd(settings))
        return GrantSigner(key_in_file((available.folder or settings.event_store.path.parent) / NAME))
    except KeyUnusable as error:
        _log.error("no key for signatures of grants", why=str(error))
        return GrantSigner.of_this_process(str(error))


def key_in_file(path: Path) -> bytes:
    """The key in `path`, which is made if it is not there. Raises KeyUnusable."""
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
        _make(path)
        return _read(path)
    except OSError as error:
        raise KeyUnusable(f"cannot use the key of grants {path}: {error.strerror or error}") from error


def _read(path: Path) -> bytes:
    """Read the key file. Raises OSError, KeyUnusable."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()):
            raise KeyUnusable(f"the key of grants {path} is not a file of flexod's account: remove it")
        if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            mode = stat.S_IMODE(about.st_mode)
            text = f"others may read or change the key of grants {path} (mode {mode:o}; 600 is allowed)"
            raise KeyUnusable(f"{text}: remove it, flexod makes another one when it starts")
        return _parsed(file.read(3 * KEY_BYTES).decode("ascii", "replace"), f"the key of grants {path}")


def _make(path: Path) -> None:
    """Make the key file. The file is whole before it has its name, and appears only if nobody else was
    faster. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(_new().encode())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def _key_in_etcd(settings: Settings) -> bytes:
    """The key in etcd, which is made if it is not there. Raises KeyUnusable."""
    place = lease_place.parse(settings.high_availability.lease)
    name = f"{place.prefix}/{ETCD_NAME}"
    try:
        from flexo_protos.etcd import EtcdKey, EtcdUnavailable
    except ImportError as error:  # then the lease in etcd cannot be had either
        raise KeyUnusable(f"etcd's client is not installed here ({error})") from error
    key = EtcdKey(place, name, etcd_access(settings.lease), _ETCD_WITHIN_S)
    try:
        seen = key.look()
        if seen.kept is None:
            seen = key.write(_new(), 0)
    except EtcdUnavailable as error:
        text = f"cannot use the key of grants in etcd, {name}: {error}"
        raise KeyUnusable(f"{text}: let flexod's etcd user read and write it") from error
    finally:
        key.close()
    return _parsed(seen.kept.value if seen.kept else "", f"the key of grants in etcd, {name},")


def _new() -> str:
    return secrets.token_hex(KEY_BYTES) + "\n"


def _parsed(text: str, what: str) -> bytes:
    """The key that `text` spells. Raises KeyUnusable."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyUnusable(f"{what} is not one: remove it, flexod makes another one when it starts")
    return key
