"""flexod's side of TLS: its certificate and key, tried before anybody calls, and read again when renewed.

flexod tries them in a handshake with itself, as a caller that knows the authority and [service] address and
nothing else. So whatever would keep callers away is reported where an administrator can fix it: a wrong name,
an expired certificate, another signer, a key that does not fit. The words are those of the library that
callers use.
"""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

import grpc
import structlog

from flexo.config import TlsSettings

_ROUNDS = 4
"""The most rounds of messages there and back: a handshake takes two."""
_log = structlog.get_logger("flexo.service")


class CertificateUnusable(Exception):
    """flexod cannot prove who it is; the message names the file and says what to do."""


@dataclass(frozen=True, slots=True)
class _Files:
    certificate: Path
    key: Path
    authority: Path
    host: str | None
    """The name that callers dial; None: any."""


_Mark = tuple[tuple[int, int, int], ...]
"""A mark of the files. It changes when one of the files does."""


def server_credentials(settings: TlsSettings, address: str) -> grpc.ServerCredentials | None:
    """The credentials of the server at `address` (host:port); None: the server does not use TLS. Raises
    CertificateUnusable."""
    if not settings.certificate or not settings.key or not settings.ca:
        if settings.ca:
            text = "[tls] ca tells callers to speak TLS, so flexod needs certificate and key beside it"
            raise CertificateUnusable(text)
        return None
    renewing = _Renewing(_Files(settings.certificate, settings.key, settings.ca, _dialled(address)))
    # gRPC takes None for "as before", which its stubs do not say
    return grpc.dynamic_ssl_server_credentials(renewing.first(), renewing.news)  # type: ignore[arg-type]


class _Renewing:
    """The certificate of new connections: the newest one that can be used."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._seen: _Mark | None = None
        self._complaint = ""

    def first(self) -> grpc.ServerCertificateConfiguration:
        """The first certificate. Raises CertificateUnusable."""
        self._seen = _mark(self._files)
        return _checked(self._files)

    def news(self) -> grpc.ServerCertificateConfiguration | None:
        """The renewed certificate; None: no change. gRPC calls this for every connection, in a thread of its
        own."""
        try:
            found = _mark(self._files)
            if found == self._seen:
                return None
            self._seen = found
            renewed = _checked(self._files)
        except CertificateUnusable as error:
            self._complain(str(error))
            return None
        self._complaint = ""
        _log.info("the certificate was renewed", file=str(self._files.certificate))
        return renewed

    def _complain(self, why: str) -> None:
        """Log the reason once: anybody may connect, any number of times."""
        if why != self._complaint:
            self._complaint = why
            _log.warning(f"the new certificate is not used, the one before it is: {why}")


def _dialled(address: str) -> str | None:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return None if ip_address(host).is_unspecified else host
    except ValueError:
        return host


def _mark(files: _Files) -> _Mark:
    found = [_stat(path) for path in (files.certificate, files.key, files.authority)]
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> NoReturn:
    why = f"{path} cannot be read: {error.strerror or error} (flexod runs as uid {os.geteuid()})"
    raise CertificateUnusable(why) from error


def _checked(files: _Files) -> grpc.ServerCertificateConfiguration:
    """gRPC's configuration with the files, if callers will believe them. Raises CertificateUnusable."""
    _refuse_exposed(files.key)
    _try(files)
    try:
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
    except OSError as error:
        _unreadable(files.key, error)
    return grpc.ssl_server_certificate_configuration([pair])


def _refuse_exposed(key: Path) -> None:
    """Refuse a key that others can read, as sshd does: it is no secret. root's key may be readable by its
    group."""
    found = _stat(key)
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o077 if found.st_uid == os.geteuid() else 0o027):
        raise CertificateUnusable(
            f"{key} has mode {mode:04o}: others than flexod may read or write it, so it is not used;"
            f" chmod 600 {key} (640 where it is root's and its group flexod's)"
        )


def _try(files: _Files) -> None:
    """Check that a caller who knows the authority believes the certificate. Raises CertificateUnusable."""
    client, server = _contexts(files)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client.check_hostname = files.host is not None
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=files.host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_ROUNDS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise CertificateUnusable(
                    f"{files.certificate}: callers who trust {files.authority} do not believe it:"
                    f" {error.verify_message}"
                ) from error


def _contexts(files: _Files) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a caller and of flexod. Raises CertificateUnusable."""
    try:
        client = ssl.create_default_context(cafile=files.authority)
    except ssl.SSLError as error:
        raise CertificateUnusable(f"{files.authority} holds no certificates in PEM") from error
    except OSError as error:
        _unreadable(files.authority, error)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        raise CertificateUnusable(
            f"{files.certificate} and {files.key} are not a certificate and its key, both in PEM and the key"
            f" without a password: {error.reason or error}"
        ) from error
    except OSError as error:
        unreadable = files.key if os.access(files.certificate, os.R_OK) else files.certificate
        _unreadable(unreadable, error)
    return client, server


def _no_password() -> str:
    """An empty password, because OpenSSL would ask for one on the terminal."""
    return ""
