"""What flexo doctor makes of a slurm.conf that slurmctld does not use yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flexo.doctor.before_restart import examine_slurm_conf
from flexo.doctor.finding import Finding, Level
from flexo.doctor.slurm_conf import BadSlurmConf, read_slurm_conf
from flexo_cli.app import application

EXAMPLE = Path(__file__).parents[3] / "slurm_plugin" / "slurm.conf.example"
WHOLE = """
ClusterName=hall   # of the whole institute
SelectType=select/cons_tres
GresTypes=gpu
NodeName=DEFAULT CPUs=64 RealMemory=500000
NodeName=gpu[01-04] Gres=gpu:8 Features=big
NodeName=old[1-2] Gres=gpu:4
NodeSet=fast Feature=big
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """The example's lines for flexo, behind those of a small cluster."""
    path = tmp_path / "slurm.conf"
    path.write_text(WHOLE + EXAMPLE.read_text().replace("gpu[001-100]", "ALL"))
    return path


def examined(conf: Path) -> dict[str, Finding]:
    return {each.check: each for each in examine_slurm_conf(conf, conf.parent / "flexo.toml")}


def troubles(conf: Path) -> set[str]:
    return {check for check, each in examined(conf).items() if each.level is Level.PROBLEM}


def test_the_example_beside_a_clusters_own_lines_has_no_problem(conf: Path) -> None:
    assert troubles(conf) == set()
    assert examined(conf)["partition.exists"].what.endswith("6 nodes")


@pytest.mark.parametrize(
    ("line", "instead", "check"),
    [
        ("PreemptType=preempt/partition_prio", "", "preemption.type"),
        ("JobSubmitPlugins=lua", "", "plugin.lua"),
        ("PriorityTier=1 ", "PriorityTier=10 ", "partition.tier"),
        ("MaxTime=24:00:00", "MaxTime=4", "partition.max_time"),
        ("SelectType=select/cons_tres", "", "slurm.select"),
        ("PartitionName=flex ", "PartitionName=loose ", "partition.exists"),
        ("ClusterName=hall", "SchedulerType=sched/builtin", "scheduler.backfill"),
        ("GraceTime=60", "GraceTime=60 RootOnly=yes", "submission.root_only"),
        ("GraceTime=60", "GraceTime=60 Default=YES", "partition.default"),
        ("\nPreemptMode=REQUEUE", "\nPreemptMode=SUSPEND", "preemption.mode"),
    ],
)
def test_a_line_that_is_wrong_is_a_problem_with_the_line_that_mends_it(
    conf: Path, line: str, instead: str, check: str
) -> None:
    conf.write_text(conf.read_text().replace(line, instead, 1))
    assert troubles(conf) == {check}
    assert "slurm.conf: " in examined(conf)[check].fix


def test_a_partition_whose_jobs_could_be_preempted_unawares_is_named(conf: Path) -> None:
    conf.write_text(conf.read_text() + "PartitionName=teaching Nodes=old1 PriorityTier=5\n")
    exposed = examined(conf)["partition.exposed"]
    assert exposed.level is Level.WARNING
    assert "teaching" in exposed.what
    assert "train" in exposed.what


def test_the_file_is_read_as_slurm_reads_it(tmp_path: Path) -> None:
    conf, included = tmp_path / "slurm.conf", tmp_path / "hall_partitions"
    conf.write_text(WHOLE + "preemptmode=requeue\nINCLUDE %c_partitions\n")
    included.write_text(
        "PartitionName=DEFAULT MaxTime=1-0 PriorityTier=7 \\\n  ExclusiveUser=yes\n"
        'PartitionName=one,two Nodes="fast,old1" State=down\n'
        "PartitionName=three MaxTime=30 OverSubscribe=exclusive\n"
    )
    read = read_slurm_conf(conf)
    assert (read.config.cluster, read.config.preempt_mode) == ("hall", ("REQUEUE",))
    one, two, three = read.partitions
    assert (one.name, two.name, three.name) == ("one", "two", "three")
    assert one.nodes == two.nodes == {"gpu01", "gpu02", "gpu03", "gpu04", "old1"}
    assert (one.max_time_s, three.max_time_s) == (86400, 1800)
    assert (one.tier, one.up, three.up) == (7, False, True)
    assert one.one_user_a_node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ClusterName=a\nPartitionName=p Nodes=n[1-\n", ":2: "),
        ("Cluster Name=a\n", ":1: 'Cluster'"),
        ("PartitionName=p MaxTime=soon\n", ":1: 'soon' is not a time limit"),
        ("PartitionName=p PriorityTier=high\n", ":1: 'high' is not a number"),
        ("Include slurm.conf\n", "includes itself"),
        ("Include nowhere.conf\n", "nowhere.conf cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(text)
    with pytest.raises(BadSlurmConf, match=str(tmp_path)) as error:
        read_slurm_conf(conf)
    assert said in str(error.value)
    assert troubles(conf) == {"slurm.file"}


def test_flexods_configuration_names_the_partition(conf: Path) -> None:
    toml = conf.parent / "flexo.toml"
    toml.write_text('[slurm]\nsatellite_partition = "idle"\n')
    assert "partition idle" in examined(conf)["partition.exists"].what
    toml.write_text("[slurm]\nsatellites = 1\n")
    assert "flexod.config" in troubles(conf)


def test_the_command_fails_on_a_problem_and_asks_nobody(conf: Path) -> None:
    command = ["doctor", "--check-slurm-conf", str(conf), "--config", str(conf.parent / "flexo.toml")]
    assert CliRunner().invoke(application(), command).exit_code == 0
    conf.write_text(conf.read_text().replace("JobSubmitPlugins=lua", ""))
    said = CliRunner().invoke(application(), command)
    assert said.exit_code == 1
    assert "JobSubmitPlugins" in said.output
    refused = CliRunner().invoke(application(), [*command, "--daemon", "somewhere:1"])
    assert refused.exit_code == 2
