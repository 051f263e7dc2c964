"""Hadoop's configuration files: what a client needs to know of its cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from flexo_yarn.failover import Servers
from flexo_yarn.ipc.connection import Address
from flexo_yarn.records import GPU

VARIABLE: Final = "HADOOP_CONF_DIR"
DEFAULT_FOLDER: Final = Path("/etc/hadoop/conf")
_REFERENCE = re.compile(r"\$\{([^}]+)\}")
_DEEPEST = 20
"""References within references that Hadoop follows (Configuration.java)."""
_HOST: Final = "yarn.resourcemanager.hostname"
_SEVERAL: Final = "yarn.resourcemanager.ha.enabled"
_NAMES: Final = "yarn.resourcemanager.ha.rm-ids"
HIGHEST_PRIORITY: Final = "yarn.cluster.max-application-priority"
_PRINCIPAL: Final = "yarn.resourcemanager.principal"
_SERVICE = re.compile(r"[^/@\s]+/[^/@\s]+@[^/@\s]+")


class BadConfiguration(Exception):
    """A configuration file cannot be used; the message says which, and why."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"{path} {why}")


@dataclass(frozen=True, slots=True)
class ClientConfiguration:
    """The parts of a cluster's configuration that clients need."""

    resource_manager: Servers
    """Where the ResourceManager listens for clients; of several, each."""
    scheduler: Servers
    """Where it listens for ApplicationMasters."""
    web: Servers
    """Where it answers REST."""
    default_filesystem: str
    """The URI of the filesystem in which paths without a scheme are."""
    kerberos: bool
    gpu_plugin: bool
    """Whether NodeManagers give each container its GPUs, as far as these files tell."""
    highest_priority: int = 0
    """The highest priority of an application."""
    principal: str = ""
    """The ResourceManager's, where there is Kerberos; _HOST in it stands for its host."""


def default_folder() -> Path:
    """Where Hadoop's own commands look for the configuration."""
    return Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)


def read_file(path: Path) -> dict[str, str]:
    """The settings in a file, as they stand there. Raises BadConfiguration."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise BadConfiguration(path, f"cannot be read: {error}") from error
    found = ((each.findtext("name"), each.findtext("value")) for each in root.iter("property"))
    return {name.strip(): (value or "").strip() for name, value in found if name}


def read_client(folder: Path) -> ClientConfiguration:
    """What core-site.xml and yarn-site.xml in `folder` say. Raises BadConfiguration."""
    core, site = folder / "core-site.xml", folder / "yarn-site.xml"
    settings = {**(read_file(core) if core.exists() else {}), **read_file(site)}
    ids = _resource_managers(site, settings)
    plugins = _value(settings, "yarn.nodemanager.resource-plugins", "").split(",")
    kerberos = uses_kerberos(settings)
    principal = _value(settings, _PRINCIPAL, "")
    if kerberos and not _SERVICE.fullmatch(principal):
        raise BadConfiguration(
            site, f"says {_PRINCIPAL} is '{principal}'; allowed: NAME/HOST@REALM, or NAME/_HOST@REALM"
        )
    return ClientConfiguration(
        resource_manager=_servers(site, settings, "yarn.resourcemanager.address", ids, 8032),
        scheduler=_servers(site, settings, "yarn.resourcemanager.scheduler.address", ids, 8030),
        web=_servers(site, settings, "yarn.resourcemanager.webapp.address", ids, 8088),
        default_filesystem=_value(settings, "fs.defaultFS", "file:///"),
        kerberos=kerberos,
        principal=principal,
        gpu_plugin=GPU in (each.strip() for each in plugins),
        highest_priority=_number(site, settings, HIGHEST_PRIORITY),
    )


def uses_kerberos(settings: Mapping[str, str]) -> bool:
    """Whether these settings, of core-site.xml, have the cluster use Kerberos."""
    return _value(settings, "hadoop.security.authentication", "simple").lower() == "kerberos"


def _resource_managers(site: Path, settings: Mapping[str, str]) -> tuple[str, ...]:
    """What follows a setting's name for each ResourceManager: "" for the only one, ".ID" for several."""
    if _value(settings, _SEVERAL, "").lower() != "true":
        return ("",)
    names = [name.strip() for name in _value(settings, _NAMES, "").split(",")]
    if not any(names):
        raise BadConfiguration(site, f"has {_SEVERAL} and no {_NAMES}; allowed: names, as in rm1,rm2")
    return tuple(f".{name}" for name in dict.fromkeys(names) if name)


def _servers(site: Path, settings: Mapping[str, str], name: str, ids: Iterable[str], port: int) -> Servers:
    return tuple(_address(site, settings, name, each, port) for each in ids)


def _address(site: Path, settings: Mapping[str, str], setting: str, suffix: str, port: int) -> Address:
    """The address in `setting`, else that of the host and the usual port."""
    name, host_name = f"{setting}{suffix}", f"{_HOST}{suffix}"
    if name not in settings and host_name not in settings:
        raise BadConfiguration(site, f"sets neither {host_name} nor {name}: where is the ResourceManager?")
    text = _value(settings, name, f"{_value(settings, host_name, '')}:{port}")
    host, _, number = text.rpartition(":")
    if not host or not number.isdecimal():
        raise BadConfiguration(site, f"says {name} is '{text}'; allowed: HOST:PORT")
    return host, int(number)


def _number(site: Path, settings: Mapping[str, str], name: str) -> int:
    text = _value(settings, name, "0")
    if not text.isdecimal():
        raise BadConfiguration(site, f"says {name} is '{text}'; allowed: a number from 0")
    return int(text)


def _value(settings: Mapping[str, str], name: str, default: str) -> str:
    """A setting with its ${references} replaced, as Hadoop does; unknown ones stay."""
    text = settings.get(name, default)
    for _ in range(_DEEPEST):
        replaced = _REFERENCE.sub(lambda match: settings.get(match[1], match[0]), text)
        if replaced == text:
            break
        text = replaced
    return text
