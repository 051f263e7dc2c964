"""Checks Slurm itself: its release, how it tells users apart, and whether it hands out GPUs one by one."""

from __future__ import annotations

from typing import Final

from flexo.clusters.slurm.releases import TESTED, Release
from flexo.doctor.finding import Finding, ok, problem, warning
from flexo.doctor.slurm_says import SlurmConfig
from flexo_protos.credentials import MUNGE

_SACK: Final = "auth/slurm"
"""The plugin with a kiosk of its own, which makes and verifies credentials."""


def check_slurm(config: SlurmConfig, authentication: str = MUNGE) -> list[Finding]:
    """Check the release, AuthType, SelectType and GresTypes. `authentication`: [service] authentication."""
    return [_release(config.version), *check_settings(config, authentication)]


def check_settings(config: SlurmConfig, authentication: str = MUNGE) -> list[Finding]:
    """Check AuthType, SelectType and GresTypes, which slurm.conf sets."""
    return [_authentication(config.auth_type, authentication), _selection(config), _gpus(config)]


def _release(version: str) -> Finding:
    check, tested = "slurm.version", ", ".join(map(str, TESTED))
    release, oldest, newest = Release.found_in(version), TESTED[0], TESTED[-1]
    said = f"Slurm {version or 'of an unknown release'}"
    if release is None or release < oldest:
        return problem(check, f"{said}; flexo is tested with {tested}", f"Update Slurm to {oldest} or later.")
    if release > newest:
        return warning(
            check,
            f"{said} is newer than what flexo is tested with ({tested})",
            "Watch `flexo status` in the first days, and begin with `flexod --dry-run`.",
        )
    between = "" if release in TESTED else f", between releases that flexo is tested with ({tested})"
    return ok(check, said + between)


def _authentication(auth_type: str, authentication: str) -> Finding:
    check, needed = "slurm.auth", f"auth/{authentication}"
    if auth_type == needed:
        return ok(check, f"AuthType={auth_type}, as flexo's own calls")
    if needed == _SACK:
        return problem(
            check,
            f"AuthType={auth_type}, and [service] authentication is slurm: without {_SACK} there is no sack",
            'flexo.toml: authentication = "munge" in [service], on all hosts.',
        )
    said = f"AuthType={auth_type}; flexo's own calls carry MUNGE credentials whatever Slurm uses"
    fix = "Run munged with one key on all hosts of the cluster, or set AuthType=auth/munge in slurm.conf."
    if auth_type == _SACK:
        fix = 'flexo.toml: authentication = "slurm" in [service], on all hosts; or run munged on all.'
    return warning(check, said, fix)


def _selection(config: SlurmConfig) -> Finding:
    check = "slurm.select"
    if config.select_type == "select/cons_tres":
        return ok(check, "SelectType=select/cons_tres: a node's GPUs are handed out one by one")
    said = f"SelectType={config.select_type}" if config.select_type else "SelectType is not set"
    return problem(
        check,
        f"{said}: a node's GPUs cannot be shared by jobs as satellites need it",
        "slurm.conf: SelectType=select/cons_tres and SelectTypeParameters=CR_Core_Memory; restart slurmctld.",
    )


def _gpus(config: SlurmConfig) -> Finding:
    check = "slurm.gres"
    if "gpu" in config.gres_types:
        return ok(check, "GresTypes has gpu")
    return problem(
        check,
        f"GresTypes={','.join(config.gres_types) or '(nothing)'}: Slurm knows no GPUs",
        "slurm.conf: GresTypes=gpu, and Gres=gpu:N for each node; restart slurmctld.",
    )
