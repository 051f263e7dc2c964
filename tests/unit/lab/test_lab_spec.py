"""What a lab can be asked for, and what is said to those who ask for something else."""

from __future__ import annotations

import pytest
from says import says

from flexo_lab import BadSpec, LabSpec, Profile
from flexo_lab.layout import Layout, labs_root


def test_a_spec_names_its_nodes_training_first() -> None:
    spec = LabSpec(nodes=2, infer_nodes=1)
    assert spec.node_names == ("t1", "t2", "i1")


def test_inference_nodes_have_as_many_gpus_as_training_nodes_unless_said() -> None:
    assert LabSpec(gpus_per_node=6).gpus_per_infer_node == 6
    assert LabSpec(gpus_per_node=6, infer_gpus=2).gpus_per_infer_node == 2


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("nodes", 0, "1 to 256"),
        ("nodes", 257, "1 to 256"),
        ("gpus_per_node", 1000, "1 to 64"),
        ("cpus_per_node", 0, "1 to 1024"),
        ("infer_nodes", -1, "0 to 256"),
        ("infer_gpus", 0, "1 to 64"),
    ],
)
def test_a_number_that_cannot_be_is_named_with_what_is_allowed(field: str, value: int, allowed: str) -> None:
    with pytest.raises(BadSpec) as refusal:
        LabSpec(**{field: value})  # type: ignore[arg-type]
    assert says(str(refusal.value), f"{field} = {value}", allowed)


@pytest.mark.parametrize("name", ["", "Lab", "a/b", "..", "-a", "a-", "a" * 25, "a b", "ü"])
def test_a_name_that_cannot_be_a_directory_and_a_cluster_is_refused(name: str) -> None:
    with pytest.raises(BadSpec, match="1 to 24 of a-z, 0-9"):
        LabSpec(name=name)


def test_an_unknown_profile_is_refused_with_the_profiles_that_are() -> None:
    with pytest.raises(BadSpec, match=r"'fast'.*: quick, production, accounting$"):
        LabSpec(profile="fast")  # type: ignore[arg-type]


def test_a_profile_may_be_given_by_its_name() -> None:
    assert LabSpec(profile="production").profile is Profile.PRODUCTION  # type: ignore[arg-type]


def test_a_gpu_type_that_slurm_would_misread_is_refused() -> None:
    with pytest.raises(BadSpec, match="gpu_type 'a:b'"):
        LabSpec(gpu_type="a:b")
    with pytest.raises(BadSpec, match="infer_gpu_type 'A'"):
        LabSpec(infer_gpu_type="A")


def test_servers_are_lent_only_where_flexod_may_edit_partitions() -> None:
    assert LabSpec(loans=True).flexod_account == "slurm"
    with pytest.raises(BadSpec, match=r"loans\b.*other profiles.*accounting"):
        LabSpec(loans=True, profile=Profile.ACCOUNTING)


def test_satellites_are_preempted_by_qos_only_where_there_is_one() -> None:
    LabSpec(by_qos=True, profile=Profile.ACCOUNTING)
    with pytest.raises(BadSpec, match=r"by_qos\b.*profile accounting"):
        LabSpec(by_qos=True)


def test_web_pages_need_a_flexod_to_show_and_run_without_rights() -> None:
    assert LabSpec(web=True).web_account == "nobody"
    with pytest.raises(BadSpec, match=r"web\b.*flexod"):
        LabSpec(web=True, flexod=False)


def test_flexod_is_an_ordinary_user_only_where_slurmdbd_can_make_it_operator() -> None:
    assert LabSpec(profile=Profile.PRODUCTION).flexod_account == "slurm"
    assert LabSpec(profile=Profile.ACCOUNTING).flexod_account == "daemon"


def test_labs_lie_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXO_LABS", "/srv/labs")
    assert str(Layout.of("mine").slurm_conf) == "/srv/labs/mine/slurm.conf"


@pytest.mark.parametrize("root", ["labs", "/with space", "/" + "x" * 60])
def test_a_root_too_long_for_sockets_or_not_absolute_is_refused(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXO_LABS", root)
    with pytest.raises(BadSpec, match="absolute path"):
        labs_root()
