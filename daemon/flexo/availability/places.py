"""Opens the store of the active flexod's lease, as [high_availability] names it."""

from __future__ import annotations

from typing import Final

from flexo.config import LeaseSettings, Settings
from flexo_protos import lease_place
from flexo_protos.installing import Wheel, how_to_install
from flexo_protos.leader_leases.file_store import FileLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, LeaseStore, StoreUnavailable
from flexo_protos.lease_place import EtcdAccess

KEY: Final = "active-flexod"
"""The key in etcd, below the prefix."""
_ANSWER_PART: Final = 0.25
"""The part of a lease that etcd may take for an answer: a beat that fails can be tried again."""


def open_store(settings: Settings) -> LeaseStore:
    """Open the store, without a request to it. Raises StoreUnavailable if a client library is missing."""
    available = settings.high_availability
    if available.folder is not None:
        return FileLeaseStore(available.folder, OF_FLEXODS)
    try:
        from flexo_protos.leader_leases.etcd_store import EtcdLeaseStore
    except ImportError as error:
        text = f"[high_availability] lease is in etcd, but its client is not installed here ({error})"
        raise StoreUnavailable(f"{text}. {how_to_install(Wheel.SITES, 'etcd')}") from error
    place = lease_place.parse(available.lease)
    within_s = available.lease_s * _ANSWER_PART
    return EtcdLeaseStore(place, f"{place.prefix}/{KEY}", etcd_access(settings.lease), within_s, OF_FLEXODS)


def etcd_access(lease: LeaseSettings) -> EtcdAccess:
    """The access to etcd, as [lease] configures it."""
    return EtcdAccess(
        ca=str(lease.etcd_ca or ""),
        cert=str(lease.etcd_cert or ""),
        key=str(lease.etcd_key or ""),
        user=lease.etcd_user,
        password_file=lease.etcd_password_file,
    )
