"""The files that make a lab's Slurm, and the lab's own record."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexo import config
from flexo_lab import LabSpec, Profile, flexod
from flexo_lab.errors import BadSpec
from flexo_lab.layout import Layout
from flexo_lab.record import Ports, Record
from flexo_lab.slurm_files import gres_conf, job_submit_lua, plugstack_conf, prolog, slurm_conf

LAYOUT = Layout(Path("/labs/mine"))


def record_of(**fields: object) -> Record:
    spec = LabSpec(name="mine", **fields)  # type: ignore[arg-type]
    slurmds = tuple(range(17001, 17001 + len(spec.node_names)))
    return Record(spec, Ports(slurmctld=17000, flexod=16999, slurmds=slurmds, dbd=16998), up=True)


def lines_of(**fields: object) -> list[str]:
    return slurm_conf(LAYOUT, record_of(**fields), lua=True).splitlines()


def test_each_node_has_its_own_port_and_the_gpus_of_its_kind() -> None:
    nodes = [line for line in lines_of(nodes=1, infer_nodes=1, infer_gpus=2) if line.startswith("NodeName")]
    assert [line.split()[0] for line in nodes] == ["NodeName=t1", "NodeName=i1"]
    assert "Port=17001" in nodes[0]
    assert nodes[0].endswith("Gres=gpu:4")
    assert "Port=17002" in nodes[1]
    assert nodes[1].endswith("Gres=gpu:2")


def test_a_gpu_type_stands_with_the_nodes_and_with_the_devices() -> None:
    record = record_of(nodes=1, infer_nodes=0, gpu_type="v100")
    assert any(line.endswith("Gres=gpu:v100:4") for line in lines_of(nodes=1, gpu_type="v100"))
    assert gres_conf(LAYOUT, record.spec) == (
        "NodeName=t1 Name=gpu Type=v100 File=/labs/mine/dev/t1/nvidia[0-3]\n"
    )


def test_inference_nodes_may_have_gpus_of_another_type() -> None:
    nodes = [line for line in lines_of(gpu_type="v100", infer_gpu_type="t4") if line.startswith("NodeName")]
    assert [line.rpartition(" ")[2] for line in nodes] == ["Gres=gpu:v100:4"] * 3 + ["Gres=gpu:t4:4"]
    assert "NodeName=i1 Name=gpu Type=t4 " in gres_conf(LAYOUT, LabSpec(infer_gpu_type="t4"))


def test_where_servers_are_lent_slurm_takes_satellites_before_bases_and_both_before_anything_else() -> None:
    partitions = [line for line in lines_of(loans=True) if line.startswith("PartitionName=")]
    tiers = {line.split()[0][14:]: int(line.partition("PriorityTier=")[2].split()[0]) for line in partitions}
    assert tiers["borrowed-flex"] < tiers["borrowed"] < tiers["train"] < tiers["infer"]
    assert [line.split()[1] for line in partitions[3:]] == ['Nodes=""', 'Nodes=""']


def test_whole_jobs_may_start_on_borrowed_servers_only_where_servers_are_lent() -> None:
    switch = 'elastic.config.borrowed_partition = "borrowed"'
    assert switch in job_submit_lua(LAYOUT, LabSpec(loans=True))
    assert switch not in job_submit_lua(LAYOUT, LabSpec())


def test_where_gpus_are_shared_each_has_a_second_gres_on_its_device_file() -> None:
    lines = lines_of(sharing=True, nodes=1, gpus_per_node=2)
    assert "GresTypes=gpu,spare" in lines
    nodes = {line.split()[0]: line.rpartition(" ")[2] for line in lines if line.startswith("NodeName")}
    assert nodes == {"NodeName=t1": "Gres=gpu:2,spare:s0:1,spare:s1:1", "NodeName=i1": "Gres=gpu:2"}
    written = gres_conf(LAYOUT, LabSpec(sharing=True, nodes=1, gpus_per_node=2, infer_nodes=0))
    assert "NodeName=t1 Name=spare Type=s1 File=/labs/mine/dev/t1/nvidia1 Flags=explicit\n" in written
    (shared,) = [line for line in lines if line.startswith("PartitionName=shared ")]
    assert "PriorityTier=1 PreemptMode=CANCEL GraceTime=20" in shared
    assert 'elastic.config.shared_partition = "shared"' in job_submit_lua(LAYOUT, LabSpec(sharing=True))
    assert "shared_partition" not in job_submit_lua(LAYOUT, LabSpec())
    toml = flexod.flexo_toml(LAYOUT, record_of(sharing=True))
    assert config.parse(toml, "flexo.toml").sharing.partition == "shared"
    accounting = lines_of(sharing=True, profile=Profile.ACCOUNTING)
    assert "AccountingStorageTRES=gres/gpu,gres/spare" in accounting


def test_where_gpus_are_shared_slurm_runs_the_prolog_for_the_coordinator_of_the_node() -> None:
    assert "Prolog=/labs/mine/prolog" in lines_of(sharing=True)
    assert not [line for line in lines_of() if line.startswith("Prolog")]
    written = prolog(LAYOUT)
    assert 'FLEXO_SHARING_FOLDER=/labs/mine/scratch/sharing/"$SLURMD_NODENAME"\n' in written
    assert written.endswith("exec /labs/mine/plugin/prolog_sharing.example\n")


def test_a_node_with_one_gpu_has_one_device_and_no_range() -> None:
    assert gres_conf(LAYOUT, LabSpec(nodes=1, gpus_per_node=1, infer_nodes=0)) == (
        "NodeName=t1 Name=gpu File=/labs/mine/dev/t1/nvidia0\n"
    )


def test_the_borrowed_partition_is_empty_and_so_is_infer_without_inference_nodes() -> None:
    partitions = [line for line in lines_of(infer_nodes=0) if line.startswith("PartitionName=")]
    assert [line.split()[1] for line in partitions] == [
        "Nodes=t1,t2,t3",
        "Nodes=t1,t2,t3",
        'Nodes=""',
        'Nodes=""',
    ]


def test_production_leaves_the_scheduler_as_slurm_has_it() -> None:
    assert not any(
        line.startswith(("SchedulerParameters", "KillWait")) for line in lines_of(profile=Profile.PRODUCTION)
    )
    assert any(line.startswith("SchedulerParameters") for line in lines_of(profile=Profile.QUICK))


def test_only_accounting_talks_to_slurmdbd() -> None:
    assert "AccountingStoragePort=16998" in lines_of(profile=Profile.ACCOUNTING)
    assert not any(line.startswith("Accounting") for line in lines_of(profile=Profile.QUICK))


def test_satellites_are_preempted_by_partition_or_by_a_qos_that_all_of_them_have() -> None:
    by_qos = record_of(profile=Profile.ACCOUNTING, by_qos=True)
    lines = slurm_conf(LAYOUT, by_qos, lua=True).splitlines()
    assert "PreemptType=preempt/qos" in lines
    assert any(line.startswith("PartitionName=flex ") and "AllowQos=flex" in line for line in lines)
    settings = config.parse(flexod.flexo_toml(LAYOUT, by_qos), "flexo.toml")
    assert settings.slurm.satellite_qos == "flex"
    assert "PreemptType=preempt/partition_prio" in lines_of(profile=Profile.ACCOUNTING)
    assert not any("AllowQos" in line for line in lines_of(profile=Profile.ACCOUNTING))


def test_without_the_lua_module_slurm_is_not_told_to_load_one() -> None:
    assert "JobSubmitPlugins=lua" in slurm_conf(LAYOUT, record_of(), lua=True)
    assert "JobSubmitPlugins" not in slurm_conf(LAYOUT, record_of(), lua=False)


def test_the_plugin_is_loaded_from_the_labs_own_copy() -> None:
    assert plugstack_conf(LAYOUT, spank=True) == "required /labs/mine/plugin/spank_elastic.so\n"
    assert plugstack_conf(LAYOUT, spank=False).startswith("#")
    assert 'dofile("/labs/mine/plugin/job_submit_elastic.lua")' in job_submit_lua(LAYOUT, LabSpec())


@pytest.mark.parametrize("profile", list(Profile))
def test_flexod_accepts_the_configuration_that_a_lab_writes(profile: Profile) -> None:
    settings = config.parse(flexod.flexo_toml(LAYOUT, record_of(profile=profile)), "flexo.toml")
    assert settings.service.address == "127.0.0.1:16999"
    assert settings.slurm.conf == Path("/labs/mine/slurm.conf")
    assert settings.service.munge_socket == LAYOUT.munge_socket


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    record = record_of(profile=Profile.ACCOUNTING, infer_gpus=2)
    record.write(tmp_path / "lab.json")
    assert Record.read(tmp_path / "lab.json") == record


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"spec": {"nodes": 0}}', '{"spec": 1, "ports": 2, "up": true}']
)
def test_a_record_that_cannot_be_read_counts_as_lost(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text)
    assert Record.read(tmp_path / "lab.json") is None
    assert Record.read(tmp_path / "nothing") is None


def test_a_lab_without_munge_has_slurms_own_authentication_and_so_has_its_flexod() -> None:
    lines = lines_of(auth_slurm=True)
    assert {"AuthType=auth/slurm", "CredType=cred/slurm"} <= set(lines)
    assert not [line for line in lines if "munge" in line]
    assert "AuthInfo=cred_expire=30" in lines_of(auth_slurm=True, loans=True)
    toml = flexod.flexo_toml(LAYOUT, record_of(auth_slurm=True))
    assert 'authentication = "slurm"' in toml
    assert "munge" not in toml
    with pytest.raises(BadSpec, match="slurmdbd"):
        record_of(auth_slurm=True, profile=Profile.ACCOUNTING)


def test_a_lab_with_munge_has_its_own_socket() -> None:
    lines = lines_of(loans=True)
    assert {"AuthType=auth/munge", "CredType=cred/munge"} <= set(lines)
    assert "AuthInfo=socket=/labs/mine/munge/munge.socket,cred_expire=30" in lines
