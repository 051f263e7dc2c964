"""Which GPUs a worker sees, which signals reach it, and what an agent ends with that cannot work."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn

import pytest

from flexo_protos.credentials import NotAuthentic
from flexo_protos.resources import Resources
from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic import job_plan
from horovod_elastic.agent import process
from horovod_elastic.agent.agent import TERMINATED, AgentOptions
from horovod_elastic.agent.supervisor import EXIT_CANNOT_WORK, EXIT_TRY_AGAIN
from horovod_elastic.agent.worker_environment import (
    WorkerLocation,
    devices_seen,
    environment_of,
    projected,
)
from horovod_elastic.core import choice
from horovod_elastic.sharing.supervisor import ENDED


@pytest.mark.parametrize(
    ("gpus", "slot", "local_rank", "seen"),
    [
        (1, 0, 0, "0,1,2"),
        (1, 1, 1, "0,1,2"),
        (1, 0, 1, "1,0,2"),
        (1, 2, 0, "2,1,0"),
        (1, 3, 0, "0,1,2"),
        (2, 0, 0, "0,1"),
        (2, 1, 0, "2"),
    ],
)
def test_the_gpu_of_its_slot_is_where_the_script_looks(
    gpus: int, slot: int, local_rank: int, seen: str
) -> None:
    found = devices_seen(["0", "1", "2"], gpus, slot, local_rank)
    assert ",".join(found) == seen
    if gpus == 1 and slot < 3:
        assert found[local_rank] == str(slot)


@pytest.mark.parametrize(
    ("core", "users", "timeout"),
    [
        (choice.TORCH, None, "120"),
        (choice.HOROVOD, None, None),
        (choice.TORCH, "7", "7"),
        (choice.HOROVOD, "7", "7"),
    ],
)
def test_horovods_library_keeps_its_own_timeout_and_everybody_the_users(
    monkeypatch: pytest.MonkeyPatch, core: str, users: str | None, timeout: str | None
) -> None:
    variable = "HOROVOD_GLOO_TIMEOUT_SECONDS"
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(choice.VARIABLE, core)
    if users is not None:
        monkeypatch.setenv(variable, users)
    job = job_plan.BaseJob("1", 0, (job_plan.BaseNode("n1", 1),), Resources(0, 1, 0, ""), 1, 2, "")
    supervisor = SimpleNamespace(endpoint="unix:x", secret="s")
    place = WorkerLocation("n1", "lo", 1, True)
    environment = environment_of(pb.StartWorker(worker_id="w1"), place, supervisor, job)  # type: ignore[arg-type]
    assert environment.get(variable) == timeout


@pytest.mark.parametrize(
    ("said", "address", "port", "role"),
    [
        ({}, "n1", "20017", "default"),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "ROLE_NAME": "t"}, "10.0.0.1", "29500", "t"),
    ],
)
def test_a_worker_has_torchruns_variables_and_the_users_own_address_counts(
    said: dict[str, str], address: str, port: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    job = job_plan.BaseJob("17", 0, (job_plan.BaseNode("n1", 2),), Resources(0, 1, 0, ""), 2, 2, "")
    rank = pb.ProjectedRank(rank=1, size=2, local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    order = pb.StartWorker(worker_id="w2", slot=1, projected_rank=rank)
    supervisor = SimpleNamespace(endpoint="unix:x", secret="s")
    environment = environment_of(order, WorkerLocation("n1", "lo", 2, True), supervisor, job)  # type: ignore[arg-type]
    ranks = [environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    assert ranks == ["1", "2", "1", "2"]
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == (address, port)
    assert environment["ROLE_NAME"] == role


@pytest.mark.parametrize(("threads", "told"), [(None, "4"), ("", "4"), ("3", "3")])
def test_a_worker_has_as_many_threads_as_processors_unless_the_user_says_a_number(
    monkeypatch: pytest.MonkeyPatch, threads: str | None, told: str
) -> None:
    """Workers of a job of 1-8 may share a node though its base has one: torchrun's rule is not enough."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    job = job_plan.BaseJob("17", 0, (job_plan.BaseNode("n1", 1),), Resources(1, 4, 0, ""), 1, 8, "")
    supervisor = SimpleNamespace(endpoint="unix:x", secret="s")
    place = WorkerLocation("n1", "lo", 1, True)
    environment = environment_of(pb.StartWorker(worker_id="w1"), place, supervisor, job)  # type: ignore[arg-type]
    assert environment["OMP_NUM_THREADS"] == told


