"""flexod's one configuration file: TOML in, frozen typed settings out, and every mistake named with its line.

The library that checks (pydantic) knows keys, not lines, and the parser (tomllib) knows lines only while
it reads; this file joins the two. The reference of the keys and the manual page flexo.toml(5) are made from
the docstrings here and from `Allowed`.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ValidationInfo

from flexo.policies import registry
from flexo.policies.gpu_speeds import FASTEST, SLOWEST, T4_SPEED
from flexo.trusted_file import NotTrusted, read_trusted
from flexo_protos import lease_place

DEFAULT_PATH: Final = Path("/etc/flexo/flexo.toml")
DEFAULT_ADDRESS: Final = "127.0.0.1:6836"
"""Beside Slurm's own 6817 to 6820."""
_PARTITION: Final = r"^[A-Za-z0-9_.-]+$"
_ADDRESS: Final = r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([1-9]\d{0,4})$"


class ConfigError(Exception):
    """A file that flexod does not start with. `problems` has one sentence for each mistake."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a key takes, in words: printed when something else stands there."""

    begins: str
    policies: Callable[[], Sequence[str]] = tuple
    """Named at the end. Asked for late, because their modules take long to import."""

    @property
    def text(self) -> str:
        """The whole of it."""
        return f"{self.begins}{', '.join(self.policies())}"


def _lacks(info: ValidationInfo, having: str) -> bool:
    """Whether the policy, if a right one was named, is without this property."""
    policy: str | None = info.data.get("policy")
    return policy is not None and not getattr(registry.class_of(policy), having)


def _as_path(value: object) -> object:
    return Path(value) if isinstance(value, str) and value else value


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _absolute(path: Path | None) -> Path | None:
    if path is not None and not path.is_absolute():
        raise ValueError("not an absolute path")
    return path


def _host_and_port(value: str) -> str:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", value)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError("no host and port")
    return value


AbsolutePath = Annotated[Path, BeforeValidator(_as_path)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, use_attribute_docstrings=True
    )


