"""The configuration files of a lab's Slurm. docs/lab.md says what each line is for."""

from __future__ import annotations

import shlex
import shutil
import socket
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from flexo_lab.layout import Layout
from flexo_lab.record import Record
from flexo_lab.requirements import installed_release
from flexo_lab.spec import LabSpec, Profile

MEMORY_PER_CPU_MIB = 4000
"""Memory that a node claims for each CPU, and that a job without a request for memory gets. Not enforced."""
SPANK_PLUGIN = "spank_elastic.so"
LUA_MODULE = "job_submit_elastic.lua"
PROLOG = "prolog_sharing.example"
SATELLITE_PARTITION = "flex"
INFERENCE_PARTITION = "infer"
BORROWED_PARTITION = "borrowed"
BORROWED_SATELLITES = "borrowed-flex"
"""The partition of satellites on lent servers. By its lower tier, Slurm preempts satellites before bases."""

SHARED_PARTITION = "shared"
"""The partition of satellites on GPUs that other jobs hold."""
SPARE_GRES = "spare"
"""The GRES that opens a GPU beside the job that holds it."""

SATELLITE_QOS = "flex"
"""The QOS of satellites, if satellites are preempted by QOS."""

ON_ONE_MACHINE = f"""
    MailProg=/bin/true
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    JobAcctGatherType=jobacct_gather/none
    MpiDefault=none
    SlurmdParameters=config_overrides
    PropagateResourceLimits=NONE
    SelectType=select/cons_tres
    SelectTypeParameters=CR_Core_Memory
    DefMemPerCPU={MEMORY_PER_CPU_MIB}
    GresTypes=gpu
"""
"""Lines of slurm.conf that let one machine run many nodes, which together claim more than it has."""
_QUICK = """
    SchedulerParameters=sched_interval=2,bf_interval=3
    KillWait=10
"""
_ACCOUNTING = """
    AccountingStorageType=accounting_storage/slurmdbd
    AccountingStorageHost=127.0.0.1
    AccountingStoragePort={dbd}
    AccountingStoragePass={munge_socket}
    AccountingStorageEnforce=associations,limits,qos
    AccountingStorageTRES={tres}
    PriorityType=priority/multifactor
    PriorityCalcPeriod=1
    PriorityWeightAge=1000
    PriorityWeightFairshare=1000
    PriorityWeightQOS=10000
"""


def plugin_sources() -> Path:
    """The folder slurm_plugin/ of this checkout."""
    return Path(__file__).resolve().parents[2] / "slurm_plugin"


def cluster_name(spec: LabSpec) -> str:
    """Slurm's name of the cluster; also a part of names of tables in the database."""
    return "flexo_" + spec.name.replace("-", "_")


def write_slurm_files(layout: Layout, record: Record) -> tuple[str, ...]:
    """Write all files. Returns the parts of slurm_plugin that are not built: the lab runs without them."""
    sources = plugin_sources()
    parts = (SPANK_PLUGIN, LUA_MODULE)
    missing = tuple(part for part in parts if not (sources / part).exists())
    layout.plugin.mkdir()
    for part in parts:
        if part not in missing:
            shutil.copy(sources / part, layout.plugin / part)
    lua = LUA_MODULE not in missing
    layout.slurm_conf.write_text(slurm_conf(layout, record, lua=lua))
    if installed_release().cgroups_can_be_disabled:
        layout.cgroup_conf.write_text("CgroupPlugin=disabled\n")
    layout.gres_conf.write_text(gres_conf(layout, record.spec))
    layout.plugstack_conf.write_text(plugstack_conf(layout, spank=SPANK_PLUGIN not in missing))
    if lua:
        layout.job_submit.write_text(job_submit_lua(layout, record.spec))
    if record.spec.sharing:
        shutil.copy(sources / PROLOG, layout.plugin / PROLOG)
        layout.prolog.write_text(prolog(layout))
        layout.prolog.chmod(0o755)
    return missing


