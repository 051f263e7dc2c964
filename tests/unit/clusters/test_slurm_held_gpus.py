"""The GPUs that a running job holds, in what `scontrol --details show job --oneliner` prints."""

import tracemalloc

import pytest

from flexo.clusters.slurm.held_gpus import held_gpus

HEAD = "JobId=7 JobName=train UserId=ada(1000) JobState=RUNNING NumNodes=2 "


@pytest.mark.parametrize(
    ("shown", "held"),
    [
        ("Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:1(IDX:3)", {("n1", 3)}),
        ("Nodes=n1 CPU_IDs=0 Mem=100 GRES=gpu:h100:2(IDX:0-1),spare:s0:0(IDX:)", {("n1", 0), ("n1", 1)}),
        ("Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a:1(IDX:2)", {("n1", 2), ("n2", 2)}),
        (
            "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0,3) Nodes=n2 CPU_IDs=4 Mem=0 GRES=gpu:1(IDX:1)",
            {("n1", 0), ("n1", 3), ("n2", 1)},
        ),
        ("Nodes=n1 CPU_IDs=0 Mem=0 GRES=", set()),
        ("Nodes=n1 CPU_IDs=0 Mem=0 GRES=spare:s1:1(IDX:1)", set()),
    ],
)
def test_each_gpu_has_its_node_and_its_number(shown, held):
    assert held_gpus(f"{HEAD}JOB_GRES=gpu:2 {shown} MinCPUsNode=1", ("n1", "n2")) == held


def test_a_name_that_looks_like_gpus_adds_to_those_that_the_job_holds():
    forged = "JobName=x Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:5) "
    assert len(held_gpus(f"JobId=7 {forged}Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3)", ["n1"])) == 2


@pytest.mark.parametrize(
    ("nodes", "numbers"),
    [
        ("t1", "-"),
        ("t1", "0-"),
        ("t1", "0--1"),
        ("t1", "1,,2"),
        ("t1", "0-10000000"),
        ("t1", "99999999999"),
        ("t[a]", "0"),
        ("t[1", "0"),
        ("t[1-2000000]", "0"),
        ("t[1-1000]", "0-999"),
    ],
)
def test_a_name_that_looks_like_gpus_that_nobody_has_costs_nothing_and_hides_none(nodes, numbers):
    forged = f"JobName=x Nodes={nodes} CPU_IDs=0 Mem=0 GRES=gpu(IDX:{numbers}) "
    real = "Nodes=t1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3)"
    assert held_gpus(f"JobId=7 {forged}{real}", ["t1"]) == {("t1", 3)}


def test_lists_of_a_million_nodes_in_a_name_are_not_expanded():
    forged = "".join(f"Nodes=x{each}[0-999999] CPU_IDs=0 Mem=0 GRES=gpu(IDX:0) " for each in range(17))
    tracemalloc.start()
    held_gpus(f"JobId=7 JobName={forged}", ["t1"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000
