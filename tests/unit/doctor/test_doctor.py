"""What flexo doctor makes of what Slurm says: from real outputs, whole and with one thing changed."""

from __future__ import annotations

import os
import pwd
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from says import says

from flexo.config import ControllerSettings
from flexo.doctor.clock import check_clock
from flexo.doctor.finding import Finding, Level
from flexo.doctor.flexod import (
    FlexodAnswer,
    account_of,
    check_address,
    check_answer,
    check_config,
    check_event_store,
    check_web_steering,
)
from flexo.doctor.memory import check_memory
from flexo.doctor.munge import check_munge, check_sack
from flexo.doctor.neighbours import check_neighbours
from flexo.doctor.partitions import Satellites, check_borrowed, check_partitions
from flexo.doctor.plugin import check_plugin
from flexo.doctor.preemption import check_preemption
from flexo.doctor.priorities import check_priorities
from flexo.doctor.rights import Account, check_rights, parse_admin_level
from flexo.doctor.scheduler import check_scheduler
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
from flexo.loaning.settings import LoaningSettings
from flexo_protos.credentials import Caller, NotAuthentic

CONFIG = (Path(__file__).parent / "captured" / "config.txt").read_text()
RELEASES = Path(__file__).parents[1] / "clusters" / "captured"
FLEX = Satellites("flex", time_limit_s=300)


@pytest.fixture
def config() -> SlurmConfig:
    """Of a lab as it comes up."""
    return parse_config(CONFIG)


@pytest.fixture(params=["22.05", "24.11", "26.05"])
def partitions(request: pytest.FixtureRequest) -> tuple[PartitionSetup, ...]:
    """train (tier 10) and flex (tier 1) on the same nodes, infer (tier 20), borrowed without nodes."""
    return parse_partition_setups((RELEASES / request.param / "partitions.txt").read_text())


def changed(
    partitions: tuple[PartitionSetup, ...], name: str, **fields: object
) -> tuple[PartitionSetup, ...]:
    """The partitions, one of them otherwise."""
    return tuple(replace(each, **fields) if each.name == name else each for each in partitions)  # type: ignore[arg-type]


def levels(findings: list[Finding]) -> dict[str, Level]:
    """By check; what is not ok has to say how to fix it."""
    for finding in findings:
        assert finding.fix or finding.level in (Level.OK, Level.NOT_CHECKED), finding
    return {finding.check: finding.level for finding in findings}


def of(findings: list[Finding], check: str) -> Finding:
    """The one of that check."""
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def test_a_cluster_that_is_set_up_as_documented_is_all_ok(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    found = [
        *check_slurm(config),
        *check_memory(config, partitions),
        *check_preemption(config),
        *check_partitions(config, partitions, FLEX),
        *check_borrowed(config, partitions, LoaningSettings()),
        *check_priorities(config, ControllerSettings()),
    ]
    assert set(levels(found).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("22.05.8", Level.OK),
        ("23.02.7", Level.OK),
        ("26.05.5", Level.OK),
        ("21.08.8", Level.PROBLEM),
        ("26.11.0", Level.WARNING),
        ("", Level.PROBLEM),
    ],
)
def test_releases_are_told_from_those_that_are_tested(
    config: SlurmConfig, version: str, level: Level
) -> None:
    assert levels(check_slurm(replace(config, version=version)))["slurm.version"] is level