def slurm_conf(layout: Layout, record: Record, *, lua: bool) -> str:
    """Text of slurm.conf."""
    spec, ports, host = record.spec, record.ports, socket.gethostname().split(".")[0]
    authentication = "\n        ".join(_authentication(layout, spec))
    general = f"""
        ClusterName={cluster_name(spec)}
        SlurmctldHost={host}(127.0.0.1)
        SlurmctldPort={ports.slurmctld}
        SlurmUser=slurm
        SlurmdUser=root
        {authentication}

        StateSaveLocation={layout.state}
        SlurmdSpoolDir={layout.spool}/%n
        SlurmctldPidFile={layout.state}/slurmctld.pid
        SlurmdPidFile={layout.spool}/%n.pid
        SlurmctldLogFile={layout.logs}/slurmctld.log
        SlurmctldDebug=debug
        SlurmdLogFile={layout.logs}/slurmd-%n.log
        SlurmdDebug=verbose
        JobCompType=jobcomp/filetxt
        JobCompLoc={layout.logs}/jobs.txt
        PlugStackConfig={layout.plugstack_conf}
        PreemptType=preempt/{"qos" if spec.by_qos else "partition_prio"}
        PreemptMode=REQUEUE
        JobRequeue=1
        ReturnToService=2
        MaxJobCount=20000
        MinJobAge=3600
        MessageTimeout=30
        BatchStartTimeout=60
    """
    sections = [general, ON_ONE_MACHINE]
    if spec.sharing:
        sections[1] = sections[1].replace("GresTypes=gpu", f"GresTypes=gpu,{SPARE_GRES}")
        sections.append(f"\nProlog={layout.prolog}")
    if lua:
        sections.append("\nJobSubmitPlugins=lua")
    if spec.profile is not Profile.PRODUCTION:
        sections.append(_QUICK)
    if spec.profile is Profile.ACCOUNTING:
        tres = f"gres/gpu,gres/{SPARE_GRES}" if spec.sharing else "gres/gpu"
        sections.append(_ACCOUNTING.format(dbd=ports.dbd, munge_socket=layout.munge_socket, tres=tres))
    sections += [_nodes(spec, ports.slurmds, host), _partitions(spec)]
    return "".join(textwrap.dedent(section) for section in sections)


def _authentication(layout: Layout, spec: LabSpec) -> tuple[str, ...]:
    """The lines that say who proves that callers are who they say."""
    info = () if spec.auth_slurm else (f"socket={layout.munge_socket}",)
    if spec.loans and spec.profile is not Profile.PRODUCTION:
        # a requeued job waits for the lifetime of a credential, two minutes by default
        info = (*info, "cred_expire=30")
    kind = "slurm" if spec.auth_slurm else "munge"
    lines = (f"AuthType=auth/{kind}", f"CredType=cred/{kind}")
    return (*lines, f"AuthInfo={','.join(info)}") if info else lines


def gres_conf(layout: Layout, spec: LabSpec) -> str:
    """Text of gres.conf: a device file for each GPU and, with sharing, a second GRES on the same file."""
    lines = [
        f"NodeName={node} Name=gpu {f'Type={kind} ' if kind else ''}"
        f"File={layout.devices}/{node}/nvidia{f'[0-{gpus - 1}]' if gpus > 1 else '0'}\n"
        for node, gpus, kind in gpus_of_nodes(spec)
    ]
    lines += [
        f"NodeName={node} Name={SPARE_GRES} Type=s{index} File={layout.devices}/{node}/nvidia{index}"
        " Flags=explicit\n"
        for node, gpus, _ in gpus_of_nodes(spec)
        for index in range(gpus if spec.sharing and node in spec.train_names else 0)
    ]
    return "".join(lines)


