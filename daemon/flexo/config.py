"""flexod's one configuration file: TOML in, frozen typed settings out, and every mistake named with its line.

The library that checks (pydantic) knows keys, not lines, and the parser (tomllib) knows lines only while
it reads; this file joins the two. The reference of the keys and the manual page flexo.toml(5) are made from
the docstrings here and from `Allowed`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ValidationInfo

from flexo import renamed_settings
from flexo.aggregation.settings import AggregationSettings
from flexo.clusters import registry as registry_of_kinds
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.clusters.yarn.settings import YarnSettings
from flexo.loaning.settings import LoaningSettings
from flexo.notices.settings import NoticesSettings
from flexo.policies import registry
from flexo.policies.gpu_speeds import FASTEST, SLOWEST, T4_SPEED
from flexo.sections import AbsolutePath, Allowed, KindSection, Section, absolute, as_tuple, host_and_port
from flexo.sharing.settings import SharingSettings
from flexo.trusted_file import NotTrusted, read_trusted
from flexo_protos import lease_place
from flexo_protos.flexods import DEFAULT_ADDRESS

DEFAULT_PATH: Final = Path("/etc/flexo/flexo.toml")
_ADDRESS: Final = r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([1-9]\d{0,4})$"


class ConfigError(Exception):
    """A file that flexod does not start with. `problems` has one sentence for each mistake."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _lacks(info: ValidationInfo, having: str) -> bool:
    """Whether the policy, if a right one was named, is without this property."""
    policy: str | None = info.data.get("policy")
    return policy is not None and not getattr(registry.class_of(policy), having)


class ServiceSettings(Section):
    """[service]: where flexod listens, and who may do what."""

    address: Annotated[
        str, Allowed('"host:port" to listen on, as in "ctl1:6836"; the port from 1 to 65535')
    ] = DEFAULT_ADDRESS
    """Where flexod listens, with the name by which compute nodes know the host: leaders dial it."""
    administrators: Annotated[
        tuple[str, ...], BeforeValidator(as_tuple), Allowed('a list of user names, as in ["ada", "bob"]')
    ] = ()
    """Users who may scale any job, besides root and the account that flexod runs as."""
    readers: Annotated[
        tuple[str, ...], BeforeValidator(as_tuple), Allowed('a list of user names, as in ["flexo-web"]')
    ] = ()
    """Users from whom flexod hides nothing where the cluster hides jobs (Slurm's `PrivateData`), besides
    administrators and Slurm's own Operators."""
    web_steering: Annotated[
        tuple[str, ...],
        BeforeValidator(as_tuple),
        Allowed('a list of accounts of flexo-web, as in ["flexo-web"]; never root'),
    ] = ()
    """Accounts whose word on who looks at the web pages flexod believes: these viewers may scale their own
    jobs there. Empty: the pages only read."""
    authentication: Annotated[Literal["munge", "slurm"], Allowed('"munge" or "slurm"')] = "munge"
    """How callers prove who they are: with MUNGE, or with Slurm's own sack where AuthType=auth/slurm. Hosts
    of callers need this line, too."""
    munge_socket: Annotated[AbsolutePath | None, Allowed("the absolute path of munged's socket")] = None
    """munged's socket, where it is not libmunge's default (Slurm's `AuthInfo=socket=`)."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        return host_and_port(value)

    @field_validator("web_steering")
    @classmethod
    def _check_web_steering(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "root" in value:
            raise ValueError("flexo-web never runs as root")
        return value

    @field_validator("munge_socket")
    @classmethod
    def _check_socket(cls, value: Path | None) -> Path | None:
        return absolute(value)


class TlsSettings(Section):
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
        return absolute(value)

    @field_validator("key", "ca")
    @classmethod
    def _check_all_there(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        certificate = info.data.get("certificate")
        if (certificate and not value) or (info.field_name == "key" and value and not certificate):
            raise ValueError("certificate, key and ca go together")
        return value


class ClusterSettings(Section):
    """[cluster]: what manages the cluster that flexod looks after."""

    kind: Annotated[str, Allowed(f"one of {', '.join(registry_of_kinds.names())}")] = "slurm"
    """Which kind of cluster it is. The section of that name has the kind's own settings."""

    @field_validator("kind")
    @classmethod
    def _check_kind(cls, value: str) -> str:
        if value not in registry_of_kinds.names():
            raise ValueError("no such kind")
        return value


