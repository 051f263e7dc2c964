"""Runs one examination: asks Slurm, MUNGE and this host, and has each group of checks judge the answers.

An unreadable part is a finding, too, and checks that depend on it are left out. Nothing here raises.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import flexo
from flexo.clusters.base import ClusterUnreachable
from flexo.clusters.slurm.commands import CommandFailed, SlurmCommands
from flexo.clusters.slurm.hostlist import BadHostlist
from flexo.clusters.slurm.parse_nodes import parse_nodes
from flexo.clusters.slurm.settings import SlurmSettings
from flexo.clusters.slurm.text import BadValue
from flexo.config import Settings
from flexo.doctor import availability, flexod, munge
from flexo.doctor.clock import check_clock
from flexo.doctor.etcd import check_etcd
from flexo.doctor.finding import Finding, not_checked, ok, problem
from flexo.doctor.flexod import FlexodAnswer
from flexo.doctor.gres_conf import GresLine, parse_gres_conf
from flexo.doctor.memory import check_memory
from flexo.doctor.neighbours import check_neighbours
from flexo.doctor.partitions import Satellites, check_borrowed, check_partitions, check_shared, of_satellites
from flexo.doctor.plugin import REQUEST, check_plugin
from flexo.doctor.pool import check_pool
from flexo.doctor.preemption import check_preemption
from flexo.doctor.priorities import check_priorities
from flexo.doctor.qos import ASKED, QosSetup, check_qos, parse_qos
from flexo.doctor.rights import Account, check_rights, parse_admin_level
from flexo.doctor.scheduler import check_scheduler
from flexo.doctor.sharing import (
    LuaAnswers,
    check_prolog,
    check_sharing,
    check_spare_lua,
    check_spare_qos,
)
from flexo.doctor.slurm import check_slurm
from flexo.doctor.slurm_says import (
    PartitionSetup,
    SlurmConfig,
    parse_config,
    parse_node_addresses,
    parse_partition_setups,
    parse_stats,
)
from flexo.doctor.submission import TriedOut, check_submission
from flexo.model.nodes import Node
from flexo.model.sharing import SPARE
from flexo_protos.credentials import MUNGE, SLURM, SOCKET_VARIABLE, new_authenticator

_T = TypeVar("_T")
_TEST = ("sbatch", "--test-only", "--wrap", "true")


@dataclass(frozen=True, slots=True)
class _Slurm:
    """Slurm's first answers; everything else is asked only if there were any."""

    config: SlurmConfig
    config_text: str
    partitions: tuple[PartitionSetup, ...]


def examine(
    config_path: Path, ask_flexod: Callable[[str], FlexodAnswer], elsewhere: str = ""
) -> list[Finding]:
    """Examine everything, in the order of a report. Each query of Slurm may take [slurm] timeout_s.

    `ask_flexod` asks the flexod at an address. `elsewhere`: the address to ask instead of the configured one.
    Several flexods are all asked at their configured addresses.
    """
    settings, mistakes = flexod.read_settings(config_path)
    socket = settings.service.munge_socket
    if socket is None and os.environ.get(SOCKET_VARIABLE):
        socket = Path(os.environ[SOCKET_VARIABLE])
    commands = SlurmCommands(settings.slurm.conf, settings.slurm.timeout_s)
    slurm = _or_why(lambda: _slurm(commands))
    addresses = frozenset() if isinstance(slurm, _Why) else _node_addresses(commands)
    findings = [
        *_credentials(settings, socket),
        *(_unreachable(slurm) if isinstance(slurm, _Why) else _cluster(commands, slurm, settings)),
        *flexod.check_config(config_path, mistakes, settings.renamed),
        *flexod.check_web_steering(settings.service.web_steering),
        *_flexods(settings, addresses, ask_flexod, elsewhere),
    ]
    event_store = settings.event_store.path
    return findings + flexod.check_event_store(event_store, flexod.account_of(event_store))


def _credentials(settings: Settings, socket: Path | None) -> list[Finding]:
    """Findings on the scheme by which callers prove who they are."""
    if settings.service.authentication == SLURM:
        return munge.check_sack(new_authenticator(SLURM))
    authenticator = new_authenticator(MUNGE, socket=str(socket) if socket else None)
    return [*munge.check_munge(authenticator, socket), munge.other_hosts()]


