"""Checks the configuration files of a YARN cluster, also before the ResourceManager is started with them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flexo.doctor.finding import Finding, not_checked, ok, problem, warning
from flexo_yarn import loan_settings
from flexo_yarn.configuration import BadConfiguration, read_client, read_file, uses_kerberos
from flexo_yarn.kerberos import INSTALL
from flexo_yarn.site_settings import (
    CAPACITY_SCHEDULER,
    FLEX_QUEUE,
    RESOURCE_TYPES,
    YARN_SITE,
    Setting,
)

_SCHEDULER: Final = "yarn.resourcemanager.scheduler.class"
_QUEUES: Final = "yarn.scheduler.capacity.root.queues"
_FILES: Final = ("yarn-site.xml", "resource-types.xml", "capacity-scheduler.xml")


def examine_yarn(folder: Path) -> list[Finding]:
    """Check yarn-site.xml, resource-types.xml and capacity-scheduler.xml in `folder`.

    Nothing is asked of the cluster: values are those of the files, else YARN's defaults.
    """
    site_file, types_file, queues_file = (folder / name for name in _FILES)
    try:
        site = read_file(site_file)
        # YARN reads the types of resources from a file of their own, or from yarn-site.xml.
        types = {**site, **read_file(types_file)} if types_file.exists() else site
        findings = [*(_checked(each, site) for each in YARN_SITE), _gpus_counted(types), *_kerberos(folder)]
        scheduler = site.get(_SCHEDULER, "CapacityScheduler").rpartition(".")[2]
        if scheduler != "CapacityScheduler":
            return [*findings, not_checked(queues_file.name, f"the cluster uses {scheduler}")]
    except BadConfiguration as error:
        return [_unreadable(error)]
    try:
        queues = read_file(queues_file)
    except BadConfiguration as error:
        return [*findings, _unreadable(error)]
    return [
        *findings,
        _flex_queue(queues),
        *(_checked(each, queues) for each in CAPACITY_SCHEDULER),
        *_loans(site, queues),
    ]


def _loans(site: Mapping[str, str], queues: Mapping[str, str]) -> list[Finding]:
    """What loans need, for each label whose nodes satellites may use."""
    labels = [each.strip() for each in queues.get(loan_settings.FLEX_LABELS, "").split(",") if each.strip()]
    if not labels:
        return []
    found = [_checked(each, site) for each in loan_settings.LABELS]
    for label in labels:
        found += [_checked(each, queues) for each in loan_settings.of_flex_queue(label)[1:]]
    return found


def _unreadable(error: BadConfiguration) -> Finding:
    fix = "Name the folder of the ResourceManager's configuration with --conf."
    return problem(error.path.name, str(error), fix)


def _checked(setting: Setting, values: Mapping[str, str]) -> Finding:
    value = values.get(setting.name, setting.default)
    shown = value.strip() or "empty"
    if "${" in value:
        return not_checked(
            setting.name, f"{shown} stands for another setting", f"Look whether {_wanted(setting)}."
        )
    try:
        suits = setting.suits(value)
    except ValueError:
        return problem(setting.name, f"'{shown}' is no number", f"Set it to {setting.value}.")
    if suits:
        return ok(setting.name, shown)
    by_default = "" if setting.name in values else ", YARN's default"
    what = f"{shown}{by_default}, and {_wanted(setting)}. {setting.why}"
    return (problem if setting.vital else warning)(setting.name, what, f"Set it to '{setting.value}'.")


def _wanted(setting: Setting) -> str:
    return f"{setting.rule.value} '{setting.bound}'"


def _gpus_counted(types: Mapping[str, str]) -> Finding:
    (setting,) = RESOURCE_TYPES
    named = [each.strip() for each in types.get(setting.name, "").split(",") if each.strip()]
    if setting.value in named:
        return ok(setting.name, ", ".join(named))
    what = f"{', '.join(named) or 'empty'}, and {setting.value} is not among them. {setting.why}"
    return problem(setting.name, what, f"Add {setting.value}, in resource-types.xml.")


def _kerberos(folder: Path) -> list[Finding]:
    """Whether this host can call a cluster with Kerberos; nothing for others. Raises BadConfiguration."""
    core = folder / "core-site.xml"
    if not core.exists() or not uses_kerberos(read_file(core)):
        return []
    principal = read_client(folder).principal
    if importlib.util.find_spec("gssapi") is None:
        what = "the cluster uses Kerberos, and this host has no Python package gssapi"
        return [problem("kerberos", what, f"Where flexod runs, and where people submit: {INSTALL}.")]
    return [ok("kerberos", f"the ResourceManager is {principal}")]


def _flex_queue(queues: Mapping[str, str]) -> Finding:
    named = [each.strip() for each in queues.get(_QUEUES, "").split(",") if each.strip()]
    if FLEX_QUEUE not in named:
        what = f"there is no queue {FLEX_QUEUE} below root, only {', '.join(named) or 'none'}"
        return problem("queue.flex", what, "See yarn_plugin/capacity-scheduler.xml.example.")
    if queues.get(f"yarn.scheduler.capacity.root.{FLEX_QUEUE}.disable_preemption", "").lower() == "true":
        what = (
            f"the queue {FLEX_QUEUE} has disable_preemption: others would wait for what jobs have grown into"
        )
        return problem("queue.flex", what, "Remove that setting.")
    return ok("queue.flex", f"there is a queue {FLEX_QUEUE}, and YARN may preempt its containers")
