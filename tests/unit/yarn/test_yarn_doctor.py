"""`flexo yarn doctor`: what it says of a site's files, by the names of settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flexo.doctor.finding import Level
from flexo.doctor.yarn import examine_yarn
from flexo_cli.app import application
from flexo_lab.yarn.files import write_files
from flexo_lab.yarn.layout import YarnLayout
from flexo_lab.yarn.spec import YarnLabSpec
from flexo_yarn import loan_settings
from flexo_yarn.configuration import read_file
from flexo_yarn.site_settings import CAPACITY_SCHEDULER, RESOURCE_TYPES, YARN_SITE, as_xml

QUEUES = {"yarn.scheduler.capacity.root.queues": "default,flex"}


def site(folder: Path, end: str = "", value: str | None = None) -> Path:
    """A site's files as flexo wants them, but for the setting whose name ends so; None: it is left out."""
    for name, settings in (
        ("yarn-site.xml", {each.name: each.value for each in YARN_SITE}),
        ("resource-types.xml", {each.name: each.value for each in RESOURCE_TYPES}),
        ("capacity-scheduler.xml", {**QUEUES, **{each.name: each.value for each in CAPACITY_SCHEDULER}}),
    ):
        for found in [key for key in settings if end and key.endswith(end)]:
            settings.pop(found)
            if value is not None:
                settings[found] = value
        (folder / name).write_text(as_xml(settings.items()))
    return folder


def secure(folder: Path, principal: str) -> Path:
    """The same with Kerberos."""
    core = {"hadoop.security.authentication": "kerberos"}
    (folder / "core-site.xml").write_text(as_xml(core.items()))
    path = site(folder) / "yarn-site.xml"
    values = {
        **{each.name: each.value for each in YARN_SITE},
        "yarn.resourcemanager.hostname": "rm1",
        "yarn.resourcemanager.principal": principal,
    }
    path.write_text(as_xml(values.items()))
    return folder


@pytest.mark.parametrize(("installed", "level"), [(True, Level.OK), (False, Level.PROBLEM)])
def test_a_host_of_a_cluster_with_kerberos_needs_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, level: Level
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    found = {each.check: each for each in examine_yarn(secure(tmp_path, "rm/_HOST@EXAMPLE.COM"))}
    assert found["kerberos"].level is level
    assert installed or "flexo[kerberos]" in found["kerberos"].fix


def test_a_principal_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (found,) = examine_yarn(secure(tmp_path, "rm"))
    assert "yarn.resourcemanager.principal" in found.what


def levels(folder: Path) -> dict[str, Level]:
    return {each.check: each.level for each in examine_yarn(folder) if each.level is not Level.OK}


def test_the_settings_of_the_plugin_and_those_of_a_lab_are_in_order(tmp_path: Path) -> None:
    assert levels(site(tmp_path)) == {}
    layout = YarnLayout(tmp_path / "lab", 10000)
    write_files(layout, YarnLabSpec())
    assert levels(layout.conf("rm")) == {}


@pytest.mark.parametrize(
    ("end", "value", "level"),
    [
        ("scheduler.monitor.enable", None, Level.PROBLEM),
        ("scheduler.monitor.enable", "false", Level.PROBLEM),
        ("scheduler.monitor.enable", "True", Level.OK),
        ("resource-calculator", None, Level.PROBLEM),
        (".flex.capacity", "0.5", Level.PROBLEM),
        (".flex.capacity", "40", Level.OK),
        (".flex.capacity", "[memory=10%]", Level.PROBLEM),
        ("flex.user-limit-factor", "1", Level.WARNING),
        ("sleep-delay-before-sigkill.ms", None, Level.WARNING),
        ("sleep-delay-before-sigkill.ms", "30000", Level.OK),
        ("max-application-priority", None, Level.WARNING),
        ("max-application-priority", "${site.priority}", Level.NOT_CHECKED),
        ("root.queues", "default", Level.PROBLEM),
        ("yarn.resource-types", "yarn.io/fpga", Level.PROBLEM),
        ("yarn.resource-types", "yarn.io/fpga, yarn.io/gpu", Level.OK),
    ],
)
def test_a_setting_that_is_not_as_flexo_needs_it_is_named(
    end: str, value: str | None, level: Level, tmp_path: Path
) -> None:
    found = levels(site(tmp_path, end, value))
    assert set(found.values()) == ({level} if level is not Level.OK else set())


