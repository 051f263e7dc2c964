"""flexo doctor on a real cluster: a lab has no problem; what is then broken there is named."""

from __future__ import annotations

import json
from collections.abc import Callable

from flexo.doctor.slurm_conf import read_slurm_conf
from flexo.doctor.slurm_says import parse_config, parse_partition_setups
from flexo_lab import Lab

WITHOUT_ELASTIC = """
function slurm_job_submit(job_desc, part_list, submit_uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
"""


def examined(lab: Lab) -> tuple[int, dict[str, str], dict[str, str]]:
    """Exit code, levels and fixes by check."""
    done = lab.run(["flexo", "doctor", "--json"], check=False)
    findings = json.loads(done.stdout)["findings"]
    return (
        done.returncode,
        {each["check"]: each["level"] for each in findings},
        {each["check"]: each["fix"] or "" for each in findings},
    )


def test_a_lab_has_no_problem_and_what_is_broken_in_it_is_named(spared_lab: Callable[..., Lab]) -> None:
    lab = spared_lab(nodes=1, infer_nodes=0)
    code, levels, _ = examined(lab)
    assert code == 0
    assert levels.pop("partition.users") == "warning"  # as any partition without ExclusiveUser
    assert set(levels.values()) == {"ok", "not_checked"}
    assert {"munge.round_trip", "plugin.spank", "plugin.lua", "clock", "flexod.answers"} <= {
        check for check, level in levels.items() if level == "ok"
    }

    lab.run(["scontrol", "update", "PartitionName=flex", "PriorityTier=10", "GraceTime=0"])
    lab.layout.plugstack_conf.write_text("")
    lab.layout.job_submit.write_text(WITHOUT_ELASTIC)
    lab.stop_flexod()
    code, levels, fixes = examined(lab)
    assert code == 1
    assert {check for check, level in levels.items() if level == "problem"} == {
        "partition.tier",
        "plugin.spank",
        "plugin.lua",
        "flexod.answers",
    }
    assert levels["partition.grace"] == "warning"
    assert "PriorityTier=9" in fixes["partition.tier"]


def test_without_slurm_the_doctor_says_so_and_judges_the_rest(lab: Lab) -> None:
    done = lab.run(
        ["env", "SLURM_CONF=/nowhere", "flexo", "doctor", "--json", "--config", "/nowhere"], check=False
    )
    assert done.returncode == 1
    levels = {each["check"]: each["level"] for each in json.loads(done.stdout)["findings"]}
    assert levels["slurm.answers"] == levels["flexod.config"] == "problem"
    assert levels["munge.round_trip"] == "ok"


def test_a_slurm_conf_is_read_before_the_restart_as_slurmctld_reads_it(lab: Lab) -> None:
    read = read_slurm_conf(lab.layout.slurm_conf)
    shown = lab.run(["scontrol", "show", "partition", "-a", "-o"]).stdout
    assert set(read.partitions) == set(parse_partition_setups(shown))
    config = parse_config(lab.run(["scontrol", "show", "config"]).stdout)
    for name in ("cluster", "auth_type", "select_type", "gres_types", "preempt_type", "preempt_mode"):
        assert getattr(read.config, name) == getattr(config, name)
    for name in ("preempt_exempt_s", "scheduler_type", "job_submit_plugins", "memory_counted"):
        assert getattr(read.config, name) == getattr(config, name)
    assert read.config.memory_by_default == config.memory_by_default
