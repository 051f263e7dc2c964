"""The specification of a lab: the only input of `bring_up`, checked before anything is started."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from flexo_lab.errors import BadSpec

DEFAULT_NAME = "lab"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
_GPU_TYPE = re.compile(r"[a-z0-9_]{1,24}")


class Profile(enum.StrEnum):
    """A set-up of the lab's Slurm."""

    QUICK = "quick"
    """Reacts in seconds: short scheduling and backfill intervals."""
    PRODUCTION = "production"
    """Slurm's default scheduler settings, which treat satellites as a real cluster does."""
    ACCOUNTING = "accounting"
    """Quick with slurmdbd: users, associations, a QOS, and flexod as Operator."""

    @classmethod
    def named(cls, name: str) -> Profile:
        """The profile of that name. Raises BadSpec with the names that there are."""
        try:
            return cls(name)
        except ValueError:
            raise BadSpec(f"there is no profile '{name}'; the profiles are: {', '.join(cls)}") from None


@dataclass(frozen=True, slots=True)
class LabSpec:
    """The specification of a lab. Raises BadSpec, naming the field and what is allowed."""

    name: str = DEFAULT_NAME
    nodes: int = 3
    """Training nodes t1, t2, ..."""
    gpus_per_node: int = 4
    cpus_per_node: int = 8
    """The CPUs that every node claims, whatever the machine has."""
    infer_nodes: int = 1
    """Inference nodes i1, i2, ..."""
    infer_gpus: int | None = None
    """GPUs of an inference node; None: as many as a training node has."""
    gpu_type: str = ""
    """The type of all nodes' GPUs, as in gpu:v100:4; "": the GPUs have no type, as in gpu:4."""
    infer_gpu_type: str | None = None
    """The type of inference nodes' GPUs; None: the type of training nodes' GPUs."""
    profile: Profile = Profile.QUICK
    flexod: bool = True
    """True to start flexod with the lab."""
    web: bool = False
    """True to start flexo-web beside flexod."""
    loans: bool = False
    """True to let flexod lend inference nodes to training; within seconds, except in profile production."""
    by_qos: bool = False
    """True if satellites are preempted by their QOS, and not by their partition."""
    sharing: bool = False
    """True if the training nodes' GPUs can be shared: a second GRES on the device files, and a Prolog. The
    lab starts no coordinators."""
    auth_slurm: bool = False
    """True to run without MUNGE: Slurm's auth/slurm and its sack prove who calls, flexo's calls too. The
    sockets of the sack have fixed places, so a machine can have one such cluster."""
    aggregation: bool = False
    """True if flexod accepts pool Aggregators, which all users' jobs may share. The lab starts none."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_number("nodes", self.nodes, 1, 256)
        check_number("gpus_per_node", self.gpus_per_node, 1, 64)
        check_number("cpus_per_node", self.cpus_per_node, 1, 1024)
        check_number("infer_nodes", self.infer_nodes, 0, 256)
        if self.infer_gpus is not None:
            check_number("infer_gpus", self.infer_gpus, 1, 64)
        for field, kind in (("gpu_type", self.gpu_type), ("infer_gpu_type", self.infer_gpu_type)):
            if kind and not _GPU_TYPE.fullmatch(kind):
                raise BadSpec(f"{field} '{kind}': up to 24 of a-z, 0-9 and _ are allowed")
        object.__setattr__(self, "profile", Profile.named(self.profile))  # accepts a text such as "quick"
        if self.loans and self.profile is Profile.ACCOUNTING:
            raise BadSpec("loans are allowed in the other profiles: in accounting flexod is an Operator, "
                          "who may not edit partitions")  # fmt: skip
        if self.auth_slurm and self.profile is Profile.ACCOUNTING:
            raise BadSpec("auth_slurm is allowed in the other profiles: no lab has slurmdbd without MUNGE")
        if self.web and not self.flexod:
            raise BadSpec("web is allowed with flexod: the web pages show what flexod sees")
        if self.by_qos and self.profile is not Profile.ACCOUNTING:
            raise BadSpec("by_qos is allowed in the profile accounting: without slurmdbd there are no QOS")

    @property
    def gpus_per_infer_node(self) -> int:
        """GPUs of an inference node, the default resolved."""
        return self.gpus_per_node if self.infer_gpus is None else self.infer_gpus

    @property
    def type_of_infer_gpus(self) -> str:
        """Type of inference nodes' GPUs, the default resolved; "" for none."""
        return self.gpu_type if self.infer_gpu_type is None else self.infer_gpu_type

    @property
    def train_names(self) -> tuple[str, ...]:
        """Names of the training nodes."""
        return tuple(f"t{number}" for number in range(1, self.nodes + 1))

    @property
    def infer_names(self) -> tuple[str, ...]:
        """Names of the inference nodes."""
        return tuple(f"i{number}" for number in range(1, self.infer_nodes + 1))

    @property
    def node_names(self) -> tuple[str, ...]:
        """Training nodes, then inference nodes: the order of the slurmd ports."""
        return self.train_names + self.infer_names

    @property
    def web_account(self) -> str:
        """The account that runs flexo-web: one without rights."""
        return "nobody"

    @property
    def flexod_account(self) -> str:
        """The account that runs flexod: SlurmUser, or with slurmdbd an ordinary user who is Operator."""
        return "daemon" if self.profile is Profile.ACCOUNTING else "slurm"


def check_name(name: str) -> None:
    """Raise BadSpec unless `name` can name a lab (it becomes a directory and part of a socket's path)."""
    if not _NAME.fullmatch(name):
        raise BadSpec(
            f"'{name}' cannot name a lab: 1 to 24 of a-z, 0-9 and -, "
            "with a letter or a digit first and last, are allowed"
        )


def check_number(field: str, value: int, low: int, high: int) -> None:
    """Raise BadSpec, naming `field`, unless `value` is in this range."""
    if not low <= value <= high:
        raise BadSpec(f"{field} = {value}: {low} to {high} are allowed")
