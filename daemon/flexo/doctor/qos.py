"""Checks the QOS of satellites: it has to exist and, if jobs are preempted by QOS, give way to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flexo.clusters.slurm.text import time_limit_s
from flexo.doctor.finding import Finding, not_checked, ok, problem, warning
from flexo.doctor.preemption import BY_QOS
from flexo.doctor.slurm_says import SlurmConfig

ASKED: Final = (
    *("sacctmgr", "--noheader", "--parsable2", "show", "qos"),
    "format=name,preempt,preemptmode,gracetime,maxtresperjob",
)


@dataclass(frozen=True, slots=True)
class QosSetup:
    """One QOS, as far as it concerns preemption and the sharing of GPUs."""

    name: str
    preempts: frozenset[str]
    mode: str
    """The preemption mode; `cluster`: the one of the whole cluster."""
    grace_s: int
    most_per_job: tuple[str, ...] = ()
    """The limits of MaxTRESPerJob, as in `gres/spare=0`."""

    def most_of(self, gres: str) -> int | None:
        """The most devices of a GRES that one job may have; None: no limit."""
        found = (word.partition("=") for word in self.most_per_job)
        return next(
            (int(most) for name, _, most in found if name == f"gres/{gres}" and most.isdecimal()), None
        )


def parse_qos(text: str) -> tuple[QosSetup, ...]:
    """Parse the output of ASKED. Raises BadValue."""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") >= 3)
    return tuple(
        QosSetup(
            name,
            frozenset(filter(None, preempts.split(","))),
            mode.lower(),
            time_limit_s(grace) or 0,
            tuple(word for limits in rest[:1] for word in limits.split(",") if word),
        )
        for name, preempts, mode, grace, *rest in rows
    )


def check_qos(config: SlurmConfig, wanted: str, known: Sequence[QosSetup] | str) -> list[Finding]:
    """Check the QOS of satellites. `wanted`: [slurm] satellite_qos. `known`: all QOS of slurmdbd, or why
    slurmdbd could not be asked."""
    by_qos = config.preempt_type == BY_QOS
    if not wanted:
        return [_needed() if by_qos else ok("qos.exists", "satellites have the QOS of their bases")]
    if isinstance(known, str):
        fix = f"`{' '.join(ASKED[:1] + ASKED[3:])}`"
        return [not_checked("qos.exists", f"slurmdbd was not asked: {known}", fix)]
    found = next((each for each in known if each.name == wanted), None)
    if found is None:
        return [_missing(wanted, known)]
    there = ok("qos.exists", f"the QOS {wanted} of satellites is there")
    return [there, _preempted(found, known), _mode(config, found), _grace(found)] if by_qos else [there]


def _needed() -> Finding:
    return problem(
        "qos.exists",
        f"PreemptType={BY_QOS}, and satellites have the same QOS as their users' other jobs: nobody gets GPUs"
        " from them",
        "`sacctmgr add qos flex PreemptMode=cancel GraceTime=60`, `sacctmgr modify qos normal set"
        " Preempt=flex`,"
        ' and satellite_qos = "flex" in [slurm] of flexo.toml.',
    )


def _missing(wanted: str, known: Sequence[QosSetup]) -> Finding:
    there = ", ".join(sorted(each.name for each in known)) or "none"
    return problem(
        "qos.exists",
        f"there is no QOS {wanted} ([slurm] satellite_qos in flexo.toml); there are: {there}",
        f"`sacctmgr add qos {wanted} PreemptMode=cancel GraceTime=60`, and `sacctmgr modify account ... set"
        f" QOS+={wanted}` for all who are to have satellites.",
    )


def _preempted(satellites: QosSetup, known: Sequence[QosSetup]) -> Finding:
    check, others = "qos.preempted", [each for each in known if each.name != satellites.name]
    lacking = sorted(each.name for each in others if satellites.name not in each.preempts)
    if not lacking:
        return ok(check, f"jobs of every other QOS may preempt {satellites.name}")
    fix = f"`sacctmgr modify qos {','.join(lacking)} set Preempt+={satellites.name}`"
    said = f"jobs of {', '.join(lacking)} do not get GPUs of satellites (QOS {satellites.name})"
    return problem(check, said, fix) if len(lacking) == len(others) else warning(check, said, fix)


def _mode(config: SlurmConfig, satellites: QosSetup) -> Finding:
    check = "qos.preempt_mode"
    said = ",".join(config.preempt_mode).lower() if satellites.mode == "cluster" else satellites.mode
    if "cancel" in said:
        return ok(check, f"{satellites.name}: PreemptMode=cancel, a satellite that is taken back is gone")
    what = f"{satellites.name}: PreemptMode={said}"
    fix = f"`sacctmgr modify qos {satellites.name} set PreemptMode=cancel`"
    if "requeue" in said:
        return warning(check, f"{what}; satellites cannot be requeued, so Slurm cancels them", fix)
    return problem(check, f"{what}: satellites do not free their GPUs", fix)


def _grace(satellites: QosSetup) -> Finding:
    check = "qos.grace"
    if satellites.grace_s:
        return ok(check, f"{satellites.name}: GraceTime={satellites.grace_s} s to reach the next commit")
    return warning(
        check,
        f"{satellites.name}: GraceTime=0: workers are killed within a mini-batch, which the others repeat",
        f"`sacctmgr modify qos {satellites.name} set GraceTime=60`",
    )
