"""Workers on GPUs that two jobs use: the variables that they get, and the reports on such GPUs."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from horovod_elastic.agent import shared_gpus
from horovod_elastic.leader import gpu_uses
from horovod_elastic.sharing import environment, status
from horovod_elastic.sharing.environment import EVERYBODY, Role

FOLDER = {environment.FOLDER: "/run/%N"}


def test_a_worker_with_one_gpu_lets_others_in_by_the_coordinator_of_its_node():
    added = shared_gpus.of_guarantee(FOLDER, "n1", [3], "17")
    sharing = environment.read(added)
    assert (sharing.role, sharing.gpu, str(sharing.folder), sharing.job) == (
        *(Role.GUARANTEE, "gpu3", "/run/n1", "17"),
    )
    assert sharing.consent == {EVERYBODY}


@pytest.mark.parametrize("gpus", [[], [0, 1]])
def test_a_worker_without_exactly_one_gpu_is_not_shared(gpus):
    assert shared_gpus.of_guarantee(FOLDER, "n1", gpus, "17") == {}


def test_a_second_job_has_a_supervisor_and_the_same_gpu():
    added = shared_gpus.of_opportunistic(FOLDER, "n1", 1, [1], "18")
    assert environment.read(added).role is Role.OPPORTUNISTIC
    command = shared_gpus.supervised(["python", "train.py"], 1, "18")
    assert command[-3:] == ["--", "python", "train.py"]
    assert command[command.index("--gpu") + 1] == environment.read(added).gpu


def test_cuda_counts_the_granted_gpus_alone_only_where_no_other_can_be_opened(tmp_path):
    for number in range(3):
        (tmp_path / f"nvidia{number}").touch()
    assert shared_gpus.visible_number(2, [1, 2], tmp_path) == 2
    assert shared_gpus.visible_number(2, [1, 2], tmp_path / "none") == 2


def test_cuda_counts_from_0_where_a_device_cgroup_closes_the_others(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"nvidia{number}").touch()

    def opened(path, flags):
        raise PermissionError(1, "Operation not permitted")  # EPERM, as of the cgroup

    monkeypatch.setattr(os, "open", opened)
    assert shared_gpus.visible_number(2, [1, 2], tmp_path) == 1


def member(job: str, **changes: object) -> status.Member:
    return replace(status.Member(Role.GUARANTEE, job, 1, os.getuid(), 100, 3 << 30), **changes)


def gpu(**changes: object) -> status.Gpu:
    plain = status.Gpu(
        *("gpu1", "H100", False, 80 << 30, 5 << 30, 0.456, "gaps", "", 1 << 30),
        guarantee=member("17"),
        guarantee_slowdown=0.0123,
        opportunistic_share=0.5,
    )
    return replace(plain, **changes)


def uses(tmp_path, *gpus: status.Gpu, age_s: float = 0.0):
    (tmp_path / "n1").mkdir()
    status.write(status.NodeStatus("n1", 1, time.time() - age_s, gpus), tmp_path / "n1")
    return gpu_uses.gpu_uses("n1", "17", {environment.FOLDER: f"{tmp_path}/%N"})


def test_the_leader_reports_the_gpu_that_its_job_holds(tmp_path):
    (use,) = uses(tmp_path, gpu(), gpu(name="gpu0", guarantee=member("16")))
    assert (use.node, use.gpu, use.utilization, use.steady) == ("n1", 1, 0.46, True)
    assert (use.memory_mib, use.peak_mib) == (80 << 10, 3 << 10)
    assert (use.slowdown, use.opportunistic_share) == (0.0123, 0.5)


def test_it_reports_the_most_that_its_job_has_held_and_not_what_it_holds_now(tmp_path):
    (use,) = uses(tmp_path, gpu(guarantee=member("17", peak=30 << 30)))
    assert use.peak_mib == 30 << 10


@pytest.mark.parametrize("of_other", [member("18"), member("17", uid=os.getuid() + 1), None])
def test_it_reports_no_gpu_of_others(tmp_path, of_other):
    assert uses(tmp_path, gpu(guarantee=of_other)) == []


def test_it_reports_nothing_that_is_old(tmp_path):
    assert uses(tmp_path, gpu(), age_s=gpu_uses.OLD_S + 1) == []


def test_without_a_coordinator_there_is_nothing_to_report(tmp_path):
    assert gpu_uses.gpu_uses("n1", "17", {environment.FOLDER: str(tmp_path)}) == []