def test_slurm_without_gpus_or_with_whole_nodes_alone_is_a_problem(config: SlurmConfig) -> None:
    found = levels(
        check_slurm(replace(config, gres_types=(), select_type="select/linear", auth_type="auth/jwt"))
    )
    assert found["slurm.gres"] is found["slurm.select"] is Level.PROBLEM
    assert found["slurm.auth"] is Level.WARNING


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("DefMemPerCPU            = 4000", Level.OK),
        ("DefMemPerNode           = 64000", Level.OK),
        ("JobDefaults             = DefCpuPerGPU=4,DefMemPerGPU=8000", Level.OK),
        ("JobDefaults             = DefCpuPerGPU=4", Level.WARNING),
        ("DefMemPerNode           = UNLIMITED", Level.WARNING),
        ("DefMemPerNode           = UNLIMITED\nSelectTypeParameters    = CR_CORE", Level.OK),
    ],
)
def test_memory_that_is_counted_without_a_default_is_a_warning(
    partitions: tuple[PartitionSetup, ...], said: str, level: Level
) -> None:
    others = re.sub(r"^(DefMem\w+|JobDefaults) .*\n", "", CONFIG, flags=re.MULTILINE)
    config = parse_config(f"{said}\n{others}")
    assert levels(check_memory(config, partitions))["slurm.memory"] is level


