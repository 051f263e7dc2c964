"""Connects flexod to a YARN cluster, from its settings and Hadoop's own configuration."""

from __future__ import annotations

import getpass
from collections.abc import Callable

from flexo.clusters.base import ActionRefused, Site
from flexo.clusters.yarn.adapter import YarnCluster
from flexo.clusters.yarn.owners import NotarizedSecrets
from flexo.clusters.yarn.settings import YarnSettings
from flexo_protos.credentials import Authenticator
from flexo_yarn.configuration import (
    BadConfiguration,
    ClientConfiguration,
    default_folder,
    read_client,
)
from flexo_yarn.kerberos import Kerberos, Tickets
from flexo_yarn.resource_manager import ResourceManager


def connect(settings: YarnSettings, site: Site) -> YarnCluster:
    """Connect to the cluster. Its ResourceManager need not answer. Raises ActionRefused."""
    configuration = _configuration(settings)
    kerberos = _kerberos(settings, configuration)
    opener = _opener(settings, configuration, kerberos)
    return YarnCluster(settings, site, configuration, opener, kerberos)


def authenticator(settings: YarnSettings, others: Authenticator) -> NotarizedSecrets:
    """Verifies leaders by the secrets of their jobs, and all others by `others`. Raises ActionRefused."""
    configuration = _configuration(settings)
    opener = _opener(settings, configuration, _kerberos(settings, configuration))
    return NotarizedSecrets(opener, others)


def _configuration(settings: YarnSettings) -> ClientConfiguration:
    folder = settings.conf or default_folder()
    try:
        return read_client(folder)
    except BadConfiguration as error:
        raise ActionRefused(str(error)) from error


def _kerberos(settings: YarnSettings, configuration: ClientConfiguration) -> Kerberos | None:
    if not configuration.kerberos:
        return None
    return Kerberos(Tickets(settings.keytab, settings.principal or ""), configuration.principal)


def _opener(
    settings: YarnSettings, configuration: ClientConfiguration, kerberos: Kerberos | None
) -> Callable[[], ResourceManager]:
    user, servers = settings.user or getpass.getuser(), configuration.resource_manager
    return lambda: ResourceManager(servers, user=user, kerberos=kerberos, timeout_s=settings.timeout_s)
