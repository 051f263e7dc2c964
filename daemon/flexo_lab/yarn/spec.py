"""The specification of a YARN lab: the only input of `bring_up_yarn`, checked before anything is started."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flexo_lab.errors import BadSpec
from flexo_lab.spec import DEFAULT_NAME, check_name, check_number


class Protection(enum.StrEnum):
    """What protects calls that a token authenticates (hadoop.rpc.protection)."""

    AUTHENTICATION = "authentication"
    """Nothing more."""
    INTEGRITY = "integrity"
    """Each message is signed."""
    PRIVACY = "privacy"
    """Each message is encrypted too."""


@dataclass(frozen=True, slots=True)
class YarnLabSpec:
    """The specification of a YARN lab. Raises BadSpec, naming the field and what is allowed."""

    name: str = DEFAULT_NAME
    nodes: int = 4
    """NodeManagers n1, n2, ... for training and anything else."""
    infer_nodes: int = 0
    """NodeManagers i1, i2, ... with the label of inference servers."""
    gpus_per_node: int = 4
    """GPUs that each node claims. No device stands behind them."""
    cores_per_node: int = 16
    memory_mib_per_node: int = 16384
    protection: Protection = Protection.AUTHENTICATION
    resource_managers: int = 1
    """1 or 2. Of two, ZooKeeper keeps one active and the other on standby."""
    flexod: bool = True
    """Whether flexod runs on it, with a munged for flexo's commands."""
    loans: bool = False
    """Whether flexod lends inference nodes to training, within seconds."""
    kerberos: bool = False
    """Whether Kerberos authenticates all calls, with a key distribution centre (KDC) of the lab's own."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.kerberos and self.resource_managers > 1:
            raise BadSpec("kerberos: allowed with one ResourceManager only")
        if self.kerberos and self.infer_nodes:
            raise BadSpec("kerberos: allowed without infer_nodes only; a lab gives no labels by Kerberos")
        check_number("nodes", self.nodes, 1, 64)
        check_number("infer_nodes", self.infer_nodes, 0, 64)
        if self.loans and not self.infer_nodes:
            raise BadSpec("loans need infer_nodes: there is nothing to lend")
        check_number("gpus_per_node", self.gpus_per_node, 1, 64)
        check_number("cores_per_node", self.cores_per_node, 1, 1024)
        check_number("memory_mib_per_node", self.memory_mib_per_node, 512, 1 << 20)
        check_number("resource_managers", self.resource_managers, 1, 2)

    @property
    def rm_names(self) -> tuple[str, ...]:
        """Names of the ResourceManagers within the lab."""
        return ("rm", "rm2")[: self.resource_managers]

    @property
    def daemon_names(self) -> tuple[str, ...]:
        """Names of all daemons of YARN."""
        return (*(("zk",) if self.resource_managers > 1 else ()), *self.rm_names, *self.node_names)

    @property
    def train_names(self) -> tuple[str, ...]:
        """Names of the nodes without a label."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def infer_names(self) -> tuple[str, ...]:
        """Names of the inference nodes."""
        return tuple(f"i{number}" for number in range(1, self.infer_nodes + 1))

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of all nodes within the lab; YARN knows them by their addresses."""
        return self.train_names + self.infer_names
