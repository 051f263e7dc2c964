"""Opens the register that [high_availability] names."""

from __future__ import annotations

from typing import Final

from flexo.availability.file_register import FileRegister
from flexo.availability.register import Register, RegisterAway
from flexo.config import LeaseSettings, Settings
from flexo_protos import lease_place
from flexo_protos.installing import how_to_install
from flexo_protos.lease_place import EtcdAccess

_ANSWER_PART: Final = 0.25
"""Of a lease, that etcd may take for an answer: a beat that fails can be tried again."""


def open_register(settings: Settings) -> Register:
    """Nothing is asked yet. Raises RegisterAway where a client library is missing."""
    available = settings.high_availability
    if available.folder is not None:
        return FileRegister(available.folder)
    try:
        from flexo.availability.etcd_register import EtcdRegister
    except ImportError as error:
        text = f"[high_availability] lease is in etcd, but its client is not installed here ({error})"
        raise RegisterAway(f"{text}. {how_to_install('daemon', 'etcd')}") from error
    place = lease_place.parse(available.lease)
    return EtcdRegister(place, etcd_access(settings.lease), available.lease_s * _ANSWER_PART)


def etcd_access(lease: LeaseSettings) -> EtcdAccess:
    """How etcd lets callers in, as [lease] says it."""
    return EtcdAccess(
        ca=str(lease.etcd_ca or ""),
        cert=str(lease.etcd_cert or ""),
        key=str(lease.etcd_key or ""),
        user=lease.etcd_user,
        password_file=lease.etcd_password_file,
    )