def _flexods(
    settings: Settings,
    node_addresses: frozenset[str],
    ask: Callable[[str], FlexodAnswer],
    elsewhere: str,
) -> list[Finding]:
    """Findings on each flexod, and on what several flexods share."""
    hosts = settings.high_availability.hosts
    if hosts:
        answers = {host: ask(host) for host in hosts}
    else:
        answers = {settings.service.address: ask(elsewhere or settings.service.address)}
    findings: list[Finding] = []
    for host, answer in answers.items():
        findings += flexod.check_address(host, node_addresses)
        findings += flexod.check_answer(answer, flexo.__version__)
        findings += check_pool(answer, settings.aggregation)
    if hosts:
        findings += availability.check_active(answers)
    if folder := settings.high_availability.folder:
        findings += availability.check_lease_folder(folder, settings.event_store.path)
    return findings + check_etcd(settings)


def _slurm(commands: SlurmCommands) -> _Slurm:
    text = commands.read("scontrol", "show", "config")
    partitions = commands.read("scontrol", "show", "partition", "-a", "-o")
    return _Slurm(parse_config(text), text, parse_partition_setups(partitions))


def _unreachable(why: _Why) -> list[Finding]:
    fix = "`scontrol ping` has to say that slurmctld is UP; [slurm] conf in flexo.toml names slurm.conf."
    return [
        problem("slurm.answers", why.text, fix),
        not_checked("slurm", "partitions, preemption, plugin, rights, clock: Slurm does not answer"),
    ]


def _cluster(commands: SlurmCommands, slurm: _Slurm, settings: Settings) -> list[Finding]:
    """Findings on everything that Slurm has to be asked about."""
    controller, loaning = settings.controller, settings.loaning
    satellites = Satellites(settings.slurm.satellite_partition, controller.time_limit_s)
    # the partition of satellites on shared GPUs is below the others, and has checks of its own
    ordinary = tuple(each for each in slurm.partitions if each.name != settings.sharing.partition)
    qos = _qos(commands, slurm.config)
    return [
        ok("slurm.answers", f"slurmctld of the cluster {slurm.config.cluster} answers"),
        *check_slurm(slurm.config, settings.service.authentication),
        *check_memory(slurm.config, slurm.partitions),
        *check_preemption(slurm.config),
        *check_partitions(slurm.config, ordinary, satellites),
        *check_borrowed(slurm.config, slurm.partitions, loaning),
        *check_neighbours(slurm.config, slurm.partitions, settings.slurm.satellite_partition),
        *check_qos(slurm.config, settings.slurm.satellite_qos, qos),
        *_sharing(commands, slurm, settings, qos),
        *check_priorities(slurm.config, controller),
        *_scheduler_and_clock(commands, slurm, controller.start_within_s),
        *_submission_and_plugin(commands, slurm, settings.slurm),
        *check_rights(slurm.config, _account(commands, slurm.config, settings.event_store.path), loaning),
    ]


def _sharing(
    commands: SlurmCommands, slurm: _Slurm, settings: Settings, qos: Sequence[QosSetup] | str
) -> list[Finding]:
    """Findings on shared GPUs; none if no GPUs are shared."""
    sharing, config = settings.sharing, slurm.config
    if not sharing.enabled:
        return []
    shared = next((each for each in slurm.partitions if each.name == sharing.partition), None)
    beside = Path(config.path).parent
    answers = LuaAnswers(
        plain=_tried(commands, "-n", "1"),
        spare=_tried(commands, "-n", "1", f"--gres={SPARE}:1"),
        stranger=_tried(commands, "-n", "1", "-p", sharing.partition),
        job_submit=_text_of(beside / "job_submit.lua"),
    )
    return [
        *check_sharing(
            config, _nodes_of(commands, sharing.partition), _gres_conf(beside / "gres.conf"), sharing
        ),
        *check_shared(config, slurm.partitions, sharing, of_satellites(settings)),
        *check_spare_qos(config, qos, shared.qos if shared else "", settings.slurm.satellite_qos),
        *check_spare_lua(answers, sharing),
        check_prolog(config, _prologs(config.prologs)),
    ]


