"""Checks that GPUs can be shared: a second GRES on the same device files, kept for satellites (AntMan).

A satellite of an opportunistic job is granted a GPU that another job holds, as `--gres=spare:s1:1`. Three
layers keep that GRES from everybody else: Lua, limits of QOS, and the hold that flexod alone ends.
docs/howto/share-gpus-on-slurm.md has the whole set-up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexo.clusters.slurm.releases import Release
from flexo.doctor.finding import Finding, not_checked, ok, problem, warning
from flexo.doctor.gres_conf import GresLine, files_of
from flexo.doctor.qos import QosSetup
from flexo.doctor.slurm_says import SlurmConfig
from flexo.doctor.submission import TriedOut
from flexo.model.nodes import Node
from flexo.model.sharing import SPARE, number_of
from flexo.sharing.settings import SharingSettings
from flexo_protos.resources import Devices

FIRST_RELEASE: Final = Release(23, 2)
"""The first release whose device cgroups open the files of a GRES without a plugin of its own."""
_RECONFIGURE: Final = "then `scontrol reconfigure`"
_RESTART: Final = "restart slurmctld and all slurmds"
_CALLS_MODIFY: Final = re.compile(r"^(?:(?!--).)*\b\w+\.job_modify\s*\(", re.MULTILINE)
_ENDS_SECOND_JOBS: Final = re.compile(r"^[^#\n]*(?:share evict|prolog_sharing)", re.MULTILINE)
"""A line of a Prolog that evicts itself, or calls prolog_sharing.example."""
_PROLOG_EXAMPLE: Final = "/usr/share/doc/flexo-slurm-plugin/prolog_sharing.example"
_SHOWN: Final = 3
"""The number of nodes or QOS that a sentence names."""


@dataclass(frozen=True, slots=True)
class LuaAnswers:
    """The answers of `sbatch --test-only` to jobs that only a satellite may submit."""

    plain: TriedOut
    """A job that anybody may submit."""
    spare: TriedOut
    """A job outside the shared partition that requests the spare GRES."""
    stranger: TriedOut
    """A job in the shared partition that does not claim to be a satellite."""
    job_submit: str | None
    """The text of job_submit.lua; None: it cannot be read on this host."""


def check_sharing(
    config: SlurmConfig,
    nodes: Sequence[Node] | str,
    gres_conf: Sequence[GresLine] | str,
    sharing: SharingSettings,
) -> list[Finding]:
    """Check release, GresTypes, device cgroups, and that each spare GRES is on the file of one GPU.

    `nodes`: the nodes of the shared partition. `gres_conf`: the lines of the file beside slurm.conf. Either
    may be a text: the reason why it could not be read.
    """
    findings = [_release(config.version), _gres_types(config), _devices(config)]
    if isinstance(nodes, str):
        return [*findings, not_checked("sharing.nodes", nodes)]
    types = _types(nodes)
    if types.fix or isinstance(gres_conf, str):
        why = gres_conf if isinstance(gres_conf, str) else "the types of the spare GRES are wrong on nodes"
        fix = f"On each node `slurmd -G` shows the file and the flags of gpu and {SPARE}."
        return [*findings, types, not_checked("sharing.files", why, fix)]
    return [
        *findings,
        types,
        _files(nodes, gres_conf),
        _explicit(nodes, gres_conf),
    ]


def check_spare_qos(
    config: SlurmConfig,
    known: Sequence[QosSetup] | str,
    partition_qos: str,
    satellite_qos: str,
) -> list[Finding]:
    """Check that QOS refuse the spare GRES to everybody but satellites.

    `partition_qos`: the QOS of the shared partition. `satellite_qos`: the QOS that flexo.toml names. For
    either, "" means none.
    """
    check, limit = "sharing.qos", f"MaxTRESPerJob=gres/{SPARE}=0"
    if isinstance(known, str):
        return [
            warning(
                check,
                f"no QOS limits gres/{SPARE} ({known}): job_submit_elastic.lua alone keeps it for satellites",
                f"slurmdbd with AccountingStorageEnforce=limits,qos, and {limit} for every QOS.",
            )
        ]
    lacking = {f"gres/{SPARE}"} - set(config.accounting_tres) or {"limits"} - set(config.accounting_enforce)
    if lacking:
        return [
            problem(
                check,
                f"limits of gres/{SPARE} do not count: slurm.conf lacks {', '.join(lacking)}",
                f"slurm.conf: AccountingStorageTRES=gres/gpu,gres/{SPARE} and"
                " AccountingStorageEnforce=associations,limits,qos; restart slurmctld.",
            )
        ]
    allowed = partition_qos or satellite_qos
    open_to_all = sorted(each.name for each in known if each.name != allowed and each.most_of(SPARE) != 0)
    findings = [_for_satellites(known, allowed)]
    if open_to_all:
        findings.append(
            problem(
                check,
                f"jobs of {_some(open_to_all)} may ask for gres/{SPARE} where Lua does not refuse it",
                f"`sacctmgr modify qos {','.join(open_to_all)} set {limit} Flags=DenyOnLimit`",
            )
        )
    else:
        findings.append(
            ok(check, f"no QOS but {allowed or 'that of satellites'} lets jobs have gres/{SPARE}")
        )
    return findings


def check_spare_lua(answers: LuaAnswers, sharing: SharingSettings) -> list[Finding]:
    """Check that slurmctld refuses what job_submit_elastic.lua refuses, and that users cannot release."""
    check, setting = "sharing.lua", f'elastic.config.shared_partition = "{sharing.partition}"'
    if answers.plain.refused:
        return [not_checked(check, f"Slurm takes no plain job from you either: {answers.plain.refused}")]
    asked = {f"--gres={SPARE}:1": answers.spare, f"-p {sharing.partition}": answers.stranger}
    passed = [option for option, tried in asked.items() if "flexo: " not in tried.refused]
    if passed:
        return [
            problem(
                check,
                f"job_submit.lua does not refuse `sbatch {passed[0]}`",
                f"job_submit.lua beside slurm.conf, after the line with dofile: {setting};"
                " slurm_job_submit returns elastic.job_submit(job_desc, part_list, submit_uid).",
            )
        ]
    return [
        ok(check, f"slurmctld refuses {SPARE} and {sharing.partition} to other jobs"),
        _hold(answers),
    ]


def check_prolog(config: SlurmConfig, texts: Mapping[str, str]) -> Finding:
    """Check that the second job on a GPU ends before Slurm starts another job there.

    `texts`: those of the Prologs that can be read on this host, by path.
    """
    check, named = "sharing.prolog", ", ".join(config.prologs)
    if not config.prologs:
        return problem(
            check,
            "slurm.conf has no Prolog: a job without consent can start on a GPU that a satellite still uses",
            f"On each node `install -m 755 {_PROLOG_EXAMPLE} /etc/slurm/prolog_sharing`; slurm.conf:"
            f" Prolog=/etc/slurm/prolog_sharing; {_RECONFIGURE}.",
        )
    if any(_ENDS_SECOND_JOBS.search(text) for text in texts.values()):
        return ok(
            check,
            f"Prolog={named} ends second jobs on a job's GPUs. Its errors are in the log of the node:"
            " `journalctl -t flexo-prolog`",
        )
    if not texts:
        return not_checked(
            check,
            f"Prolog={named} cannot be read on this host: whether it ends second jobs is unknown",
            f"On a node, `grep -E 'share evict|prolog_sharing' {' '.join(config.prologs)}` has to find a"
            " line.",
        )
    return problem(
        check,
        f"Prolog={named} does not call `flexo share evict`: a job without consent can start on a GPU that a"
        " satellite still uses",
        f"On each node `install -m 755 {_PROLOG_EXAMPLE} /etc/slurm/prolog_sharing`, and call that file in"
        " the Prolog.",
    )


def _release(version: str) -> Finding:
    check, release = "sharing.release", Release.found_in(version)
    if release is not None and release >= FIRST_RELEASE:
        return ok(check, f"Slurm {version} opens the device files of a second GRES")
    return problem(
        check,
        f"Slurm {version or 'of an unknown release'} cannot share GPUs. It allots the second GRES, but the"
        " device cgroup does not open its files: before 23.02, device files count for GRES with a plugin"
        " alone. It also gives the second GRES to --exclusive jobs",
        f'Update Slurm to {FIRST_RELEASE} or later, or leave partition = "" in [sharing] of flexo.toml.',
    )


def _gres_types(config: SlurmConfig) -> Finding:
    check, wanted = "sharing.gres_types", ("gpu", SPARE)
    if set(wanted) <= set(config.gres_types):
        return ok(check, f"GresTypes has gpu and {SPARE}")
    return problem(
        check,
        f"GresTypes={','.join(config.gres_types) or '(nothing)'}: Slurm knows no GRES {SPARE}",
        f"slurm.conf: GresTypes={','.join(dict.fromkeys((*config.gres_types, *wanted)))}; {_RESTART}.",
    )


def _devices(config: SlurmConfig) -> Finding:
    check = "sharing.devices"
    if config.constrain_devices and "task/cgroup" in config.task_plugins:
        return ok(check, "ConstrainDevices=yes: a job opens the devices that it was allotted, and no others")
    return problem(
        check,
        f"TaskPlugin={','.join(config.task_plugins) or '(nothing)'} and"
        f" ConstrainDevices={'yes' if config.constrain_devices else 'no'}: a job can open all GPUs of its"
        " nodes",
        f"cgroup.conf: ConstrainDevices=yes; slurm.conf: TaskPlugin=task/affinity,task/cgroup; {_RESTART}.",
    )


def _types(nodes: Sequence[Node]) -> Finding:
    """Whether every node with GPUs has one type of the GRES for each GPU, numbered from 0."""
    check = "sharing.nodes"
    with_gpus = [node for node in nodes if node.gpus]
    wrong = {node.name: why for node in with_gpus if (why := _wrong_types(node))}
    if with_gpus and not wrong:
        return ok(check, f"{len(with_gpus)} nodes have one type of {SPARE} for each GPU")
    first = next((node for node in with_gpus if node.name in wrong), None)
    gpus = int(first.gpus) if first else 2
    named = "".join(f",{SPARE}:s{index}:1" for index in range(gpus))
    what = (
        f"{_some(sorted(wrong))}: {wrong[first.name]}"
        if first
        else "the shared partition has no node with GPUs"
    )
    return problem(
        check,
        what,
        f"slurm.conf: NodeName={first.name if first else '...'} ... Gres=gpu:{gpus}{named}; gres.conf, a line"
        f" for each type: Name={SPARE} Type=s0 File=/dev/nvidia0 Flags=explicit; {_RESTART}.",
    )


def _wrong_types(node: Node) -> str:
    found = [each for each in node.capacity.devices if each.name == SPARE]
    indices = sorted(-1 if (index := number_of(each)) is None else index for each in found)
    if not found:
        return f"no {SPARE}"
    if any(each.amount != 1 for each in found):
        return f"a type of {SPARE} with more than one device"
    if indices != list(range(int(node.gpus))):
        shown = ", ".join(each.type or "(no type)" for each in found)
        return f"{node.gpus} GPUs, and the types of {SPARE} are {shown}"
    return ""


def _files(nodes: Sequence[Node], lines: Sequence[GresLine]) -> Finding:
    """Whether the files of types are those of the GPUs with their index."""
    check = "sharing.files"
    with_gpus = [node.name for node in nodes if node.gpus]
    unknown = [name for name in with_gpus if not files_of(lines, name, "gpu")]
    if unknown:
        return not_checked(
            check,
            f"gres.conf on this host has no file of gpu for {_some(unknown)} (AutoDetect, or other files"
            " there)",
            f"On these nodes `slurmd -G` has to show the same file for {SPARE} of type sN and GPU N.",
        )
    for name in with_gpus:
        gpus = files_of(lines, name, "gpu")
        own = {line.type: line.files for line in lines if line.is_of(name, SPARE)}
        wrong = [kind for kind, files in own.items() if files != gpus[_index(kind) : _index(kind) + 1]]
        if wrong or len(own) != len(gpus):
            kind = wrong[0] if wrong else f"s{len(own)}"
            file = next(iter(gpus[_index(kind) : _index(kind) + 1]), gpus[0])
            said = ",".join(own.get(kind, ())) or "no file"
            return problem(
                check,
                f"{name}: gres.conf has {said} for {SPARE} of type {kind}, and {file} for that GPU",
                f"gres.conf: NodeName={name} Name={SPARE} Type={kind} File={file} Flags=explicit;"
                f" {_RESTART}.",
            )
    return ok(check, f"each type of {SPARE} is on the device file of one GPU (gres.conf on this host)")


def _explicit(nodes: Sequence[Node], lines: Sequence[GresLine]) -> Finding:
    check = "sharing.explicit"
    names = [node.name for node in nodes]
    found = [line for line in lines if any(line.is_of(name, SPARE) for name in names)]
    lacking = sorted({line.type for line in found if "explicit" not in line.flags})
    if found and not lacking:
        return ok(check, f"Flags=explicit: --exclusive jobs do not take {SPARE}")
    return problem(
        check,
        f"gres.conf has no Flags=explicit for {SPARE} of type {_some(lacking) or '(none)'}: every --exclusive"
        " job takes it",
        f"gres.conf: Name={SPARE} Type={lacking[0] if lacking else 's0'} ... Flags=explicit; {_RESTART}.",
    )


def _for_satellites(known: Sequence[QosSetup], allowed: str) -> Finding:
    """Whether there is a QOS that lets satellites have one."""
    check = "sharing.satellite_qos"
    found = next((each for each in known if each.name == allowed), None)
    if found is not None and found.most_of(SPARE) != 0:
        return ok(check, f"satellites have the QOS {allowed}")
    return problem(
        check,
        f"no QOS lets satellites have gres/{SPARE}"
        if not allowed
        else f"the QOS {allowed}, which satellites have, is not there or does not let them have gres/{SPARE}",
        f"`sacctmgr add qos shared MaxTRESPerJob=gres/{SPARE}=N`, where N is the number of GPUs of a node,"
        " and slurm.conf: PartitionName=shared ..."
        f" QOS=shared; {_RECONFIGURE}.",
    )


def _hold(answers: LuaAnswers) -> Finding:
    check = "sharing.hold"
    fix = (
        "job_submit.lua beside slurm.conf: slurm_job_modify returns"
        " elastic.job_modify(job_desc, job_rec, part_list, modify_uid)."
    )
    if answers.job_submit is None:
        return not_checked(
            check, "job_submit.lua cannot be read here: whether users can release satellites is unknown", fix
        )
    if _CALLS_MODIFY.search(answers.job_submit):
        return ok(check, "satellites are held, and their owners cannot release them")
    return problem(
        check, "job_submit.lua does not call elastic.job_modify: owners can release satellites", fix
    )


def _index(kind: str) -> int:
    index = number_of(Devices(SPARE, kind))
    return 1 << 20 if index is None else index


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
