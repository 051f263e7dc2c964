"""What flexo doctor makes of a slurm.conf that slurmctld does not use yet."""

from __future__ import annotations

import shutil
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
SlurmctldHost=ctl1
SelectType=select/cons_tres
GresTypes=gpu
NodeName=DEFAULT CPUs=64 RealMemory=500000
NodeName=gpu[01-04] Gres=gpu:8 Features=big
NodeName=old[1-2] Gres=gpu:4
NodeSet=fast Feature=big
"""
SAMPLE = Path(__file__).parents[3] / "examples" / "site" / "corrected.conf"
SINFO = """#!/bin/sh
! grep -q ThisKeyIsUnknown "$SLURM_CONF" || exit 1
%s
echo slurm-wlm 22.05.8
"""
REFUSES = """grep -q hall "$SLURM_CONF" && {
echo "sinfo: error: %s" >&2; echo "sinfo: fatal: Unable to process configuration file" >&2; exit 1; }"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """The example's lines for flexo, behind those of a small cluster."""
    path = tmp_path / "slurm.conf"
    path.write_text(WHOLE + EXAMPLE.read_text().replace("gpu[001-100]", "ALL"))
    return path


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder beside the system's tools in which a command is found: Slurm's are not there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "grep"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """The sample's corrected.conf."""
    path = tmp_path / "sample.conf"
    path.write_text(SAMPLE.read_text())
    return path


def install_sinfo(folder: Path, script: str) -> None:
    sinfo = folder / "sinfo"
    sinfo.write_text(script)
    sinfo.chmod(0o755)


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
        ("GresTypes=gpu", "GresTypes=gpu\nSchedulerType=sched/builtin", "scheduler.backfill"),
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
        ("# nothing\n\n", "is empty"),
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


@pytest.mark.parametrize(
    ("line", "instead", "check", "said"),
    [
        ("SlurmctldHost=ctl1", "", "slurm.controller", "SlurmctldHost"),
        ("ClusterName=hall", "", "slurm.controller", "ClusterName"),
        ("flex Nodes=gpu[07-08]", "flex Nodes=gpu[08,17-18]", "partition.nodes", ":22: partition flex"),
        (
            "PartitionName=flex",
            "PartitionName=flex Nodes=gpu07\nPartitionName=flex",
            "slurm.partitions",
            ":23:",
        ),
        ("GresTypes=gpu", "GresTypes=gpu\nNodeName=gpu08", "slurm.nodes", "NodeName=gpu08"),
        ("\nPreemptMode=", "\nPremptMode=", "slurm.keys", ":21: PremptMode is not a key"),
        (" PriorityTier=1 ", " PriorityTeir=1 ", "slurm.keys", "did you mean PriorityTier?"),
        (" Gres=gpu:8", "", "partition.gpus", "no node of flex has Gres=gpu:N"),
        ("AccountingStorageType=accounting_storage/slurmdbd", "", "slurm.tres", "without slurmdbd"),
    ],
)
def test_a_file_with_which_slurm_does_not_start_or_knows_no_gpus_has_one_problem(
    sample: Path, line: str, instead: str, check: str, said: str
) -> None:
    assert troubles(sample) == set()
    sample.write_text(sample.read_text().replace(line, instead, 1))
    assert troubles(sample) == {check}
    assert said in examined(sample)[check].what


def test_undefined_nodes_are_named_and_others_are_not(sample: Path) -> None:
    sample.write_text(sample.read_text().replace("flex Nodes=gpu[07-08]", "flex Nodes=gpu[08,17-18]"))
    said = examined(sample)["partition.nodes"].what
    assert "gpu17,gpu18" in said
    assert "gpu08" not in said


def test_accounting_that_counts_no_gpus_is_a_warning(sample: Path) -> None:
    sample.write_text(sample.read_text().replace("AccountingStorageTRES=gres/gpu", ""))
    assert examined(sample)["slurm.tres"].level is Level.WARNING


@pytest.mark.parametrize(
    "key", ["SlurmdUser=root", "JobDefaults=DefMemPerGPU=4", "MaxMemPerNode=1", "Foo=bar"]
)
def test_a_key_that_the_doctor_does_not_know_is_left_to_slurm(sample: Path, key: str) -> None:
    sample.write_text(sample.read_text() + key + "\n")
    assert troubles(sample) == set()


def test_without_slurms_commands_the_report_says_that_slurm_has_not_read_the_file(sample: Path) -> None:
    reading = examined(sample)["slurm.reading"]
    assert reading.level is Level.NOT_CHECKED
    assert "Slurm's own reading" in reading.what
    command = ["doctor", "--quiet", "--check-slurm-conf", str(sample)]
    assert "slurm.reading" in CliRunner().invoke(application(), command).output.splitlines()[-1]


@pytest.mark.processes
def test_slurms_own_commands_read_the_file(sample: Path, path: Path) -> None:
    install_sinfo(path, SINFO % "")
    reading = examined(sample)["slurm.reading"]
    assert reading.level is Level.OK
    assert "22.05.8" in reading.what


@pytest.mark.processes
@pytest.mark.parametrize(
    ("key", "words", "place"),
    [
        ("Foo=bar", "Parsing error at unrecognized key: Foo", ":23: "),
        ("SelectTypeParameters=CR_Nonsense", "Bad SelectTypeParameter: CR_Nonsense", ":23: "),
        ("Foo=bar", "something else is wrong", ""),
    ],
)
def test_what_slurm_refuses_is_a_problem_with_its_words_and_line(
    sample: Path, path: Path, key: str, words: str, place: str
) -> None:
    install_sinfo(path, SINFO % (REFUSES % words))
    sample.write_text(sample.read_text() + key + "\n")
    assert troubles(sample) == {"slurm.reading"}
    said = examined(sample)["slurm.reading"].what
    assert said.endswith(place + words)
    assert "Unable to process" not in said


@pytest.mark.processes
def test_what_only_this_host_lacks_is_a_warning(sample: Path, path: Path) -> None:
    install_sinfo(path, SINFO % (REFUSES % "Invalid user for SlurmUser slurm, ignored"))
    assert examined(sample)["slurm.reading"].level is Level.WARNING


@pytest.mark.processes
def test_a_command_that_reads_nothing_is_no_reading(sample: Path, path: Path) -> None:
    install_sinfo(path, "#!/bin/sh\necho slurm-wlm 99.05.1\n")
    assert examined(sample)["slurm.reading"].level is Level.NOT_CHECKED


def test_a_missing_file_and_a_folder_are_to_be_looked_for_at_another_path(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.conf", tmp_path):
        assert troubles(path) == {"slurm.file"}
        assert "path" in examined(path)["slurm.file"].fix


def test_an_empty_file_is_one_problem_and_nothing_else_is_said_of_it(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("")
    assert set(examined(conf)) == {"flexod.config", "slurm.file"}
    assert "is empty" in examined(conf)["slurm.file"].what
