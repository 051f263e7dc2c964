"""What the doctor says of the QOS of satellites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flexo.doctor.finding import Finding, Level
from flexo.doctor.preemption import BY_QOS
from flexo.doctor.qos import QosSetup, check_qos, parse_qos
from flexo.doctor.slurm_says import SlurmConfig, parse_config

PRINTED = "normal|flex|cluster|00:00:00\nflex||cancel|00:00:20\nurgent|flex,normal|cluster|00:00:00\n"
FLEX = QosSetup("flex", frozenset(), "cancel", 20)
NORMAL = QosSetup("normal", frozenset({"flex"}), "cluster", 0)


@pytest.fixture
def by_partition() -> SlurmConfig:
    return parse_config((Path(__file__).parent / "captured" / "config.txt").read_text())


@pytest.fixture
def by_qos(by_partition: SlurmConfig) -> SlurmConfig:
    return replace(by_partition, preempt_type=BY_QOS)


def levels(found: list[Finding]) -> dict[str, Level]:
    return {finding.check: finding.level for finding in found}


def test_what_sacctmgr_prints_is_read() -> None:
    known = parse_qos(PRINTED)
    assert known[:2] == (NORMAL, FLEX)
    assert known[2].preempts == {"flex", "normal"}


def test_a_qos_that_all_others_may_preempt_is_in_order(by_qos: SlurmConfig) -> None:
    found = levels(check_qos(by_qos, "flex", parse_qos(PRINTED)))
    assert list(found) == ["qos.exists", "qos.preempted", "qos.preempt_mode", "qos.grace"]
    assert set(found.values()) == {Level.OK}


def test_preemption_by_qos_without_a_qos_for_satellites_is_a_problem(by_qos: SlurmConfig) -> None:
    (found,) = check_qos(by_qos, "", (NORMAL,))
    assert found.level is Level.PROBLEM
    assert 'satellite_qos = "flex"' in found.fix


def test_without_preemption_by_qos_it_only_has_to_be_there(by_partition: SlurmConfig) -> None:
    assert levels(check_qos(by_partition, "", ())) == {"qos.exists": Level.OK}
    assert levels(check_qos(by_partition, "flex", (FLEX,))) == {"qos.exists": Level.OK}
    (missing,) = check_qos(by_partition, "felx", (FLEX, NORMAL))
    assert missing.level is Level.PROBLEM
    assert "no QOS felx" in missing.what
    assert "there are: flex, normal" in missing.what


def test_others_that_may_not_preempt_it_are_named_with_the_command(by_qos: SlurmConfig) -> None:
    urgent = QosSetup("urgent", frozenset(), "cluster", 0)
    some = check_qos(by_qos, "flex", (FLEX, NORMAL, urgent))[1]
    assert some.level is Level.WARNING
    assert some.fix == "`sacctmgr modify qos urgent set Preempt+=flex`"
    assert check_qos(by_qos, "flex", (FLEX, urgent))[1].level is Level.PROBLEM


def test_a_mode_that_frees_no_gpus_is_a_problem_and_no_grace_time_a_warning(by_qos: SlurmConfig) -> None:
    for mode, level in (("suspend", Level.PROBLEM), ("requeue", Level.WARNING), ("cluster", Level.WARNING)):
        found = levels(check_qos(by_qos, "flex", (replace(FLEX, mode=mode, grace_s=0), NORMAL)))
        assert found["qos.preempt_mode"] is level, mode
        assert found["qos.grace"] is Level.WARNING


def test_a_slurmdbd_that_does_not_answer_is_no_problem_of_the_qos(by_qos: SlurmConfig) -> None:
    (found,) = check_qos(by_qos, "flex", "slurmdbd is away")
    assert found.level is Level.NOT_CHECKED
    assert "slurmdbd is away" in found.what
