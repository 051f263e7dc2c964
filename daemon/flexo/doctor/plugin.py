"""Checks the plugin's two parts: sbatch --elastic (SPANK), and the check on the controller's side (Lua)."""

from __future__ import annotations

from typing import Final

from flexo.doctor.finding import Finding, not_checked, ok, problem
from flexo.doctor.slurm_says import SlurmConfig
from flexo.doctor.submission import TriedOut

REQUEST: Final = ("-n", "1", "--comment=elastic=2-3")
"""A job that only the check on the controller's side refuses: one task, with a range from 2."""


def check_plugin(
    config: SlurmConfig, sbatch_help: str | None, plain: TriedOut, contradictory: TriedOut
) -> list[Finding]:
    """Check SPANK by what sbatch offers (None: no sbatch here), and Lua by slurmctld's answer to REQUEST.

    `plain`: slurmctld's answer to the same job without the comment.
    """
    return [_spank(sbatch_help), check_lua_is_called(config) or _lua(plain, contradictory)]


def check_lua_is_called(config: SlurmConfig) -> Finding | None:
    """A problem if slurmctld does not even call job_submit.lua; else None."""
    if "lua" in config.job_submit_plugins:
        return None
    return problem(
        "plugin.lua",
        f"JobSubmitPlugins={','.join(config.job_submit_plugins) or '(nothing)'}: nobody records that a"
        " job is elastic, so none is",
        "slurm.conf: JobSubmitPlugins=lua, and beside it job_submit_elastic.lua and your job_submit.lua"
        " (job_submit.lua.example); restart slurmctld.",
    )


def _spank(sbatch_help: str | None) -> Finding:
    check = "plugin.spank"
    if sbatch_help is None:
        return not_checked(check, "there is no sbatch on this host", "Run flexo doctor on a login node, too.")
    if "--elastic=" in sbatch_help:
        return ok(check, "sbatch on this host has --elastic; other login and compute nodes are not looked at")
    return problem(
        check,
        "sbatch on this host has no --elastic: the SPANK plugin is not loaded",
        "Install flexo-slurm-plugin, or `make -C slurm_plugin install` and in plugstack.conf: optional"
        " /usr/lib/x86_64-linux-gnu/slurm-wlm/spank_elastic.so; on login and compute nodes.",
    )


def _lua(plain: TriedOut, contradictory: TriedOut) -> Finding:
    check = "plugin.lua"
    if plain.refused:
        return not_checked(check, f"Slurm takes no plain job from you either: {plain.refused}")
    if contradictory.refused:
        return ok(check, "slurmctld checks what elastic jobs ask for")
    return problem(
        check,
        "slurmctld takes an elastic job that contradicts itself: job_submit.lua does not call"
        " job_submit_elastic.lua",
        'job_submit.lua beside slurm.conf: local elastic = dofile("/etc/slurm/job_submit_elastic.lua"), and'
        " slurm_job_submit returns elastic.job_submit(job_desc, part_list, submit_uid).",
    )