class ControllerSettings(Section):
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
    """Looking may take this share of the time. The interval is at least the cost of a look (the median of the
    last five) over this share. It is never more than two fifths of `time_limit_s`, so that time limits are
    extended in time."""
    min_resize_interval_s: Annotated[float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400")] = 60.0
    """Between two resizes of one job. It delays growing, and giving workers back to other elastic
    jobs; giving a node back to the cluster never waits."""
    time_limit_s: Annotated[
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
    """The most satellites of all jobs together; unset: no limit. Over the limit, fewer jobs grow, each by
    more workers, so that slurmctld has fewer jobs to schedule around."""
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
    ] = {"T4": T4_SPEED}  # noqa: RUF012 - pydantic copies it
    """How fast GPUs of a type are, in GPUs of the types that are not named: declared, not measured. Types as
    in Slurm's `Gres`, in small or capital letters alike. Heterogeneous jobs split their batches by it, and
    `lyra` reckons with it."""
    order: Annotated[
        Literal["cluster", "policy"],
        Allowed(
            '"cluster", or "policy" with a policy that has an order: ',
            partial(registry.built_in, "orders_pending"),
        ),
    ] = "cluster"
    """The order in which pending jobs start: by the cluster, or by the policy, with priorities that flexod
    sets."""
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
    ] = {}  # noqa: RUF012
    """GPUs that Slurm accounts are guaranteed under the policy `antman`; an account that is not named has
    none. Without accounting, users stand for accounts."""
    all_reduce: Annotated[
        AbsolutePath | None, Allowed("the absolute path of a file that horovod_elastic.calibrate has written")
    ] = None
    """The times of the cluster's all-reduces, by which policies of IBM's paper forecast the speeds of jobs
    (`throughput`). Unset: no job tries batches out."""
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

    @field_validator("all_reduce")
    @classmethod
    def _check_all_reduce(cls, value: Path | None) -> Path | None:
        return absolute(value)

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

    @field_validator("time_limit_s")
    @classmethod
    def _check_time_limit(cls, value: int, info: ValidationInfo) -> int:
        if value < 4 * info.data.get("min_interval_s", 0.0):
            raise ValueError("too short to be extended in time")
        return value


class LeaseSettings(Section):
    """[lease]: where jobs keep the leases of their leaders. Jobs read this section themselves."""

    store: Annotated[str, Allowed(lease_place.GRAMMAR)] = "flexod"
    """The store of the leases of jobs' leaders: flexod, each job itself (`run`), or etcd."""
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
        return absolute(value)

    @field_validator("etcd_password_file")
    @classmethod
    def _check_password_file(cls, value: str) -> str:
        if value and not value.startswith(("/", "~")):
            raise ValueError("not an absolute path")
        return value


class HighAvailabilitySettings(Section):
    """[high_availability]: several flexods, of which one is active, and how they know which.

    The same on all their hosts. Jobs and `flexo` read `hosts` themselves.
    """

    hosts: Annotated[
        tuple[Annotated[str, Field(pattern=_ADDRESS)], ...],
        BeforeValidator(as_tuple),
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


class EventStoreSettings(Section):
    """[event_store]: where flexod writes down what it saw, decided and did."""

    path: Annotated[AbsolutePath, Allowed("an absolute path of a file")] = Path(
        "/var/lib/flexo/journal.sqlite"
    )
    """The event store, an SQLite file. flexod holds a lock beside it."""
    keep_days: Annotated[float, Field(gt=0, le=36500), Allowed("days, above 0, at most 36500")] = 30.0
    """How long entries are kept."""
    max_mib: Annotated[int, Field(ge=1, le=1 << 20), Allowed("MiB, a whole number from 1 to 1048576")] = 512
    """How large the file becomes. Beyond that the oldest entries go, first those of the job with most."""

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: Path) -> Path:
        return absolute(value) or value


