"""Credentials on gRPC calls, which prove the caller's identity: with MUNGE, or as the cluster does otherwise.

Only `new_authenticator` chooses the scheme. sack.py has the scheme of clusters that run Slurm's auth/slurm,
job_secret.py that inside jobs on YARN.

A caller puts a credential into the call's metadata. The credential names flexo and the method that is called.
munged adds uid, gid and time, and signs. The callee decodes the credential once: munged itself refuses
replayed, expired and foreign-keyed credentials. `verify` refuses credentials for another method or another
program.

flexo uses libmunge through ctypes: every host of a cluster with auth/munge has the library, and Debian
packages no Python binding of it.
"""

from __future__ import annotations

import ctypes
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

METADATA_KEY = "flexo-munge"
LIFETIME_S = 60
"""Lifetime of a credential: enough for a slow network, and short, so that a stolen one is worth little."""
SOCKET_VARIABLE = "FLEXO_MUNGE_SOCKET"
"""Environment variable: munged's socket, if not libmunge's default (as AuthInfo=socket= does for Slurm)."""

_OPT_TTL = 4  # munge_opt_t
_OPT_SOCKET = 8
_EMUNGE_SUCCESS = 0  # munge_err_t
_LIBRARY = "libmunge.so.2"


class NotAuthentic(Exception):
    """A credential proves nothing, or MUNGE does not answer; the message says which."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user and the group of a method's caller."""

    uid: int
    gid: int


class Authenticator(Protocol):
    """One scheme by which callers prove who they are."""

    def credential(self, method: str) -> str:
        """Make a credential of this process for one call of `method` ("/flexo.v1.Service/Method")."""
        ...

    def verify(self, credential: str, method: str) -> Caller:
        """The maker of `credential`. Raises NotAuthentic if it is not valid, not new, or not for `method`."""
        ...


class Munge:
    """Authenticator over munged. `socket` defaults to $FLEXO_MUNGE_SOCKET, then to libmunge's own."""

    def __init__(self, socket: str | None = None) -> None:
        self._socket = socket or os.environ.get(SOCKET_VARIABLE) or None

    def credential(self, method: str) -> str:
        """See Authenticator."""
        library = libmunge()
        payload = _payload(method)
        credential = ctypes.c_void_p()
        context = self._context(library)
        try:
            error = library.munge_encode(ctypes.byref(credential), context, payload, len(payload))
            if error != _EMUNGE_SUCCESS or credential.value is None:
                raise NotAuthentic(f"MUNGE gave no credential: {_reason(library, context, error)}")
            return ctypes.string_at(credential).decode("ascii")
        finally:
            _free(credential)
            library.munge_ctx_destroy(context)

    def verify(self, credential: str, method: str) -> Caller:
        """See Authenticator."""
        library = libmunge()
        context = self._context(library)
        payload, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        try:
            error = library.munge_decode(
                credential.encode("ascii", "replace"),
                context,
                ctypes.byref(payload),
                ctypes.byref(length),
                ctypes.byref(uid),
                ctypes.byref(gid),
            )
            if error != _EMUNGE_SUCCESS:
                raise NotAuthentic(f"MUNGE refused the credential: {_reason(library, context, error)}")
            said = ctypes.string_at(payload, length.value) if payload.value else b""
            if said != _payload(method):
                raise NotAuthentic(f"the credential was not made for {method}")
            return Caller(uid.value, gid.value)
        finally:
            _free(payload)
            library.munge_ctx_destroy(context)

    def _context(self, library: ctypes.CDLL) -> ctypes.c_void_p:
        context = ctypes.c_void_p(library.munge_ctx_create())
        if not context.value:
            raise NotAuthentic("MUNGE: out of memory")
        library.munge_ctx_set(context, _OPT_TTL, ctypes.c_int(LIFETIME_S))
        if self._socket:
            library.munge_ctx_set(context, _OPT_SOCKET, ctypes.c_char_p(self._socket.encode()))
        return context


def _job_secret(socket: str | None) -> Authenticator:
    from flexo_protos.job_secret import JobSecret  # it needs this module's types

    return JobSecret.from_file()


def _sack(socket: str | None) -> Authenticator:
    from flexo_protos.sack import Sack  # likewise

    return Sack(socket)


MUNGE, SLURM, JOB_SECRET = "munge", "slurm", "job-secret"
SCHEME_VARIABLE = "FLEXO_AUTHENTICATION"
"""Environment variable: the scheme of this process, instead of the configured one."""
CONFIG = "/etc/flexo/flexo.toml"
_SCHEMES: dict[str, Callable[[str | None], Authenticator]] = {
    MUNGE: Munge,
    SLURM: _sack,
    JOB_SECRET: _job_secret,
}


def new_authenticator(scheme: str = "", *, socket: str | None = None) -> Authenticator:
    """The authenticator of a scheme; "": of this process's. `socket`: the scheme's daemon's, if not the
    default one.

    Raises ValueError for an unknown scheme, and NotAuthentic if it lacks what it needs.
    """
    scheme = scheme or scheme_of_process()
    try:
        make = _SCHEMES[scheme]
    except KeyError:
        known = ", ".join(sorted(_SCHEMES))
        raise ValueError(f"'{scheme}' is no scheme of authentication; it is one of {known}") from None
    return make(socket)


def scheme_of_process(environment: Mapping[str, str] = os.environ) -> str:
    """$FLEXO_AUTHENTICATION, else [service] authentication in $FLEXO_CONFIG or /etc/flexo/flexo.toml, else
    munge."""
    if scheme := environment.get(SCHEME_VARIABLE):
        return scheme
    try:
        with Path(environment.get("FLEXO_CONFIG") or CONFIG).open("rb") as file:
            section = tomllib.load(file).get("service")
    except (OSError, ValueError):  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        return MUNGE
    said = section.get("authentication") if isinstance(section, dict) else None
    return said if isinstance(said, str) and said else MUNGE


def _payload(method: str) -> bytes:
    return f"flexo {method}".encode()


def _reason(library: ctypes.CDLL, context: ctypes.c_void_p, error: int) -> str:
    text = library.munge_ctx_strerror(context) or library.munge_strerror(error)
    return str(text.decode("utf-8", "replace"))


def _free(pointer: ctypes.c_void_p) -> None:
    _libc().free(pointer)


@cache
def _libc() -> ctypes.CDLL:
    """The C library, loaded once: each CDLL makes a class, 3 KiB that only the garbage collector removes."""
    return ctypes.CDLL(None)


@cache
def libmunge() -> ctypes.CDLL:
    """The library of MUNGE. Raises NotAuthentic if it cannot be loaded."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise NotAuthentic(f"{_LIBRARY} cannot be loaded ({error}); install the munge library") from error
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_strerror.restype = ctypes.c_char_p
    library.munge_ctx_strerror.restype = ctypes.c_char_p
    return library