def plugstack_conf(layout: Layout, *, spank: bool) -> str:
    """Text of plugstack.conf: one line, or only a comment while the plugin is not built."""
    if not spank:
        return f"# {SPANK_PLUGIN} was not built when this lab came up\n"
    return f"required {layout.plugin / SPANK_PLUGIN}\n"


def job_submit_lua(layout: Layout, spec: LabSpec) -> str:
    """Text of job_submit.lua for a site that has no other (slurm_plugin/job_submit.lua.example)."""
    borrowed = f'elastic.config.borrowed_partition = "{BORROWED_PARTITION}"' if spec.loans else ""
    shared = f'elastic.config.shared_partition = "{SHARED_PARTITION}"' if spec.sharing else ""
    return textwrap.dedent(
        f"""\
        local elastic = dofile("{layout.plugin / LUA_MODULE}")
        {borrowed}
        {shared}

        function slurm_job_submit(job_desc, part_list, submit_uid)
          return elastic.job_submit(job_desc, part_list, submit_uid)
        end

        function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
          return elastic.job_modify(job_desc, job_rec, part_list, modify_uid)
        end
        """
    )


def prolog(layout: Layout) -> str:
    """Text of the Prolog: it tells slurm_plugin/prolog_sharing.example where things are in a lab."""
    flexo = Path(sys.executable).parent / "flexo"
    return textwrap.dedent(
        f"""\
        #!/bin/sh
        export FLEXO={shlex.quote(str(flexo))}
        export FLEXO_SHARING_FOLDER={shlex.quote(str(layout.sharing))}/"$SLURMD_NODENAME"
        exec {shlex.quote(str(layout.plugin / PROLOG))}
        """
    )


def gpus_of_nodes(spec: LabSpec) -> Iterable[tuple[str, int, str]]:
    """Tuples (node, number of its GPUs, their type or ""), in the order of the nodes."""
    yield from ((node, spec.gpus_per_node, spec.gpu_type) for node in spec.train_names)
    yield from ((node, spec.gpus_per_infer_node, spec.type_of_infer_gpus) for node in spec.infer_names)


def _nodes(spec: LabSpec, ports: tuple[int, ...], host: str) -> str:
    memory = spec.cpus_per_node * MEMORY_PER_CPU_MIB
    return "\n" + "".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={spec.cpus_per_node} RealMemory={memory} Gres=gpu:{f'{kind}:' if kind else ''}{gpus}"
        f"{_spare(gpus) if spec.sharing and node in spec.train_names else ''}\n"
        for (node, gpus, kind), port in zip(gpus_of_nodes(spec), ports, strict=True)
    )


def _spare(gpus: int) -> str:
    return "".join(f",{SPARE_GRES}:s{index}:1" for index in range(gpus))


def _partitions(spec: LabSpec) -> str:
    train, infer = ",".join(spec.train_names), ",".join(spec.infer_names) or '""'
    taken = "PreemptMode=CANCEL GraceTime=20" + (f" AllowQos={SATELLITE_QOS}" if spec.by_qos else "")
    lines = f"""
        PartitionName=train Nodes={train} Default=YES PriorityTier=10 PreemptMode=OFF
        PartitionName={SATELLITE_PARTITION} Nodes={train} PriorityTier=1 {taken}
        PartitionName={INFERENCE_PARTITION} Nodes={infer} PriorityTier=20 PreemptMode=OFF
    """
    if spec.sharing:
        lines = f"""{lines.rstrip()}
        PartitionName={SHARED_PARTITION} Nodes={train} PriorityTier=1 {taken}
    """
    if not spec.loans:
        return f"""{lines.rstrip()}
        PartitionName={BORROWED_PARTITION} Nodes="" PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
    """
    return f"""{lines.rstrip()}
        PartitionName={BORROWED_PARTITION} Nodes="" PriorityTier=2 PreemptMode=REQUEUE GraceTime=20
        PartitionName={BORROWED_SATELLITES} Nodes="" PriorityTier=1 PreemptMode=CANCEL GraceTime=20
    """