@pytest.mark.parametrize(("threads", "told"), [(None, "1"), ("3", "3")])
def test_a_virtual_worker_has_its_own_rank_and_the_gpu_of_its_slot(
    monkeypatch: pytest.MonkeyPatch, threads: str | None, told: str
) -> None:
    """The number of threads changes the order of sums, so it must not depend on the node."""
    monkeypatch.setenv("FLEXO_REPRODUCIBLE", "8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    job = job_plan.BaseJob("17", 0, (job_plan.BaseNode("n1", 2),), Resources(1, 1, 0, ""), 2, 8, "")
    rank = pb.ProjectedRank(rank=7, size=8, local_rank=1, local_size=2)
    order = pb.StartWorker(worker_id="w2", slot=1, projected_rank=rank)
    supervisor = SimpleNamespace(endpoint="unix:x", secret="s")
    environment = environment_of(order, WorkerLocation("n1", "lo", 2, True), supervisor, job)  # type: ignore[arg-type]
    ranks = [environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    assert ranks == ["7", "8", "1", "2"]
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["FLEXO_BASE"]) == ("4,6", "8")
    assert environment["OMP_NUM_THREADS"] == told


@pytest.mark.parametrize(
    ("node", "slot", "newcomer", "ranks"),
    [
        ("n1", 0, False, (0, 6, 0, 3, 0, 3)),
        ("n1", 2, False, (2, 6, 2, 3, 0, 1)),
        ("n2", 0, False, (3, 6, 0, 1, 1, 3)),
        ("n3", 1, False, (5, 6, 1, 2, 1, 2)),
        ("n1", 0, True, (7, 8, 0, 1, 0, 1)),
        ("n9", 0, False, (7, 8, 0, 1, 0, 1)),
    ],
)
def test_founders_know_their_places_before_the_leader_has_heard_of_all_nodes(
    node: str, slot: int, newcomer: bool, ranks: tuple[int, ...]
) -> None:
    """As membership/roster.py places them. For newcomers and other agents, the leader's word counts."""
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    nodes = tuple(job_plan.BaseNode(name, workers) for name, workers in (("n1", 3), ("n2", 1), ("n3", 2)))
    job = job_plan.BaseJob("1", 0, nodes, Resources(0, 1, 0, ""), 6, 9, "")
    said = pb.ProjectedRank(rank=7, size=8, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    order = pb.StartWorker(worker_id="w1", slot=slot, newcomer=newcomer, projected_rank=said)
    found = projected(order, WorkerLocation(node, "lo", 3, True), job)
    assert tuple(getattr(found, name) for name in names) == ranks


def post(*, base: bool = True, pass_signals: bool = False) -> AgentOptions:
    return AgentOptions(1, base, "", False, pass_signals, ())


@pytest.mark.parametrize(("passes", "signalled"), [(True, ("w1", "w2")), (False, ())])
def test_signals_are_passed_on_where_slurm_reaches_the_agent_alone(
    passes: bool, signalled: tuple[str, ...]
) -> None:
    assert post(pass_signals=passes).signalled(["w1", "w2"]) == signalled


@pytest.mark.parametrize(
    ("again", "error", "code"),
    [
        (False, NotAuthentic("MUNGE gave no credential"), EXIT_CANNOT_WORK),
        (True, NotAuthentic("MUNGE gave no credential"), EXIT_TRY_AGAIN),
        (True, ValueError("no plan"), EXIT_CANNOT_WORK),
    ],
)
def test_what_was_there_for_the_agent_before_is_away_only_for_now(
    again: bool,
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(process, "SupervisorLink", lambda: SimpleNamespace(again=again))
    monkeypatch.setattr(job_plan, "from_text", lambda text: None)
    monkeypatch.setattr(process, "Agent", fail)
    assert process.main(["--slots", "1", "--job", "{}", "--base", "--", "train"]) == code
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("base", "workers", "code"),
    [(False, 0, 0), (False, 1, None), (True, 1, TERMINATED), (True, 0, TERMINATED)],
)
def test_an_agent_that_has_to_go_and_has_no_leader_ends_unless_workers_train_beside_it(
    base: bool, workers: int, code: int | None
) -> None:
    assert post(base=base).leaves_with(workers) == code


@pytest.mark.parametrize(
    ("shared", "exit_code", "lost"),
    [((1,), ENDED, True), ((1,), 1, False), ((1,), 0, False), ((1,), -9, False), ((), ENDED, False)],
)
def test_a_worker_that_its_supervisor_ended_on_a_shared_gpu_has_not_failed(
    shared: tuple[int, ...], exit_code: int, lost: bool
) -> None:
    satellite = replace(post(base=False), shared_gpus=shared)
    assert satellite.has_lost_its_gpu(exit_code) is lost
