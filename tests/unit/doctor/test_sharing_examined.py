"""What the doctor says of a set-up that shares GPUs: from real outputs, whole and with one thing changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from says import says

from flexo.clusters.slurm.parse_nodes import parse_nodes
from flexo.doctor.finding import Finding, Level
from flexo.doctor.gres_conf import GresLine, files_of, parse_gres_conf
from flexo.doctor.partitions import Satellites as WantedSatellites
from flexo.doctor.partitions import check_partitions, check_shared
from flexo.doctor.qos import QosSetup, parse_qos
from flexo.doctor.sharing import (
    LuaAnswers,
    check_prolog,
    check_sharing,
    check_spare_lua,
    check_spare_qos,
)
from flexo.doctor.slurm_says import PartitionSetup, SlurmConfig, parse_config, parse_partition_setups
from flexo.doctor.submission import TriedOut
from flexo.model.nodes import Node
from flexo.sharing.settings import SharingSettings
from flexo_protos.resources import Devices

HERE = Path(__file__).parent / "captured"
NODES = Path(__file__).parents[1] / "clusters" / "captured"
SHARING = SharingSettings(partition="shared")
SATELLITES = frozenset({"flex", "borrowed", ""})
REFUSED = TriedOut("sbatch: error: flexo: the GRES spare is for satellites that flexod has granted a GPU")
PROLOG = "/etc/slurm/prolog_sharing"
EXAMPLE = (Path(__file__).parents[3] / "slurm_plugin" / "prolog_sharing.example").read_text()
CALLS_MODIFY = """
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return elastic.job_modify(job_desc, job_rec, part_list, modify_uid)
end
"""


@dataclass(frozen=True)
class Site:
    """A lab with slurmdbd, device cgroups and two GPUs that can be shared, as it was read."""

    config: SlurmConfig
    partitions: tuple[PartitionSetup, ...]
    nodes: tuple[Node, ...]
    gres_conf: tuple[GresLine, ...]
    qos: tuple[QosSetup, ...]

    def parts(self) -> list[Finding]:
        return check_sharing(self.config, self.nodes, self.gres_conf, SHARING)

    def partition_findings(self, partitions: tuple[PartitionSetup, ...]) -> list[Finding]:
        return check_shared(self.config, partitions, SHARING, SATELLITES)

    def shared(self) -> PartitionSetup:
        return next(each for each in self.partitions if each.name == "shared")

    def without(self, name: str, **fields: object) -> tuple[PartitionSetup, ...]:
        return tuple(
            replace(each, **fields) if each.name == name else each  # type: ignore[arg-type]
            for each in self.partitions
        )

    def limits(self, *known: QosSetup, partition: str = "shared", satellites: str = "") -> list[Finding]:
        return check_spare_qos(self.config, known or self.qos, partition, satellites)


@pytest.fixture(params=["24.11", "26.05"])
def site(request: pytest.FixtureRequest) -> Site:
    folder = HERE / f"sharing-{request.param}"
    return Site(
        parse_config((folder / "config.txt").read_text()),
        parse_partition_setups((folder / "partitions.txt").read_text()),
        parse_nodes((NODES / request.param / "spare_nodes.txt").read_text()),
        parse_gres_conf((folder / "gres.conf").read_text()),
        parse_qos((folder / "qos.txt").read_text()),
    )


def levels(findings: list[Finding]) -> dict[str, Level]:
    """By check; what is not ok has to say how to fix it."""
    for finding in findings:
        assert finding.fix or finding.level in (Level.OK, Level.NOT_CHECKED), finding
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding.level for finding in findings}


def bad(findings: list[Finding]) -> Finding:
    """The one that is a problem."""
    (found,) = [finding for finding in findings if finding.level is Level.PROBLEM]
    return found


def answers(
    plain: TriedOut = TriedOut(),  # noqa: B008
    spare: TriedOut = REFUSED,
    stranger: TriedOut = REFUSED,
    job_submit: str | None = CALLS_MODIFY,
) -> LuaAnswers:
    return LuaAnswers(plain, spare, stranger, job_submit)


def test_a_site_that_is_set_up_as_documented_is_all_ok(site: Site) -> None:
    found = levels(
        [
            *site.parts(),
            *site.partition_findings(site.partitions),
            *site.limits(partition=site.shared().qos),
            *check_spare_lua(answers(), SHARING),
            check_prolog(replace(site.config, prologs=(PROLOG,)), {PROLOG: EXAMPLE}),
        ]
    )
    assert set(found.values()) == {Level.OK}
    assert len(found) == 15
    ordinary = tuple(each for each in site.partitions if each.name != "shared")
    others = check_partitions(site.config, ordinary, WantedSatellites("flex", 300))
    assert {each.check for each in others if each.level is not Level.OK} == set()


@pytest.mark.parametrize("version", ["22.05.8", "22.05.11", ""])
def test_22_05_is_told_why_it_cannot(site: Site, version: str) -> None:
    found = bad(check_sharing(replace(site.config, version=version), site.nodes, site.gres_conf, SHARING))
    assert found.check == "sharing.release"
    assert says(found.what, "device cgroup", "23.02")
    assert says(found.fix, "23.02")


def test_the_first_release_that_can_is_ok(site: Site) -> None:
    config = replace(site.config, version="23.02.0")
    assert levels(check_sharing(config, site.nodes, site.gres_conf, SHARING))["sharing.release"] is Level.OK


def test_a_gres_that_slurm_does_not_know_is_a_problem(site: Site) -> None:
    config = replace(site.config, gres_types=("gpu", "shard"))
    found = bad(check_sharing(config, site.nodes, site.gres_conf, SHARING))
    assert (found.check, "GresTypes=gpu,shard,spare" in found.fix) == ("sharing.gres_types", True)


@pytest.mark.parametrize("changed", [{"constrain_devices": False}, {"task_plugins": ("task/affinity",)}])
def test_devices_that_are_not_constrained_are_a_problem(site: Site, changed: dict[str, object]) -> None:
    config = replace(site.config, **changed)  # type: ignore[arg-type]
    found = bad(check_sharing(config, site.nodes, site.gres_conf, SHARING))
    assert found.check == "sharing.devices"
    assert "ConstrainDevices=yes" in found.fix
    assert "task/cgroup" in found.fix


@pytest.mark.parametrize(
    "devices",
    [
        (),
        (Devices("spare", "s0", 1),),
        (Devices("spare", "", 2),),
        (Devices("spare", "s0", 2), Devices("spare", "s1", 1)),
        (Devices("spare", "s1", 1), Devices("spare", "s2", 1)),
        (Devices("spare", "s0", 1), Devices("spare", "s1", 1), Devices("spare", "s2", 1)),
    ],
)
def test_types_that_are_not_one_for_each_gpu_are_a_problem(site: Site, devices: tuple[Devices, ...]) -> None:
    (node,) = site.nodes
    odd = replace(node, capacity=replace(node.capacity, devices=devices))
    findings = check_sharing(site.config, (odd,), site.gres_conf, SHARING)
    found = bad(findings)
    assert (found.check, "t1" in found.what) == ("sharing.nodes", True)
    assert "Gres=gpu:2,spare:s0:1,spare:s1:1" in found.fix
    assert levels(findings)["sharing.files"] is Level.NOT_CHECKED


def test_nodes_without_gpus_do_not_matter_and_a_partition_of_them_alone_is_a_problem(site: Site) -> None:
    (node,) = site.nodes
    plain = replace(node, name="c1", capacity=replace(node.capacity, gpus=0, devices=()))
    both = check_sharing(site.config, (node, plain), site.gres_conf, SHARING)
    assert set(levels(both).values()) == {Level.OK}
    assert bad(check_sharing(site.config, (plain,), site.gres_conf, SHARING)).check == "sharing.nodes"


def test_types_on_files_of_other_gpus_are_a_problem_with_the_right_line(site: Site) -> None:
    crossed = tuple(
        replace(line, type={"s0": "s1", "s1": "s0"}.get(line.type, line.type)) for line in site.gres_conf
    )
    found = bad(check_sharing(site.config, site.nodes, crossed, SHARING))
    assert found.check == "sharing.files"
    assert says(found.what, "t1")
    file = files_of(site.gres_conf, "t1", "gpu")[1]
    assert f"Type=s1 File={file} Flags=explicit" in found.fix


def test_a_type_without_a_line_in_gres_conf_is_a_problem(site: Site) -> None:
    lacking = tuple(line for line in site.gres_conf if line.type != "s1")
    found = bad(check_sharing(site.config, site.nodes, lacking, SHARING))
    assert (found.check, "Type=s1" in found.fix) == ("sharing.files", True)


def test_a_gres_that_exclusive_jobs_take_is_a_problem(site: Site) -> None:
    implicit = tuple(replace(line, flags=frozenset()) for line in site.gres_conf)
    found = bad(check_sharing(site.config, site.nodes, implicit, SHARING))
    assert (found.check, "Flags=explicit" in found.fix) == ("sharing.explicit", True)


def test_what_cannot_be_read_here_is_not_checked_and_says_where_to_look(site: Site) -> None:
    away = check_sharing(site.config, site.nodes, "/etc/slurm/gres.conf cannot be read", SHARING)
    (found,) = [each for each in away if each.level is not Level.OK]
    assert (found.check, found.level, "slurmd -G" in found.fix) == (
        "sharing.files",
        Level.NOT_CHECKED,
        True,
    )
    detected = tuple(line for line in site.gres_conf if line.name != "gpu")
    found = next(
        each
        for each in check_sharing(site.config, site.nodes, detected, SHARING)
        if each.level is not Level.OK
    )
    assert (found.check, found.level) == ("sharing.files", Level.NOT_CHECKED)
    assert levels(check_sharing(site.config, "slurmctld is away", (), SHARING))["sharing.nodes"] is (
        Level.NOT_CHECKED
    )


def test_a_partition_that_is_not_below_ordinary_ones_is_a_problem(site: Site) -> None:
    found = bad(site.partition_findings(site.without("shared", tier=10)))
    assert (found.check, says(found.what, "train", 10)) == ("sharing.tier", True)
    assert "PriorityTier=9" in found.fix


def test_partitions_of_satellites_may_have_the_same_tier(site: Site) -> None:
    assert site.shared().tier == next(each.tier for each in site.partitions if each.name == "flex")
    assert levels(site.partition_findings(site.partitions))["sharing.tier"] is Level.OK
    raised = bad(check_shared(site.config, site.partitions, SHARING, frozenset()))
    assert raised.check == "sharing.tier"


def test_a_partition_that_is_missing_down_or_does_not_give_way_is_named(site: Site) -> None:
    gone = tuple(each for each in site.partitions if each.name != "shared")
    assert says(bad(site.partition_findings(gone)).what, "shared", "[sharing] partition")
    assert bad(site.partition_findings(site.without("shared", up=False))).check == "sharing.partition"
    assert bad(site.partition_findings(site.without("shared", preempt_mode=("OFF",)))).check == (
        "sharing.preempt_mode"
    )
    found = levels(site.partition_findings(site.without("shared", grace_s=0)))
    assert found["sharing.grace"] is Level.WARNING


def test_every_other_qos_has_to_refuse_the_gres(site: Site) -> None:
    normal, urgent, shared = site.qos
    unlimited = replace(urgent, most_per_job=("gres/gpu=4",))
    found = bad(site.limits(normal, unlimited, shared))
    assert (found.check, says(found.what, "urgent"), "normal" in found.fix) == ("sharing.qos", True, False)
    assert "MaxTRESPerJob=gres/spare=0" in found.fix


def test_satellites_need_a_qos_that_lets_them(site: Site) -> None:
    normal, urgent, shared = site.qos
    assert bad(site.limits(normal, urgent, partition="")).check == "sharing.satellite_qos"
    assert bad(site.limits(normal, urgent)).check == "sharing.satellite_qos"
    forbidden = replace(shared, most_per_job=("gres/spare=0",))
    assert bad(site.limits(normal, urgent, forbidden)).check == "sharing.satellite_qos"
    named = site.limits(normal, urgent, shared, partition="", satellites="shared")
    assert set(levels(named).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"accounting_tres": ("cpu", "gres/gpu")}, "gres/spare"),
        ({"accounting_enforce": ("associations",)}, "limits"),
    ],
)
def test_limits_that_do_not_count_are_a_problem(site: Site, changed: dict[str, object], named: str) -> None:
    config = replace(site.config, **changed)  # type: ignore[arg-type]
    found = bad(check_spare_qos(config, site.qos, "shared", ""))
    assert (found.check, named in found.what) == ("sharing.qos", True)


def test_without_slurmdbd_lua_alone_keeps_it_which_is_a_warning(site: Site) -> None:
    (found,) = check_spare_qos(site.config, "AccountingStorageType=none", "", "")
    assert (found.level, "Lua" in found.what or "lua" in found.what) == (Level.WARNING, True)


@pytest.mark.parametrize("passed", ["spare", "stranger"])
@pytest.mark.parametrize("tried", [TriedOut(), TriedOut("QOSMaxGRESPerJob")])
def test_a_lua_that_lets_others_pass_is_a_problem_with_its_line(passed: str, tried: TriedOut) -> None:
    found = bad(check_spare_lua(replace(answers(), **{passed: tried}), SHARING))
    assert found.check == "sharing.lua"
    assert 'elastic.config.shared_partition = "shared"' in found.fix


def test_who_may_submit_nothing_does_not_know_what_lua_does() -> None:
    (found,) = check_spare_lua(answers(plain=TriedOut("Invalid account")), SHARING)
    assert (found.check, found.level) == ("sharing.lua", Level.NOT_CHECKED)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (CALLS_MODIFY, Level.OK),
        (None, Level.NOT_CHECKED),
        ("function slurm_job_modify() return slurm.SUCCESS end", Level.PROBLEM),
        ("-- elastic.job_modify(job_desc, job_rec, part_list, modify_uid)", Level.PROBLEM),
        ("  rc = flexo.job_modify (a, b, c, d) -- ours", Level.OK),
    ],
)
def test_owners_that_can_release_satellites_are_a_problem(text: str | None, level: Level) -> None:
    found = levels(check_spare_lua(answers(job_submit=text), SHARING))
    assert found["sharing.hold"] is level


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("/etc/slurm/prolog_sharing", Level.OK),
        ("exec /usr/bin/flexo share evict --gpu gpu0", Level.OK),
        ("# /etc/slurm/prolog_sharing", Level.PROBLEM),
        ("#!/bin/sh\nexit 0\n", Level.PROBLEM),
        (None, Level.NOT_CHECKED),
    ],
)
def test_a_prolog_that_leaves_second_jobs_on_a_gpu_is_a_problem(
    site: Site, text: str | None, level: Level
) -> None:
    config = replace(site.config, prologs=("/etc/slurm/prolog",))
    found = check_prolog(config, {} if text is None else {"/etc/slurm/prolog": text})
    assert levels([found])["sharing.prolog"] is level
    assert says(found.what, "/etc/slurm/prolog")
    assert found.fix or "journalctl -t flexo-prolog" in found.what


def test_a_site_without_a_prolog_is_told_where_the_example_is(site: Site) -> None:
    assert site.config.prologs == ()
    found = bad([check_prolog(site.config, {})])
    assert says(found.fix, "prolog_sharing.example", "Prolog=/etc/slurm/prolog_sharing")


@pytest.mark.parametrize(
    ("lines", "prologs"),
    [
        ("Prolog                  = (null)\nPrologEpilogTimeout     = 65534", ()),
        ("Prolog                  = /etc/slurm/prolog.d/*\nPrologFlags = Alloc", ("/etc/slurm/prolog.d/*",)),
        ("Prolog[0]               = /a\nProlog[1]               = /b\nPrologSlurmctld[0] = /c", ("/a", "/b")),
        ("ResvProlog              = /r\nSrunProlog              = /s", ()),
    ],
)
def test_prologs_are_read_as_each_release_prints_them(lines: str, prologs: tuple[str, ...]) -> None:
    assert parse_config(lines).prologs == prologs


def test_gres_conf_is_read_in_every_spelling_of_slurm() -> None:
    text = """
    # a comment with Name=spare
    AutoDetect=nvml
    nodename=gpu[1-2] name=GPU Type=h100 file=/dev/nvidia[0-1],/dev/nvidia3 # behind
    Name=spare Type=s0 File="/dev/nvidia0" \\
      Flags=Explicit,nvidia_gpu_env
    """
    gpu, spare = parse_gres_conf(text)
    assert (gpu.nodes, gpu.name, gpu.files) == (
        frozenset({"gpu1", "gpu2"}),
        "gpu",
        ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia3"),
    )
    assert (spare.nodes, spare.files, "explicit" in spare.flags) == (None, ("/dev/nvidia0",), True)
    assert files_of((gpu, spare), "gpu1", "gpu") == gpu.files
    assert files_of((gpu, spare), "gpu3", "gpu") == ()
    assert files_of((gpu, spare), "gpu3", "spare") == ("/dev/nvidia0",)


def test_a_limit_is_that_of_the_gres_and_not_of_one_of_its_types() -> None:
    qos = QosSetup("normal", frozenset(), "cluster", 0, ("cpu=4", "gres/spare:s0=1", "gres/spare=0"))
    assert qos.most_of("spare") == 0
    assert qos.most_of("gpu") is None