def _nodes_of(commands: SlurmCommands, partition: str) -> tuple[Node, ...] | str:
    said = _or_why(lambda: parse_nodes(commands.read("scontrol", "show", "node", "-a", "-d", "-o")))
    return (
        said.text if isinstance(said, _Why) else tuple(node for node in said if partition in node.partitions)
    )


def _gres_conf(path: Path) -> tuple[GresLine, ...] | str:
    text = _text_of(path)
    if text is None:
        return f"{path} cannot be read on this host"
    try:
        return parse_gres_conf(text)
    except BadHostlist as error:
        return f"{path}: {error}"


def _prologs(patterns: Sequence[str]) -> dict[str, str]:
    """The Prologs that can be read on this host, by path."""
    found = [path for each in map(Path, patterns) for path in sorted(each.parent.glob(each.name))]
    texts = {str(path): _text_of(path) for path in found}
    return {path: text for path, text in texts.items() if text is not None}


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _scheduler_and_clock(commands: SlurmCommands, slurm: _Slurm, start_within_s: int | None) -> list[Finding]:
    asked_at = time.time()
    diagnosis = _or_why(lambda: commands.read("sdiag"))
    if isinstance(diagnosis, _Why):
        return [not_checked("scheduler", diagnosis.text, "`sdiag`"), not_checked("clock", diagnosis.text)]
    answered_at = time.time()
    stats = parse_stats(slurm.config_text, diagnosis)
    return [
        *check_scheduler(slurm.config, stats, start_within_s),
        *check_clock(stats.at, asked_at, answered_at),
    ]


def _submission_and_plugin(
    commands: SlurmCommands, slurm: _Slurm, satellites: SlurmSettings
) -> list[Finding]:
    partition, qos = satellites.satellite_partition, satellites.satellite_qos
    in_satellites = _tried(commands, "-p", partition, "-n", "1", *([f"--qos={qos}"] if qos else []))
    plain, contradictory = _tried(commands, "-n", "1"), _tried(commands, *REQUEST)
    offered = _or_why(lambda: commands.read("sbatch", "--help"))
    return [
        *check_submission(slurm.partitions, partition, in_satellites),
        *check_plugin(slurm.config, None if isinstance(offered, _Why) else offered, plain, contradictory),
    ]


def _tried(commands: SlurmCommands, *options: str) -> TriedOut:
    try:
        commands.run((*_TEST, *options), {})
    except CommandFailed as refused:
        return TriedOut(refused.said)
    except ClusterUnreachable as error:
        return TriedOut(str(error))
    return TriedOut()


def _account(commands: SlurmCommands, config: SlurmConfig, event_store: Path) -> Account:
    name = flexod.account_of(event_store)
    if not name or "slurmdbd" not in config.accounting_type:
        return Account(name)
    asked = ("sacctmgr", "--noheader", "--parsable2", "show", "user", name, "format=user,adminlevel")
    said = _or_why(lambda: commands.read(*asked))
    if isinstance(said, _Why):
        return Account(name, unknown=said.text)
    return Account(name, parse_admin_level(said))


def _qos(commands: SlurmCommands, config: SlurmConfig) -> tuple[QosSetup, ...] | str:
    if "slurmdbd" not in config.accounting_type:
        return f"AccountingStorageType={config.accounting_type or 'none'}"
    said = _or_why(lambda: parse_qos(commands.read(*ASKED)))
    return said.text if isinstance(said, _Why) else said


def _node_addresses(commands: SlurmCommands) -> frozenset[str]:
    said = _or_why(lambda: commands.read("scontrol", "show", "node", "-a", "-o"))
    return frozenset() if isinstance(said, _Why) else parse_node_addresses(said)


@dataclass(frozen=True, slots=True)
class _Why:
    """The reason why there is no answer."""

    text: str


def _or_why(ask: Callable[[], _T]) -> _T | _Why:
    try:
        return ask()
    except (ClusterUnreachable, BadValue, BadHostlist) as error:
        return _Why(str(error))