class ServiceSettings(_Section):
    """[service]: where flexod listens, and who may do what."""

    address: Annotated[
        str, Allowed('"host:port" to listen on, as in "ctl1:6836"; the port from 1 to 65535')
    ] = DEFAULT_ADDRESS
    """Where flexod listens, with the name by which compute nodes know the host: leaders dial it."""
    administrators: Annotated[
        tuple[str, ...], BeforeValidator(_as_tuple), Allowed('a list of user names, as in ["ada", "bob"]')
    ] = ()
    """Users who may scale any job, besides root and the account that flexod runs as."""
    munge_socket: Annotated[AbsolutePath | None, Allowed("the absolute path of munged's socket")] = None
    """munged's socket, where it is not libmunge's default (Slurm's `AuthInfo=socket=`)."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        return _host_and_port(value)

    @field_validator("munge_socket")
    @classmethod
    def _check_socket(cls, value: Path | None) -> Path | None:
        return _absolute(value)


class TlsSettings(_Section):
    """[tls]: flexod's certificate, and who has signed it. Callers read `ca` themselves."""

    certificate: Annotated[
        AbsolutePath | None, Allowed("the absolute path of flexod's certificate, beside key and ca")
    ] = None
    """Its certificate in PEM, with those between it and the authority. It holds the name in `address`."""
    key: Annotated[
        AbsolutePath | None, Allowed("the absolute path of its key, beside certificate and ca")
    ] = None
    """Its key in PEM, without a password. One that others can read is refused."""
    ca: Annotated[
        AbsolutePath | None, Allowed("the absolute path of the authorities' certificates, beside certificate")
    ] = None
    """The authority's certificates in PEM, which callers trust. On hosts of callers it stands alone."""

    @field_validator("certificate", "key", "ca")
    @classmethod
    def _check_files(cls, value: Path | None) -> Path | None:
        return _absolute(value)

    @field_validator("key", "ca")
    @classmethod
    def _check_all_there(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        certificate = info.data.get("certificate")
        if (certificate and not value) or (info.field_name == "key" and value and not certificate):
            raise ValueError("certificate, key and ca go together")
        return value


class SlurmSettings(_Section):
    """[slurm]: the cluster that flexod looks after."""

    conf: Annotated[AbsolutePath | None, Allowed("the absolute path of slurm.conf")] = None
    """Which slurm.conf; unset: where Slurm's own commands find it."""
    satellite_partition: Annotated[
        str, Field(pattern=_PARTITION), Allowed('the name of one partition, as in "flex"')
    ] = "flex"
    """The preemptible partition that satellites are submitted to."""
    satellite_qos: Annotated[
        str, Field(pattern=rf"{_PARTITION}|^$"), Allowed('the name of one QOS, or "": each user\'s own')
    ] = ""
    """The QOS that satellites are submitted with, for sites that preempt by QOS or bill by it; empty: the
    default one of their user."""
    timeout_s: Annotated[float, Field(ge=1, le=600), Allowed("seconds, from 1 to 600")] = 20.0
    """How long one question to Slurm may take."""

    @field_validator("conf")
    @classmethod
    def _check_conf(cls, value: Path | None) -> Path | None:
        return _absolute(value)


class ControllerSettings(_Section):
    """[controller]: how the loop looks, decides and acts."""

    policy: Annotated[str, Allowed("one of ", registry.names)] = "lyra"
    """How idle GPUs are shared."""
    min_interval_s: Annotated[float, Field(ge=0.2, le=600), Allowed("seconds, from 0.2 to 600")] = 2.0
    """From one look at the cluster to the next, while elastic jobs run."""
    max_interval_s: Annotated[
        float, Field(ge=0.2, le=3600), Allowed("seconds, from 0.2 to 3600, not below min_interval_s")
    ] = 30.0
    """The same while none runs, and at most between tries while Slurm does not answer."""
    max_read_share: Annotated[float, Field(gt=0, le=1), Allowed("a share above 0, at most 1, as in 0.02")] = (
        0.02
    )
    """Looking may take this share of the time: the interval is at least the cost of a look (the median of the
    last five) over it, but never more than two fifths of `lease_s`, so that leases are extended in time."""
    min_resize_interval_s: Annotated[float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400")] = 60.0
    """Between two resizes of one job. It delays growing; giving back never waits."""
    lease_s: Annotated[
        int,
        Field(ge=60, le=86400),
        Allowed("whole seconds, from 60 to 86400, at least four times min_interval_s"),
    ] = 300
    """The time limit that a satellite asks for; flexod extends it while its grant stands. Slurm counts in
    minutes and rounds up."""
    start_within_s: Annotated[int | None, Field(ge=5, le=3600), Allowed("whole seconds, from 5 to 3600")] = (
        None
    )
    """How long a satellite may wait for Slurm to start it; unset: two of the cluster's backfill cycles
    (`bf_interval`) and 5 s, at least 15 s."""
    max_satellites: Annotated[int | None, Field(ge=1, le=1_000_000), Allowed("a whole number, from 1")] = None
    """At most so many satellites of all jobs together; unset: however many. Where more jobs would grow, fewer
    do, each by more, so that slurmctld has fewer jobs to schedule around."""
    slow_gpu_s: Annotated[float, Field(ge=0, le=604800), Allowed("seconds, from 0 to 604800")] = 1800.0
    """How long a node with a GPU that held a job up gets no satellites; 0: such GPUs are only recorded."""
    suspend_grace_s: Annotated[float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400")] = 120.0
    """How long a job keeps its satellites after Slurm has suspended its base. Nothing is granted to it until
    it is resumed. Where gang scheduling suspends jobs, choose more than they stand still between two of their
    time slices (`SchedulerTimeSlice`)."""
    gpu_speeds: Annotated[
        dict[str, Annotated[float, Field(ge=SLOWEST, le=FASTEST)]],
        Allowed(
            f"a table of GPU types and numbers from {SLOWEST:g} to {FASTEST:g},"
            " as in { t4 = 0.33, a100 = 2.5 }, each type once"
        ),
    ] = {"T4": T4_SPEED}
    """How fast GPUs of a type are, in GPUs of the types that are not named: declared, not measured. Types as
    in Slurm's `Gres`, in small or capital letters alike. Heterogeneous jobs split their batches by it, and
    `lyra` reckons with it."""
    order: Annotated[
        Literal["slurm", "policy"],
        Allowed(
            '"slurm", or "policy" with a policy that has an order: ',
            partial(registry.built_in, "orders_pending"),
        ),
    ] = "slurm"
    """Who says in which order pending jobs start: Slurm, or the policy, by priorities that flexod sets."""
    fairshare_weight: Annotated[
        float,
        Field(ge=0, le=1),
        Allowed(
            "a number from 0 to 1, above 0 only with a policy that weighs users: ",
            partial(registry.built_in, "weighs_users"),
        ),
    ] = 0.0
    """How much a user's fairshare factor weighs what is done for their elastic jobs: 0, not at all, to 1, in
    proportion. Needs slurmdbd."""
    quotas: Annotated[
        dict[str, Annotated[int, Field(ge=0, le=10_000_000)]],
        Allowed(
            "a table of Slurm accounts and their GPUs, as in { research = 64, teaching = 16 },"
            " only with a policy that goes by quotas: ",
            partial(registry.built_in, "uses_quotas"),
        ),
    ] = {}
    """GPUs that Slurm accounts are guaranteed under the policy `antman`; an account that is not named has
    none. Without accounting, users stand for accounts."""
    dry_run: Annotated[bool, Allowed("true or false")] = False
    """Decide and record, tell nobody, change nothing. `flexod --dry-run` says the same."""

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, value: str) -> str:
        if value not in registry.names():
            raise ValueError("no such policy")
        if value not in registry.built_in():
            registry.class_of(value)  # raises where the package that offers it is broken
        return value

    @field_validator("gpu_speeds")
    @classmethod
    def _check_gpu_speeds(cls, value: dict[str, float]) -> dict[str, float]:
        if len({gpu_type.casefold() for gpu_type in value}) < len(value):
            raise ValueError("a type is named twice")
        return value

    @field_validator("order")
    @classmethod
    def _check_order(cls, value: str, info: ValidationInfo) -> str:
        if value == "policy" and _lacks(info, "orders_pending"):
            raise ValueError("the policy has no order")
        return value

    @field_validator("fairshare_weight")
    @classmethod
    def _check_fairshare_weight(cls, value: float, info: ValidationInfo) -> float:
        if value and _lacks(info, "weighs_users"):
            raise ValueError("the policy does not weigh users")
        return value

    @field_validator("quotas")
    @classmethod
    def _check_quotas(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        if value and _lacks(info, "uses_quotas"):
            raise ValueError("the policy does not go by quotas")
        return value

    @field_validator("max_interval_s")
    @classmethod
    def _check_interval(cls, value: float, info: ValidationInfo) -> float:
        if value < info.data.get("min_interval_s", 0.0):
            raise ValueError("below min_interval_s")
        return value

    @field_validator("lease_s")
    @classmethod
    def _check_lease(cls, value: int, info: ValidationInfo) -> int:
        if value < 4 * info.data.get("min_interval_s", 0.0):
            raise ValueError("too short to be extended in time")
        return value


class LeaseSettings(_Section):
    """[lease]: where jobs keep the leases of their leaders. Jobs read this section themselves."""

    store: Annotated[str, Allowed(lease_place.GRAMMAR)] = "flexod"
    """Who keeps the leases of jobs' leaders: flexod, each job itself (`run`), or etcd."""
    etcd_ca: Annotated[AbsolutePath | None, Allowed("the absolute path of a file with certificates")] = None
    """The authorities that sign etcd's certificate, where the system's own do not."""
    etcd_cert: Annotated[AbsolutePath | None, Allowed("the absolute path of a certificate")] = None
    """A client certificate, where etcd wants one."""
    etcd_key: Annotated[AbsolutePath | None, Allowed("the absolute path of the certificate's key")] = None
    """The key of that certificate."""
    etcd_user: Annotated[str, Allowed("the name of a user of etcd's, as a string")] = ""
    """etcd's name of the user; empty: the job's own account, where `etcd_password_file` is set."""
    etcd_password_file: Annotated[
        str, Allowed('the path of a file, absolute or in the user\'s home as in "~/.flexo/etcd"')
    ] = ""
    """The file with that user's password."""

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: str) -> str:
        place = lease_place.parse(value)
        if place.run or (place.hosts and place.kind is lease_place.Kind.RUN):
            raise ValueError("that is for one job alone")
        return value

    @field_validator("etcd_ca", "etcd_cert", "etcd_key")
    @classmethod
    def _check_files(cls, value: Path | None) -> Path | None:
        return _absolute(value)

    @field_validator("etcd_password_file")
    @classmethod
    def _check_password_file(cls, value: str) -> str:
        if value and not value.startswith(("/", "~")):
            raise ValueError("not an absolute path")
        return value


class HighAvailabilitySettings(_Section):
    """[high_availability]: several flexods, of which one is active, and how they know which.

    The same on all their hosts. Jobs and `flexo` read `hosts` themselves.
    """

    hosts: Annotated[
        tuple[Annotated[str, Field(pattern=_ADDRESS)], ...],
        BeforeValidator(_as_tuple),
        Allowed('a list of two addresses or more, as in ["ctl1:6836", "ctl2:6836"], or []'),
    ] = ()
    """Where each flexod listens, instead of `[service] address`; the first is asked first. Empty: there is
    only one."""
    lease: Annotated[
        str,
        Allowed(
            '"file:///FOLDER" or "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]" (etcds:// for TLS), beside hosts'
        ),
    ] = ""
    """Where they keep which of them is active: in a folder that all of them share, or in etcd, which lets
    them in as `[lease]` says (`etcd_user` and so on)."""
    lease_s: Annotated[float, Field(ge=2, le=120), Allowed("seconds, from 2 to 120")] = 5.0
    """How long the active one may be silent before another takes over."""

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) == 1 or len(set(value)) < len(value):
            raise ValueError("not several")
        return value

    @field_validator("lease")
    @classmethod
    def _check_lease(cls, value: str, info: ValidationInfo) -> str:
        if bool(value) is not bool(info.data.get("hosts", value)):
            raise ValueError("hosts and lease go together")
        if value and not value.startswith("file:///") and not lease_place.parse(value).etcd:
            raise ValueError("not a place for it")
        return value

    @property
    def folder(self) -> Path | None:
        """Where the lease is kept in a folder; None where it is not."""
        return Path(self.lease.removeprefix("file://")) if self.lease.startswith("file://") else None


class LoaningSettings(_Section):
    """[loaning]: when servers of the inference cluster are lent to training, and how they come back."""

    enabled: Annotated[bool, Allowed("true or false")] = False
    """Lend servers at all."""
    inference_partition: Annotated[
        str, Field(pattern=_PARTITION), Allowed('the name of one partition, as in "infer"')
    ] = "infer"
    """The inference cluster's partition: its nodes are the servers that may be lent."""
    partition: Annotated[
        str, Field(pattern=_PARTITION), Allowed('the name of one partition, as in "borrowed"')
    ] = "borrowed"
    """The partition that servers are put into while on loan: bases of fungible jobs are submitted there."""
    satellite_partition: Annotated[
        str, Field(pattern=rf"{_PARTITION}|^$"), Allowed('the name of one partition, or "": that of bases')
    ] = ""
    """Where satellites on servers on loan are submitted; empty: to `partition`."""
    static: Annotated[bool, Allowed("true or false")] = False
    """The partition holds all inference servers and is never edited: grants alone decide who uses them."""
    edit_command: Annotated[
        tuple[str, ...],
        BeforeValidator(_as_tuple),
        Allowed('a list of words, as in ["sudo", "-n", "-u", "slurm", "/usr/sbin/flexo-partition"]'),
    ] = ()
    """Words of the command that edits the partition; empty: `scontrol`, which takes SlurmUser or root."""
    edit_interval_s: Annotated[float, Field(ge=1, le=3600), Allowed("seconds, from 1 to 3600")] = 60.0
    """Between two edits, at least."""
    interval_s: Annotated[float, Field(ge=1, le=3600), Allowed("seconds, from 1 to 3600")] = 60.0
    """Between two decisions."""
    headroom_servers: Annotated[float, Field(ge=0, le=100_000), Allowed("servers, from 0 to 100000")] = 1.0
    """Servers kept idle beyond what inference needs; also parts of one."""
    headroom_share: Annotated[float, Field(ge=0, le=10), Allowed("a share, from 0 to 10, as in 0.1")] = 0.0
    """The same, as a part of what it needs. Both are added."""
    hysteresis_servers: Annotated[float, Field(ge=0, le=1000), Allowed("servers, from 0 to 1000")] = 0.5
    """So much more has to be spare before a server is lent."""
    most_servers: Annotated[
        int | None, Field(ge=0, le=100_000), Allowed("whole servers, from 0 to 100000")
    ] = None
    """Servers on loan at once; unset: no limit."""
    most_per_interval: Annotated[int, Field(ge=1, le=100_000), Allowed("whole servers, from 1 to 100000")] = 4
    """Servers lent in one interval. Calling back has no limit."""
    rest_s: Annotated[float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400")] = 300.0
    """After a call back nothing is lent for so long."""
    reclaim_s: Annotated[float, Field(ge=30, le=86400), Allowed("seconds, from 30 to 86400")] = 180.0
    """How long servers have to become empty when demand calls them back."""
    preempt_within_s: Annotated[
        float, Field(ge=1, le=86400), Allowed("seconds, from 1 to 86400, at most reclaim_s")
    ] = 60.0
    """So long before the deadline bases are preempted. A base needs Slurm's KillWait (30 s by default) and
    its epilog to end: longer than both."""
    save_within_s: Annotated[
        float, Field(ge=0, le=86400), Allowed("seconds, from 0; with preempt_within_s at most reclaim_s")
    ] = 60.0
    """So long before that bases are asked for a checkpoint. Counts only where `checkpoint` is set."""
    force_within_s: Annotated[
        float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400, at most preempt_within_s")
    ] = 15.0
    """So long before the deadline satellites are cancelled that have not left."""
    checkpoint: Annotated[
        str, Allowed('an absolute path with %j in it, and maybe %u, as in "/scratch/%u/flexo-%j.pt"; or ""')
    ] = ""
    """Where bases write a checkpoint before they are preempted, with `%j` for the job's id and `%u` for its
    user; empty: nowhere."""
    source: Annotated[
        Literal["partition", "prometheus", "push"], Allowed('"partition", "prometheus" or "push"')
    ] = "partition"
    """Who says what the inference cluster needs."""
    inference_users: Annotated[
        tuple[str, ...], BeforeValidator(_as_tuple), Allowed('a list of user names, as in ["triton"]')
    ] = ()
    """Users that may push demand, besides administrators."""
    stale_s: Annotated[float, Field(ge=1, le=86400), Allowed("seconds, from 1 to 86400")] = 120.0
    """How old what the source says may be."""
    prometheus_url: Annotated[
        str,
        Field(pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$"),
        Allowed('the address of a Prometheus server without a password, as in "http://metrics:9090"'),
    ] = ""
    """The Prometheus server that is asked."""
    prometheus_query: Annotated[
        str, Allowed('PromQL with one value, as in "sum(servers_busy)", and prometheus_url beside it')
    ] = ""
    """What it is asked."""
    servers_per_unit: Annotated[
        float, Field(gt=0, le=100_000), Allowed("a number above 0, at most 100000, as in 0.125")
    ] = 1.0
    """Servers for each 1 that the query gives: 0.125 where it counts GPUs, eight to a server."""
    every_s: Annotated[float, Field(ge=1, le=3600), Allowed("seconds, from 1 to 3600")] = 15.0
    """Between two questions to Prometheus."""
    forecast: Annotated[Literal["seasonal", "lstm", "none"], Allowed('"seasonal", "lstm" or "none"')] = (
        "seasonal"
    )
    """How demand is forecast: by season, by a neural network (`lstm`, needs PyTorch), or not at all."""

    @field_validator("preempt_within_s")
    @classmethod
    def _check_preempt(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("reclaim_s", value):
            raise ValueError("above reclaim_s")
        return value

    @field_validator("save_within_s")
    @classmethod
    def _check_save(cls, value: float, info: ValidationInfo) -> float:
        if value + info.data.get("preempt_within_s", 0.0) > info.data.get("reclaim_s", math.inf):
            raise ValueError("too early")
        return value

    @field_validator("force_within_s")
    @classmethod
    def _check_force(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("preempt_within_s", value):
            raise ValueError("above preempt_within_s")
        return value

    @field_validator("checkpoint")
    @classmethod
    def _check_checkpoint(cls, value: str) -> str:
        others = value.replace("%j", "").replace("%u", "")
        if value and (not value.startswith("/") or "%j" not in value or "%" in others):
            raise ValueError("not such a path")
        return value

    @field_validator("prometheus_query")
    @classmethod
    def _check_query(cls, value: str, info: ValidationInfo) -> str:
        asked = info.data.get("source") == "prometheus"
        if asked and not (value and info.data.get("prometheus_url", "-")):
            raise ValueError("nothing to ask")
        return value


class JournalSettings(_Section):
    """[journal]: where flexod writes down what it saw, decided and did."""

    path: Annotated[AbsolutePath, Allowed("an absolute path of a file")] = Path(
        "/var/lib/flexo/journal.sqlite"
    )
    """The journal, an SQLite file. flexod holds a lock beside it."""
    keep_days: Annotated[float, Field(gt=0, le=36500), Allowed("days, above 0, at most 36500")] = 30.0
    """How long entries are kept."""
    max_mib: Annotated[int, Field(ge=1, le=1 << 20), Allowed("MiB, a whole number from 1 to 1048576")] = 512
    """How large the file becomes. Beyond that the oldest entries go, first those of the job with most."""

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: Path) -> Path:
        return _absolute(value) or value


class MetricsSettings(_Section):
    """[metrics]: where Prometheus reads how flexod does."""

    listen: Annotated[
        str, Allowed('"host:port" to listen on, as in "127.0.0.1:9836"; the port from 1 to 65535; or ""')
    ] = ""
    """Where metrics can be read, over plain HTTP, by whoever reaches it; empty: nowhere."""

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        return value and _host_and_port(value)


class LogSettings(_Section):
    """[log]: what flexod says of itself, and to whom."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Allowed('"debug", "info", "warning" or "error"')
    ] = "info"
    """The least that is logged. `flexod --log-level` says the same."""
    format: Annotated[
        Literal["auto", "text", "json", "journal"], Allowed('"auto", "text", "json" or "journal"')
    ] = "auto"
    """Lines for people on the error output (`text`), one JSON object a line there (`json`, or
    `flexod --log-json`), or entries with fields in systemd's journal (`journal`); `auto`: the last under
    systemd, else the first."""


class Settings(_Section):
    """Everything that flexod can be told."""

    service: ServiceSettings = ServiceSettings()
    tls: TlsSettings = TlsSettings()
    slurm: SlurmSettings = SlurmSettings()
    controller: ControllerSettings = ControllerSettings()
    loaning: LoaningSettings = LoaningSettings()
    lease: LeaseSettings = LeaseSettings()
    high_availability: HighAvailabilitySettings = HighAvailabilitySettings()
    journal: JournalSettings = JournalSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()


def load(path: Path) -> Settings:
    """Read and check `path`. Raises ConfigError with every mistake that it holds."""
    try:
        text = read_trusted(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError((f"{path}: cannot be read: {error}",)) from error
    except NotTrusted as error:
        raise ConfigError((str(error),)) from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Settings:
    """Check TOML that stands in `text`; `name` is what messages call it. Raises ConfigError."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError((_syntax_problem(name, str(error), text),)) from error
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        lines = _lines_of_keys(text)
        by_key = {_path(details): details for details in reversed(error.errors())}
        problems = sorted((_line(lines, path), _problem(details)) for path, details in by_key.items())
        raise ConfigError(tuple(f"{name}:{line}: {problem}" for line, problem in problems)) from error


def _syntax_problem(name: str, message: str, text: str) -> str:
    place = re.search(r"\(at line (\d+), column \d+\)", message)
    line = int(place[1]) if place else len(text.splitlines())
    return f"{name}:{line}: not TOML: {message}"


def _path(details: ErrorDetails) -> tuple[str, ...]:
    """The key that an error is about: pydantic goes on into members of unions and lists."""
    names = tuple(str(part) for part in details["loc"])
    return names[:2]


def _problem(details: ErrorDetails) -> str:
    path = _path(details)
    if details["type"] == "extra_forbidden":
        return _unknown_key(path)
    if len(path) == 1:
        return f"{path[0]} is a section, written [{path[0]}]; its keys: {_keys_of(path[0])}"
    name, key = path
    value = details["input"] if len(details["loc"]) == 2 else None
    shown = "" if value is None else f" = {_toml(value)}"
    broken = details.get("ctx", {}).get("error")
    if isinstance(broken, registry.BrokenPolicy):
        return f"[{name}] {key}{shown}: {broken}"
    return f"[{name}] {key}{shown} is not allowed: it takes {allowed(name, key)}"


def _unknown_key(path: tuple[str, ...]) -> str:
    if len(path) == 1:
        names, what = list(Settings.model_fields), f"[{path[0]}] is not a section"
    else:
        names, what = list(section(path[0]).model_fields), f"[{path[0]}] {path[1]} is not a key"
    near = difflib.get_close_matches(path[-1], names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return f"{what}{hint} Allowed: {', '.join(names)}"


def section(name: str) -> type[BaseModel]:
    """The settings of the section [name]."""
    found = Settings.model_fields[name].annotation
    assert isinstance(found, type)
    return found


def _keys_of(name: str) -> str:
    return ", ".join(section(name).model_fields)


def allowed(name: str, key: str) -> str:
    """What `key` of the section [name] takes, in words."""
    metadata: list[Any] = section(name).model_fields[key].metadata
    return next(item.text for item in metadata if isinstance(item, Allowed))


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str | Path) else str(value)


def _line(lines: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The line of a key; of its section where the key is not written, as when a default clashes."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


_HEADER = re.compile(r"^\s*\[([^\[\]]+)\]\s*(#.*)?$")
_KEY = re.compile(
    r"^\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)


def _lines_of_keys(text: str) -> dict[tuple[str, ...], int]:
    """Where each table and key of a valid TOML file stands, counted from 1.

    Strings over several lines are skipped; keys of inline tables are not told apart from their table.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quote:
            quote = "" if line.count(quote) % 2 else quote
            continue
        if header := _HEADER.match(line):
            table = _dotted(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table + _dotted(key[1])
            for length in range(1, len(path) + 1):
                lines.setdefault(path[:length], number)
        quote = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return lines


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