def test_gpus_may_be_named_in_yarn_site_instead(tmp_path: Path) -> None:
    folder = site(tmp_path)
    (folder / "resource-types.xml").unlink()
    assert set(levels(folder)) == {"yarn.resource-types"}
    text = (folder / "yarn-site.xml").read_text()
    gpu = "<property><name>yarn.resource-types</name><value>yarn.io/gpu</value></property></configuration>"
    (folder / "yarn-site.xml").write_text(text.replace("</configuration>", gpu))
    assert levels(folder) == {}


def test_a_queue_that_is_not_preempted_is_a_problem(tmp_path: Path) -> None:
    folder = site(tmp_path)
    text = (folder / "capacity-scheduler.xml").read_text()
    name = "yarn.scheduler.capacity.root.flex.disable_preemption"
    added = f"<property><name>{name}</name><value>true</value></property></configuration>"
    (folder / "capacity-scheduler.xml").write_text(text.replace("</configuration>", added))
    assert levels(folder) == {"queue.flex": Level.PROBLEM}


def lending(folder: Path, **queues: str) -> Path:
    """A site that lends servers with the label "serving", as flexo needs it, but for `queues`."""
    more = {each.name: each.value for each in loan_settings.of_flex_queue("serving")}
    site(folder)
    for name, values in (
        ("yarn-site.xml", {each.name: each.value for each in loan_settings.LABELS}),
        ("capacity-scheduler.xml", {**more, **queues}),
    ):
        found = {**read_file(folder / name), **values}
        (folder / name).write_text(as_xml(found.items()))
    return folder


def test_settings_for_loans_are_looked_at_where_satellites_may_go_to_nodes_with_a_label(
    tmp_path: Path,
) -> None:
    assert levels(lending(tmp_path)) == {}
    guarantee = "yarn.scheduler.capacity.root.flex.accessible-node-labels.serving.capacity"
    assert levels(lending(tmp_path, **{guarantee: "20"})) == {guarantee: Level.PROBLEM}
    text = (lending(tmp_path) / "yarn-site.xml").read_text()
    (tmp_path / "yarn-site.xml").write_text(text.replace("yarn.node-labels.enabled", "yarn.node-labels.else"))
    assert levels(tmp_path) == {"yarn.node-labels.enabled": Level.PROBLEM}


def test_fair_scheduler_is_refused_and_its_queues_are_not_looked_at(tmp_path: Path) -> None:
    found = levels(site(tmp_path, ".scheduler.class", "org.apache.hadoop.yarn.FairScheduler"))
    assert found == {
        "yarn.resourcemanager.scheduler.class": Level.PROBLEM,
        "capacity-scheduler.xml": Level.NOT_CHECKED,
    }


@pytest.mark.parametrize("content", [None, "<configuration>", "not XML"])
@pytest.mark.parametrize("name", ["yarn-site.xml", "capacity-scheduler.xml"])
def test_a_file_that_cannot_be_read_is_one_problem(content: str | None, name: str, tmp_path: Path) -> None:
    folder = site(tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    assert levels(folder) == {name: Level.PROBLEM}


def test_the_command_tells_people_and_scripts_and_fails_on_problems(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    runner = CliRunner()
    assert runner.invoke(application(), ["yarn", "doctor", "--conf", str(site(good))]).exit_code == 0
    site(bad, ".scheduler.monitor.enable", "false")
    said = runner.invoke(application(), ["yarn", "doctor", "--conf", str(bad), "-q"])
    assert said.exit_code == 1
    assert "yarn.resourcemanager.scheduler.monitor.enable" in said.output
    told = json.loads(
        runner.invoke(application(), ["yarn", "doctor", "--json"], env={"HADOOP_CONF_DIR": str(bad)}).output
    )
    assert told["counts"]["problem"] == 1