def test_a_default_for_memory_may_be_each_partitions_own(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    nothing = replace(config, memory_by_default="")
    each = tuple(replace(partition, memory_by_default="DefMemPerCPU=4000") for partition in partitions)
    assert levels(check_memory(nothing, each))["slurm.memory"] is Level.OK
    found = of(check_memory(nothing, changed(each, "flex", memory_by_default="")), "slurm.memory")
    assert (found.level, found.what.startswith("in flex a job")) == (Level.WARNING, True)


def test_a_partitions_default_for_memory_is_read_as_scontrol_prints_it() -> None:
    line = "PartitionName=a Nodes=n1 DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED"
    assert [
        parse_partition_setups(text)[0].memory_by_default
        for text in (
            line,
            line.replace("DefMemPerNode=UNLIMITED", "DefMemPerCPU=2000"),
            f"{line} JobDefaults=DefMemPerGPU=9",
        )
    ] == ["", "DefMemPerCPU=2000", "DefMemPerGPU=9"]


def test_users_who_share_nodes_with_satellites_are_a_warning(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    check = "partition.users"
    found = of(check_neighbours(config, partitions, "flex"), check)
    assert found.level is Level.WARNING
    assert "flex, train" in found.what  # infer has other nodes
    assert "ExclusiveUser=YES" in found.fix
    alone = changed(changed(partitions, "flex", one_user_a_node=True), "train", one_user_a_node=True)
    assert levels(check_neighbours(config, alone, "flex"))[check] is Level.OK
    whole = replace(config, select_type="select/linear")
    assert levels(check_neighbours(whole, partitions, "flex"))[check] is Level.OK


@pytest.mark.parametrize(
    ("fields", "one_user"),
    [
        ("ExclusiveUser=NO OverSubscribe=NO", False),
        ("ExclusiveUser=YES OverSubscribe=NO", True),
        ("ExclusiveUser=NO OverSubscribe=EXCLUSIVE", True),
        ("ExclusiveUser=NO OverSubscribe=FORCE:4", False),
    ],
)
def test_who_shares_nodes_is_read_as_scontrol_prints_it(fields: str, one_user: bool) -> None:
    (found,) = parse_partition_setups(f"PartitionName=p Nodes=n[1-2] {fields} State=UP")
    assert found.one_user_a_node is one_user


def test_preemption_that_is_off_is_a_problem_and_its_line_is_said(config: SlurmConfig) -> None:
    found = check_preemption(replace(config, preempt_type="preempt/none", preempt_mode=("OFF",)))
    assert levels(found)["preemption.type"] is levels(found)["preemption.mode"] is Level.PROBLEM
    assert "PreemptType=preempt/partition_prio" in of(found, "preemption.type").fix


def test_preemption_by_qos_is_not_judged_by_partitions(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    by_qos = replace(config, preempt_type="preempt/qos")
    found = levels([*check_preemption(by_qos), *check_partitions(by_qos, partitions, FLEX)])
    assert found["preemption.type"] is Level.OK
    assert found["partition.tier"] is found["partition.grace"] is Level.NOT_CHECKED
    assert Level.PROBLEM not in found.values()


def test_what_delays_or_reorders_preemption_is_a_warning(config: SlurmConfig) -> None:
    other = parse_config(
        CONFIG.replace("PreemptExemptTime       = 00:00:00", "PreemptExemptTime       = 00:05:00")
    )
    assert other.preempt_exempt_s == 300
    found = levels(check_preemption(replace(other, scheduler_parameters=("preempt_youngest_first",))))
    assert found["preemption.exempt"] is found["preemption.order"] is Level.WARNING


def test_a_missing_partition_is_named_with_those_that_there_are(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    (found,) = check_partitions(config, partitions, Satellites("felx", 300))
    assert found.level is Level.PROBLEM
    assert "felx" in found.what
    assert "borrowed, flex, infer, train" in found.what


@pytest.mark.parametrize(
    ("check", "fields", "level", "line"),
    [
        ("partition.exists", {"nodes": frozenset()}, Level.PROBLEM, "Nodes="),
        ("partition.exists", {"up": False}, Level.PROBLEM, "State=UP"),
        ("partition.tier", {"tier": 10}, Level.PROBLEM, "PartitionName=flex ... PriorityTier=9"),
        ("partition.preempt_mode", {"preempt_mode": ("OFF",)}, Level.PROBLEM, "PreemptMode=CANCEL"),
        ("partition.preempt_mode", {"preempt_mode": ("REQUEUE",)}, Level.WARNING, "PreemptMode=CANCEL"),
        ("partition.preempt_mode", {"preempt_mode": ("SUSPEND",)}, Level.PROBLEM, "PreemptMode=CANCEL"),
        ("partition.grace", {"grace_s": 0}, Level.WARNING, "GraceTime=60"),
        ("partition.max_time", {"max_time_s": 60}, Level.PROBLEM, "MaxTime="),
        ("partition.default", {"is_default": True}, Level.PROBLEM, "Default=NO"),
    ],
)
def test_each_wrong_setting_of_the_satellites_partition_is_named_with_its_line(
    config: SlurmConfig,
    partitions: tuple[PartitionSetup, ...],
    check: str,
    fields: dict[str, object],
    level: Level,
    line: str,
) -> None:
    found = check_partitions(config, changed(partitions, "flex", **fields), FLEX)
    assert levels(found)[check] is level
    assert line in of(found, check).fix


def test_satellites_at_the_lowest_tier_need_the_others_raised(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    found = check_partitions(config, changed(partitions, "train", tier=1), FLEX)
    assert "PartitionName=train ... PriorityTier=2 or more" in of(found, "partition.tier").fix


def test_a_partition_whose_jobs_a_higher_one_may_preempt_is_a_warning(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    urgent = replace(partitions[0], name="urgent", tier=30)
    careless = (*changed(partitions, "train", preempt_mode=("REQUEUE",)), urgent)
    found = of(check_partitions(config, careless, FLEX), "partition.exposed")
    assert found.level is Level.WARNING
    assert says(found.what, "train", "preempted", "urgent")


def test_borrowed_servers_need_their_partition_below_that_of_inference(
    config: SlurmConfig, partitions: tuple[PartitionSetup, ...]
) -> None:
    lends = LoaningSettings(enabled=True)
    assert levels(check_borrowed(config, partitions, lends))["borrowed.tier"] is Level.OK
    level = levels(check_borrowed(config, changed(partitions, "borrowed", tier=20), lends))
    assert level["borrowed.tier"] is Level.PROBLEM
    without = tuple(each for each in partitions if each.name != "borrowed")
    assert levels(check_borrowed(config, without, lends))["borrowed.exists"] is Level.PROBLEM
    nowhere = lends.model_copy(update={"inference_partition": "serve"})
    assert levels(check_borrowed(config, partitions, nowhere)) == {"borrowed.inference": Level.PROBLEM}


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_the_schedulers_turn_depth_and_cycle_are_read_from_each_release(release: str) -> None:
    text = (RELEASES / release / "config.txt").read_text()
    stats = parse_stats(text, (RELEASES / release / "sdiag.txt").read_text())
    assert stats.at == 1795258079
    assert 3.0 < stats.backfill_turn_s < 4.0
    assert 0 < stats.main_max_s < 0.01
    assert stats.backfill_queue in (3, 4)


def test_a_slow_or_shallow_scheduler_is_a_warning(config: SlurmConfig) -> None:
    stats = parse_stats(CONFIG, (RELEASES / "22.05" / "sdiag.txt").read_text())
    slow = replace(stats, backfill_turn_s=300.0, backfill_queue=2000, main_max_s=9.0)
    assert set(levels(check_scheduler(config, slow, None)).values()) == {Level.WARNING}
    fix = of(check_scheduler(config, slow, None), "scheduler.depth").fix
    assert "bf_max_job_part=50,bf_max_job_test=1000" in fix
    shared = replace(config, scheduler_parameters=("bf_max_job_part=50", "bf_max_job_test=1000"))
    assert levels(check_scheduler(shared, slow, None))["scheduler.depth"] is Level.OK
    too_many = replace(config, scheduler_parameters=("bf_max_job_part=400", "bf_max_job_test=1000"))
    assert levels(check_scheduler(too_many, slow, None))["scheduler.depth"] is Level.WARNING
    deep = replace(config, scheduler_parameters=("bf_max_job_test=5000",))
    assert levels(check_scheduler(deep, slow, None))["scheduler.depth"] is Level.OK
    assert levels(check_scheduler(config, stats, 2))["scheduler.turn"] is Level.WARNING
    none = check_scheduler(replace(config, scheduler_type="sched/builtin"), stats, None)
    assert levels(none) == {"scheduler.backfill": Level.PROBLEM}


def test_fairshare_that_nobody_keeps_is_a_problem(config: SlurmConfig) -> None:
    weighing = ControllerSettings(fairshare_weight=0.5)
    assert levels(check_priorities(config, weighing))["priorities.fairshare"] is Level.PROBLEM
    kept = replace(
        config, priority_type="priority/multifactor", accounting_type="accounting_storage/slurmdbd"
    )
    assert levels(check_priorities(kept, weighing))["priorities.fairshare"] is Level.OK


def test_submission_is_judged_by_what_slurm_would_do_and_by_alloc_nodes(
    partitions: tuple[PartitionSetup, ...],
) -> None:
    found = levels(check_submission(partitions, "flex", TriedOut()))
    assert found["submission.test"] is found["submission.alloc_nodes"] is Level.OK
    barred = check_submission(changed(partitions, "flex", alloc_nodes=frozenset({"t1"})), "flex", TriedOut())
    assert of(barred, "submission.alloc_nodes").level is Level.PROBLEM
    assert "t2" in of(barred, "submission.alloc_nodes").what
    found = levels(
        check_submission(partitions, "flex", TriedOut("allocation failure: Access/permission denied"))
    )
    assert found["submission.test"] is Level.PROBLEM
    found = levels(check_submission(partitions, "flex", TriedOut("Invalid account or account/partition ...")))
    assert found["submission.test"] is Level.NOT_CHECKED
    roots = levels(check_submission(changed(partitions, "flex", root_only=True), "flex", TriedOut()))
    assert roots["submission.root_only"] is Level.PROBLEM


def test_the_plugin_is_judged_by_what_its_two_parts_do(config: SlurmConfig) -> None:
    takes, refuses = TriedOut(), TriedOut("flexo: --elastic=2-3 needs the minimum")
    help_with = "      --elastic=MIN-MAX       let this job grow"
    assert set(levels(check_plugin(config, help_with, takes, refuses)).values()) == {Level.OK}
    without = levels(check_plugin(config, "  -n, --ntasks=N", takes, takes))
    assert without == {"plugin.spank": Level.PROBLEM, "plugin.lua": Level.PROBLEM}
    unknown = levels(check_plugin(config, None, refuses, refuses))
    assert set(unknown.values()) == {Level.NOT_CHECKED}
    none = check_plugin(replace(config, job_submit_plugins=()), help_with, takes, takes)
    assert "JobSubmitPlugins=lua" in of(none, "plugin.lua").fix


def test_flexods_account_is_slurms_own_or_an_operator(config: SlurmConfig) -> None:
    lends_not = LoaningSettings()
    assert config.slurm_user == "slurm"
    assert levels(check_rights(config, Account("slurm"), lends_not))["rights.operator"] is Level.OK
    assert levels(check_rights(config, Account("flexo"), lends_not))["rights.operator"] is Level.PROBLEM
    kept = replace(config, accounting_type="accounting_storage/slurmdbd")
    assert levels(check_rights(kept, Account("flexo", "Operator"), lends_not))["rights.operator"] is Level.OK
    plain = check_rights(kept, Account("flexo", "None"), lends_not)
    assert "sacctmgr modify user flexo set AdminLevel=Operator" in of(plain, "rights.operator").fix
    stranger = check_rights(kept, Account("flexo"), lends_not)
    assert "sacctmgr add user flexo" in of(stranger, "rights.operator").fix
    away = check_rights(kept, Account("flexo", unknown="slurmdbd is away"), lends_not)
    assert of(away, "rights.operator").level is Level.NOT_CHECKED
    assert levels(check_rights(kept, Account(""), lends_not)) == {"rights.operator": Level.NOT_CHECKED}


def test_lending_needs_the_right_to_edit_a_partition(config: SlurmConfig) -> None:
    lends = LoaningSettings(enabled=True)
    assert levels(check_rights(config, Account("slurm"), lends))["rights.lending"] is Level.OK
    assert levels(check_rights(config, Account("flexo"), lends))["rights.lending"] is Level.PROBLEM
    missing = lends.model_copy(update={"edit_command": ("sudo", "/nowhere/flexo-partition")})
    assert levels(check_rights(config, Account("flexo"), missing))["rights.lending"] is Level.PROBLEM
    there = lends.model_copy(update={"edit_command": ("sudo", "/bin/sh")})
    assert levels(check_rights(config, Account("flexo"), there))["rights.lending"] is Level.NOT_CHECKED


def test_sacctmgr_s_words_are_understood() -> None:
    assert parse_admin_level("daemon|Operator\n") == "Operator"
    assert parse_admin_level("") == ""


@pytest.mark.parametrize(
    ("controller_at", "level"),
    [
        (1000.0, Level.OK),
        (999.0, Level.OK),
        (980.0, Level.WARNING),
        (1200.0, Level.PROBLEM),
        (0, Level.NOT_CHECKED),
    ],
)
def test_the_clock_is_compared_with_slurmctlds(controller_at: float, level: Level) -> None:
    assert levels(check_clock(controller_at, 1000.2, 1000.4)) == {"clock": level}


class Says:
    """The authenticator at the process boundary."""

    def __init__(self, refuses: bool = False) -> None:
        self._refuses = refuses

    def credential(self, method: str) -> str:
        if self._refuses:
            raise NotAuthentic("MUNGE gave no credential: did you start munged?")
        return method

    def verify(self, credential: str, method: str) -> Caller:
        return Caller(0, 0)


def test_munge_that_does_not_answer_is_a_problem_and_so_is_a_socket_that_is_none(tmp_path: Path) -> None:
    assert set(levels(check_munge(Says(), None)).values()) == {Level.OK}
    found = levels(check_munge(Says(refuses=True), tmp_path / "none"))
    assert found == {"munge.socket": Level.PROBLEM, "munge.round_trip": Level.PROBLEM}
    file = tmp_path / "file"
    file.touch()
    assert levels(check_munge(Says(), file))["munge.socket"] is Level.PROBLEM


def test_a_sack_that_does_not_answer_is_a_problem() -> None:
    assert levels(check_sack(Says())) == {"sack.round_trip": Level.OK}
    assert levels(check_sack(Says(refuses=True))) == {"sack.round_trip": Level.PROBLEM}


@pytest.mark.parametrize(
    ("auth_type", "authentication", "level", "remedy"),
    [
        ("auth/munge", "munge", Level.OK, ""),
        ("auth/slurm", "slurm", Level.OK, ""),
        ("auth/slurm", "munge", Level.WARNING, 'authentication = "slurm"'),
        ("auth/munge", "slurm", Level.PROBLEM, 'authentication = "munge"'),
    ],
)
def test_flexos_own_proof_of_who_calls_is_to_be_that_of_slurm(
    config: SlurmConfig, auth_type: str, authentication: str, level: Level, remedy: str
) -> None:
    findings = check_slurm(replace(config, auth_type=auth_type), authentication)
    (found,) = (each for each in findings if each.check == "slurm.auth")
    assert found.level is level
    assert remedy in found.fix


def test_an_address_that_is_this_host_alone_is_a_problem_where_nodes_are_elsewhere() -> None:
    assert levels(check_address("127.0.0.1:6836", frozenset({"127.0.0.1"})))["flexod.address"] is Level.OK
    found = check_address("127.0.0.1:6836", frozenset({"127.0.0.1", "192.0.2.7"}))
    assert of(found, "flexod.address").level is Level.PROBLEM
    assert "192.0.2.7" in of(found, "flexod.address").what
    assert socket.gethostname() in of(found, "flexod.address").fix
    assert levels(check_address("192.0.2.1:6836", frozenset({"192.0.2.7"})))["flexod.address"] is Level.OK
    assert levels(check_address("no.such.host.invalid:1", frozenset()))["flexod.address"] is Level.PROBLEM


def test_the_addresses_of_nodes_are_read_from_each_release() -> None:
    for release in ("22.05", "24.11", "26.05"):
        text = (RELEASES / release / "nodes.txt").read_text()
        assert parse_node_addresses(text), release


def test_a_flexod_that_is_silent_troubled_or_of_another_version_is_said() -> None:
    assert levels(check_answer(FlexodAnswer(silent="no answer"), "1")) == {"flexod.answers": Level.PROBLEM}
    found = levels(check_answer(FlexodAnswer(version="2", trouble="Slurm is away"), "1"))
    assert found["flexod.version"] is Level.WARNING
    assert found["flexod.trouble"] is Level.PROBLEM
    assert levels(check_answer(FlexodAnswer(version="1"), "1")) == {"flexod.answers": Level.OK}


def test_each_mistake_of_the_configuration_is_a_problem() -> None:
    assert [each.level for each in check_config(Path("/x"), ("a", "b"))] == [Level.PROBLEM] * 2
    assert levels(check_config(Path("/x"), ())) == {"flexod.config": Level.OK}


def test_accounts_that_scale_for_viewers_have_to_exist_and_to_be_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def account(uid: int, shell: str) -> pwd.struct_passwd:
        return pwd.struct_passwd(("a", "x", uid, uid, "", "/", shell))

    known = {
        "web": account(900, "/usr/sbin/nologin"),
        "ada": account(1000, "/bin/bash"),
        "toor": account(0, ""),
    }
    monkeypatch.setattr("flexo.doctor.flexod.pwd.getpwnam", lambda name: known[name])
    found = check_web_steering(("web", "ada", "toor", "webb"))
    assert [each.level for each in found] == [Level.OK, Level.WARNING, Level.PROBLEM, Level.PROBLEM]
    assert {each.check for each in found} == {"flexod.web_steering"}
    assert "/bin/bash" in found[1].what
    assert "webb" in found[3].what
    assert check_web_steering(()) == []


def test_the_event_store_folder_has_to_be_there_and_writable_by_its_account(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    assert account_of(tmp_path / "journal.sqlite") == me
    assert levels(check_event_store(tmp_path / "journal.sqlite", me)) == {"flexod.journal": Level.OK}
    assert levels(check_event_store(tmp_path / "none" / "j", me)) == {"flexod.journal": Level.PROBLEM}
    assert account_of(tmp_path / "none" / "j") == ""
    tmp_path.chmod(0o755)
    assert levels(check_event_store(tmp_path / "j", "games")) == {"flexod.journal": Level.PROBLEM}
