"""Where a YARN lab is on this machine: its folders, and the loopback addresses of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FLEXOD_PORT = 6836
SCHEDULER_PORT, CLIENT_PORT, WEB_PORT = 8030, 8032, 8088
"""The ResourceManager's ports for ApplicationMasters, for clients and for browsers: Hadoop's defaults."""
ZOOKEEPER_PORT = 2181
NODE_PORT = 8041
"""A NodeManager's port."""


@dataclass(frozen=True, slots=True)
class YarnLayout:
    """Paths and addresses of the YARN lab in `directory`.

    Every part has an address of its own in 127.0.0.0/8, so labs and NodeManagers keep Hadoop's ports and do
    not meet. `number` distinguishes labs.
    """

    directory: Path
    number: int
    """10000 to 65535, unique on this machine."""

    def _address(self, last: int) -> str:
        return f"127.{self.number >> 8}.{self.number & 255}.{last}"

    @property
    def resource_managers(self) -> tuple[str, str]:
        """The addresses of the ResourceManager, and of the second one in labs that have it."""
        return self._address(100), self._address(102)

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's address, in labs with two ResourceManagers."""
        return self._address(103)

    @property
    def flexod(self) -> str:
        """flexod's address, host:port: the value of FLEXO_DAEMON."""
        return f"{self._address(101)}:{FLEXOD_PORT}"

    @property
    def kdc(self) -> str:
        """The address of the lab's KDC."""
        return self._address(102)

    @property
    def kerberos(self) -> Path:
        """The folder of the KDC, of the keytabs and of the lab's own tickets."""
        return self.directory / "kerberos"

    @property
    def krb5_conf(self) -> Path:
        """The file that KRB5_CONFIG names."""
        return self.kerberos / "krb5.conf"

    @property
    def tickets(self) -> Path:
        """The ticket cache that KRB5CCNAME names."""
        return self.kerberos / "tickets"

    @property
    def realm(self) -> str:
        """The lab's realm of Kerberos."""
        return f"LAB{self.number}.FLEXO"

    def keytab(self, name: str) -> Path:
        """The keytab of "rm", "nm", "http" or a user."""
        return self.kerberos / f"{name}.keytab"

    def principal(self, name: str) -> str:
        """The principal of a user."""
        return f"{name}@{self.realm}"

    def node(self, number: int) -> str:
        """The address of the NodeManager with this number, from 1."""
        return self._address(number)

    @property
    def client_conf(self) -> Path:
        """The folder that HADOOP_CONF_DIR names."""
        return self.directory / "conf"

    def conf(self, daemon: str) -> Path:
        """The folder of the configuration of a daemon of YARN."""
        return self.directory / daemon / "conf"

    @property
    def zookeeper_cfg(self) -> Path:
        """ZooKeeper's own configuration file."""
        return self.conf("zk") / "zoo.cfg"

    def log(self, daemon: str) -> Path:
        """The log of a daemon of YARN."""
        return self.directory / "log" / f"{daemon}.log"