class MetricsSettings(Section):
    """[metrics]: where Prometheus reads how flexod does."""

    listen: Annotated[
        str, Allowed('"host:port" to listen on, as in "127.0.0.1:9836"; the port from 1 to 65535; or ""')
    ] = ""
    """Address of the metrics over plain HTTP, for everybody who reaches it; empty: none."""

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        return value and host_and_port(value)


class LogSettings(Section):
    """[log]: what flexod says of itself, and to whom."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Allowed('"debug", "info", "warning" or "error"')
    ] = "info"
    """The least that is logged. `flexod --log-level` says the same."""
    format: Annotated[
        Literal["auto", "text", "json", "journal"], Allowed('"auto", "text", "json" or "journal"')
    ] = "auto"
    """`text`: lines for people on the error output. `json`, or `flexod --log-json`: one JSON object a line
    there. `journal`: entries with fields in systemd's journal. `auto`: the last under systemd, else the
    first."""


class Settings(Section):
    """Everything that flexod can be told."""

    service: ServiceSettings = ServiceSettings()
    tls: TlsSettings = TlsSettings()
    cluster: ClusterSettings = ClusterSettings()
    slurm: SlurmSettings = SlurmSettings()
    yarn: YarnSettings = YarnSettings()
    controller: ControllerSettings = ControllerSettings()
    loaning: LoaningSettings = LoaningSettings()
    sharing: SharingSettings = SharingSettings()
    aggregation: AggregationSettings = AggregationSettings()
    lease: LeaseSettings = LeaseSettings()
    high_availability: HighAvailabilitySettings = HighAvailabilitySettings()
    event_store: EventStoreSettings = EventStoreSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()
    notices: NoticesSettings = NoticesSettings()

    _renamed: tuple[str, ...] = PrivateAttr(())

    @property
    def renamed(self) -> tuple[str, ...]:
        """A sentence for each old name in the file; see renamed_settings.py."""
        return self._renamed

    @property
    def of_cluster(self) -> KindSection:
        """The section of the kind of cluster that this is."""
        own = getattr(self, self.cluster.kind)
        assert isinstance(own, KindSection)
        return own


def all_settings() -> type[Settings]:
    """The content of a file: the settings, with a section for each kind of cluster that is registered."""
    return _with_sections_of(frozenset(registry_of_kinds.names() - Settings.model_fields.keys()))


@cache
def _with_sections_of(kinds: frozenset[str]) -> type[Settings]:
    if not kinds:
        return Settings
    sections: dict[str, Any] = {}
    for name in sorted(kinds):
        section_of_kind = registry_of_kinds.settings_of(name)
        sections[name] = (section_of_kind, section_of_kind())
    return create_model("Settings", __base__=Settings, **sections)


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
        tree, notices = renamed_settings.renamed(tree)
    except ValueError as error:
        raise ConfigError((f"{name}: {error}",)) from error
    try:
        settings = all_settings().model_validate(tree)
        settings._renamed = tuple(f"{name}: {notice}" for notice in notices)
        return settings
    except ValidationError as error:
        lines = renamed_settings.under_new_names(_lines_of_keys(text))
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
        names, what = list(all_settings().model_fields), f"[{path[0]}] is not a section"
    else:
        names, what = list(section(path[0]).model_fields), f"[{path[0]}] {path[1]} is not a key"
    near = difflib.get_close_matches(path[-1], names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return f"{what}{hint} Allowed: {', '.join(names)}"


def section(name: str) -> type[BaseModel]:
    """The settings of the section [name]."""
    found = all_settings().model_fields[name].annotation
    assert isinstance(found, type)
    return found


def _keys_of(name: str) -> str:
    return ", ".join(section(name).model_fields)


def allowed(name: str, key: str) -> str:
    """The allowed values of `key` of the section [name], in words."""
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
