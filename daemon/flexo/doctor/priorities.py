"""Checks what flexod needs if it sets the order of pending jobs, or weighs users by fairshare."""

from __future__ import annotations

from flexo.config import ControllerSettings
from flexo.doctor.finding import Finding, ok, problem
from flexo.doctor.slurm_says import SlurmConfig


def check_priorities(config: SlurmConfig, controller: ControllerSettings) -> list[Finding]:
    """Check the order of pending jobs, and the users' shares."""
    return [_order(config, controller), _fairshare(config, controller)]


def _order(config: SlurmConfig, controller: ControllerSettings) -> Finding:
    check = "priorities.order"
    if controller.order == "cluster":
        how = f" ({config.priority_type})" if config.priority_type else ""
        return ok(check, f"Slurm orders pending jobs{how}")
    return ok(
        check, f"the policy {controller.policy} orders pending jobs; see rights.operator for the right to"
    )


def _fairshare(config: SlurmConfig, controller: ControllerSettings) -> Finding:
    check = "priorities.fairshare"
    if not controller.fairshare_weight:
        return ok(check, "users are not weighed by fairshare ([controller] fairshare_weight = 0)")
    if config.priority_type == "priority/multifactor" and "slurmdbd" in config.accounting_type:
        return ok(check, "fairshare factors are kept (priority/multifactor, slurmdbd)")
    return problem(
        check,
        f"[controller] fairshare_weight = {controller.fairshare_weight:g}, and nobody keeps fairshare"
        f" factors: PriorityType={config.priority_type},"
        f" AccountingStorageType={config.accounting_type or 'none'}",
        "slurm.conf: PriorityType=priority/multifactor and AccountingStorageType=accounting_storage/slurmdbd;"
        " or fairshare_weight = 0 in flexo.toml.",
    )
