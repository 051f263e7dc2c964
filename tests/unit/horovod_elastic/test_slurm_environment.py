"""What the environment of a batch script says of its job, as Slurm 22.05 writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from horovod_elastic.job_plan import Site
from horovod_elastic.platforms.base import NotInAJob, with_satellite_options
from horovod_elastic.platforms.slurm import commands, environment
from horovod_elastic.platforms.slurm.commands import clean_environment
from horovod_elastic.platforms.slurm.environment import allocation, base_job, with_recorded_options
from horovod_elastic.platforms.slurm.platform import SlurmPlatform

ONE_NODE = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "t1",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_GPUS_PER_TASK": "1",
    "SLURM_JOB_GPUS": "0,1",
    "SLURM_MEM_PER_CPU": "4000",
}


@pytest.fixture
def hostnames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expands t[1-N] without scontrol."""

    def expand(nodelist: str) -> list[str]:
        return [f"t{n}" for n in range(1, int(nodelist[4:-1]) + 1)] if "[" in nodelist else [nodelist]

    monkeypatch.setattr(environment, "node_names", expand)


def several(nodes: int, tasks_per_node: str, **more: str) -> dict[str, str]:
    return {
        **ONE_NODE,
        "SLURM_JOB_NODELIST": f"t[1-{nodes}]",
        "SLURM_TASKS_PER_NODE": tasks_per_node,
        **more,
    }


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in ONE_NODE.items() if name not in names}


def test_an_ordinary_job_has_its_tasks_as_workers_and_is_not_elastic() -> None:
    base = base_job(ONE_NODE)
    assert (base.job_id, base.restart_count, base.workers) == ("17", 0, 2)
    assert (base.minimum, base.maximum, base.elastic, base.declared) == (2, 2, False, False)
    assert (base.shape.gpus, base.shape.cpus, base.shape.memory_mib, base.shape.gpu_type) == (1, 1, 4000, "")


def test_the_range_comes_from_the_plugin() -> None:
    base = base_job({**ONE_NODE, "FLEXO_ELASTIC": "2-8", "SLURM_RESTART_COUNT": "3"})
    assert (base.minimum, base.maximum, base.elastic, base.restart_count) == (2, 8, True, 3)


def test_a_job_with_a_range_of_one_size_does_not_grow_and_is_flexods_all_the_same() -> None:
    base = base_job({**ONE_NODE, "FLEXO_ELASTIC": "2-2"})
    assert (base.minimum, base.maximum, base.elastic, base.declared) == (2, 2, False, True)


def test_a_base_that_is_larger_than_its_range_keeps_what_it_has() -> None:
    base = base_job({**ONE_NODE, "FLEXO_ELASTIC": "1-1"})
    assert (base.minimum, base.maximum) == (1, 2)


@pytest.mark.parametrize("text", ["8-2", "0-3", "two", "2", "1-2-3", "-1-4"])
def test_a_range_that_cannot_be_is_refused_by_name(text: str) -> None:
    with pytest.raises(NotInAJob, match=f"FLEXO_ELASTIC is '{text}'"):
        base_job({**ONE_NODE, "FLEXO_ELASTIC": text})


def test_outside_a_job_the_user_is_told_how_to_submit_one() -> None:
    with pytest.raises(NotInAJob, match="sbatch -n 2"):
        base_job({"PATH": "/bin"})


@pytest.mark.parametrize(
    ("text", "nodes", "counts"),
    [("2,1", 2, [2, 1]), ("2(x3),1", 4, [2, 2, 2, 1]), ("4,1(x2)", 3, [4, 1, 1]), ("1(x2)", 2, [1, 1])],
)
@pytest.mark.usefixtures("hostnames")
def test_tasks_of_each_node_are_read(text: str, nodes: int, counts: list[int]) -> None:
    base = base_job(several(nodes, text))
    assert [node.workers for node in base.nodes] == counts
    assert [node.name for node in base.nodes] == [f"t{n}" for n in range(1, nodes + 1)]


@pytest.mark.parametrize("text", ["", "x", "2(x", "1,,2", "0,1"])
@pytest.mark.usefixtures("hostnames")
def test_tasks_that_cannot_be_read_are_shown(text: str) -> None:
    with pytest.raises(NotInAJob, match="SLURM_TASKS_PER_NODE is"):
        base_job(several(2, text))


@pytest.mark.usefixtures("hostnames")
def test_tasks_for_another_number_of_nodes_are_refused() -> None:
    with pytest.raises(NotInAJob, match="for 3 nodes"):
        base_job(several(3, "1(x2)"))


@pytest.mark.usefixtures("hostnames")
def test_without_n_there_is_one_worker_a_node_whatever_slurm_counts() -> None:
    environment = several(2, "8(x2)")
    del environment["SLURM_NTASKS"]
    assert [node.workers for node in base_job(environment).nodes] == [1, 1]


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("SLURM_GPUS_PER_TASK", "2", ("", 2)),
        ("SLURM_GPUS_PER_TASK", "a100:2", ("a100", 2)),
        ("SLURM_GPUS_PER_TASK", "v100", ("v100", 1)),
        ("SLURM_GPUS_PER_TASK", "2080ti:1", ("2080ti", 1)),
        ("SLURM_GPUS_PER_TASK", "1g.10gb:3", ("1g.10gb", 3)),
        ("SLURM_TRES_PER_TASK", "gres/gpu:v100:2", ("v100", 2)),
        ("SLURM_TRES_PER_TASK", "cpu:4,gres/gpu=3", ("", 3)),
        ("SLURM_TRES_PER_TASK", "cpu:4,license/gpu:9", ("", 0)),
        ("SLURM_GPUS_PER_NODE", "4", ("", 2)),
        ("SLURM_GPUS_PER_NODE", "h100_sxm:4", ("h100_sxm", 2)),
        ("SLURM_GPUS", "2", ("", 1)),
        ("SLURM_JOB_GPUS", "0,1,2,3", ("", 2)),
        ("SLURM_JOB_GPUS", "", ("", 0)),
    ],
)
def test_gpus_of_a_worker_in_all_ways_to_ask_for_them(
    variable: str, text: str, expected: tuple[str, int]
) -> None:
    shape = base_job(without("SLURM_GPUS_PER_TASK", "SLURM_JOB_GPUS") | {variable: text}).shape
    assert (shape.gpu_type, shape.gpus) == expected


@pytest.mark.parametrize("text", ["a100:1,v100:1", "a100:b", ":2", "-1"])
def test_gpus_of_several_types_are_refused(text: str) -> None:
    with pytest.raises(NotInAJob, match="SLURM_GPUS_PER_TASK"):
        base_job({**ONE_NODE, "SLURM_GPUS_PER_TASK": text})


@pytest.mark.usefixtures("hostnames")
def test_on_uneven_nodes_what_each_node_has_does_for_the_fullest() -> None:
    environment = several(
        2, "1,3", SLURM_GPUS_PER_NODE="3", SLURM_MEM_PER_NODE="6000", SLURM_CPUS_PER_TASK="2"
    )
    del environment["SLURM_GPUS_PER_TASK"], environment["SLURM_MEM_PER_CPU"]
    shape = base_job(environment).shape
    assert (shape.gpus, shape.cpus, shape.memory_mib) == (1, 2, 2000)


@pytest.mark.parametrize(
    ("environment", "memory_mib"),
    [
        ({"SLURM_MEM_PER_CPU": "500", "SLURM_CPUS_PER_TASK": "3"}, 1500),
        ({"SLURM_MEM_PER_GPU": "700", "SLURM_GPUS_PER_TASK": "2"}, 1400),
        ({"SLURM_MEM_PER_NODE": "3001"}, 1500),
        ({"SLURM_MEM_PER_NODE": "0"}, 0),
        ({}, 0),
    ],
)
def test_memory_of_a_worker(environment: dict[str, str], memory_mib: int) -> None:
    assert base_job(without("SLURM_MEM_PER_CPU") | environment).shape.memory_mib == memory_mib


def test_cpus_without_c_are_the_nodes_shared_out() -> None:
    assert base_job({**ONE_NODE, "SLURM_CPUS_ON_NODE": "7"}).shape.cpus == 3
    assert base_job({**ONE_NODE, "SLURM_CPUS_ON_NODE": "1"}).shape.cpus == 1


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JOB_ID", "SLURM_GPUS_PER_TASK", "SLURM_MEM_PER_CPU", "SBATCH_PARTITION", "SRUN_DEBUG"),
        *("SQUEUE_STATES", "SQUEUE_FORMAT"),
        *("SPANK_ELASTIC", "_SLURM_SPANK_OPTION_elastic_elastic", "SLURMD_NODENAME", "SALLOC_ACCOUNT"),
        *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "PMI_RANK", "PMIX_RANK"),
        *("OMPI_COMM_WORLD_RANK", "FLEXO_ELASTIC", "FLEXO_ELASTIC_BATCH"),
    ],
)
def test_what_would_change_a_satellite_is_removed(name: str) -> None:
    assert clean_environment({name: "1"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "SLURM_CONF",
            "PATH",
            "HOME",
            "LD_LIBRARY_PATH",
            "FLEXO_DAEMON",
            "FLEXO_JOB_ID",
            "FLEXO_MUNGE_SOCKET",
        ),
        *("CUDA_HOME", "CUDA_VISIBLE_DEVICES_OF_MINE", "MY_SLURM_NOTE", "BASH_FUNC_module%%"),
    ],
)
def test_what_is_the_users_own_stays(name: str) -> None:
    assert clean_environment({name: "x\ny"}) == {name: "x\ny"}


@pytest.mark.parametrize(
    ("comment", "range_", "batch"),
    [
        ("flexo{workers=2-8}", "2-8", ""),
        ("site:gold flexo{workers=2-8;fungible;batch=32-256}", "2-8", "32-256"),
        ("flexo{workers=2-8;batch=64-64;fungible} site:gold", "2-8", "64-64"),
        ("(null)", None, None),
        ("flexo{workers=8}", None, None),
    ],
)
def test_ranges_that_were_said_by_comment_are_read_where_the_plugin_recorded_them(
    comment: str, range_: str | None, batch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = f"JobId=17 JobName=x Comment=elastic=2-8 AdminComment={comment} StdOut=/home/u/out"
    monkeypatch.setattr(commands, "ask", lambda command, environment: shown)
    found = with_recorded_options({"SLURM_JOB_ID": "17"})
    assert (found.get("FLEXO_ELASTIC"), found.get("FLEXO_ELASTIC_BATCH")) == (range_, batch)


def test_whether_its_workers_may_be_on_several_gpu_types_comes_from_the_plugin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not base_job(ONE_NODE).heterogeneous
    assert base_job({**ONE_NODE, "FLEXO_ELASTIC_HETEROGENEOUS": "1"}).heterogeneous
    for token, recorded in (("workers=2-8;heterogeneous", True), ("workers=2-8;fungible", False)):
        shown = f"JobId=17 AdminComment=flexo{{{token}}} StdOut=/home/u/out"
        monkeypatch.setattr(commands, "ask", lambda command, environment, shown=shown: shown)
        found = with_recorded_options({**ONE_NODE, "SLURM_JOB_ID": "17"})
        assert base_job(found).heterogeneous == recorded


def test_the_batches_that_a_job_may_train_with_come_from_the_plugin() -> None:
    assert base_job(ONE_NODE).batch == ""
    assert base_job({**ONE_NODE, "FLEXO_ELASTIC_BATCH": "32-256"}).batch == "32-256"


@pytest.mark.parametrize(
    ("said", "gpus"), [("2,3", (2, 3)), ("0", (0,)), ("", ()), ("gpu-7f", ()), (None, ())]
)
def test_the_gpus_of_a_node_are_known_by_slurms_numbers_or_not_at_all(
    said: str | None, gpus: tuple[int, ...]
) -> None:
    assert allocation({} if said is None else {"SLURM_JOB_GPUS": said}).gpus == gpus


def test_a_step_knows_its_own_gpus_where_slurm_tells_it_no_others() -> None:
    assert allocation({"SLURM_STEP_GPUS": "3"}).gpus == (3,)
    assert allocation({"SLURM_STEP_GPUS": "3", "SLURM_JOB_GPUS": "2,3"}).gpus == (3,)


@pytest.mark.parametrize(
    ("token", "opportunistic", "size", "cohost"),
    [
        ("workers=1-4;opportunistic", True, (1, 4), False),
        ("workers=1-4;opportunistic=auto", True, (1, 4), False),
        ("workers=2-8;cohost", False, (2, 8), True),
        ("workers=2-2;fungible;cohost", False, (2, 2), True),
    ],
)
def test_whose_gpus_a_job_uses_is_known_although_it_was_said_in_a_comment(
    token: str, opportunistic: bool, size: tuple[int, int], cohost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = f"JobId=17 AdminComment=flexo{{{token}}} StdOut=/home/u/out"
    monkeypatch.setattr(commands, "ask", lambda command, environment: shown)
    base = base_job(with_recorded_options({**ONE_NODE, "SLURM_JOB_ID": "17"}))
    assert (base.opportunistic, (base.minimum, base.maximum), base.cohost) == (opportunistic, size, cohost)


def test_what_a_comment_or_the_site_adds_to_an_option_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "JobId=17 AdminComment=flexo{workers=2-4;heterogeneous;batch=32-256;cohost} StdOut=/home/u/out"
    monkeypatch.setattr(commands, "ask", lambda command, environment: shown)
    base = base_job(with_recorded_options({**ONE_NODE, "SLURM_JOB_ID": "17", "FLEXO_ELASTIC": "2-4"}))
    assert (base.heterogeneous, base.batch, base.cohost) == (True, "32-256", True)


@pytest.mark.parametrize(
    ("gres", "kind"),
    [("gres:gpu:v100:2", "v100"), ("gres/disk,gres/gpu:a100:2", "a100"), ("gres:gpu:2", "")],
)
def test_the_gpu_type_that_was_said_by_gres_is_known(
    gres: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = f"JobId=17 AdminComment=flexo{{workers=2-4}} StdOut=/home/u/out TresPerNode={gres}"
    monkeypatch.setattr(commands, "ask", lambda command, environment: shown)
    shape = base_job(with_recorded_options(without("SLURM_GPUS_PER_TASK"))).shape
    assert (shape.gpus, shape.gpu_type) == (1, kind)


@pytest.mark.parametrize("variable", ["FLEXO_ELASTIC", "FLEXO_ELASTIC_OPPORTUNISTIC"])
def test_the_range_of_an_option_is_known_although_slurm_does_not_answer(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(command: list[str], environment: Mapping[str, str]) -> str:
        raise NotInAJob("scontrol: no answer")

    monkeypatch.setattr(commands, "ask_patiently", refuses)
    said = {**ONE_NODE, variable: "2-4"}
    assert with_recorded_options(said) == said


@pytest.mark.parametrize(
    ("task", "binds", "proctrack", "reach_all"),
    [
        ("task/none", False, "proctrack/linuxproc", True),
        ("task/affinity", True, "proctrack/cgroup", False),
        ("task/affinity,task/cgroup", True, "proctrack/cgroup", False),
    ],
)
def test_what_matters_of_the_clusters_configuration_is_read(
    task: str, binds: bool, proctrack: str, reach_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (
        "Configuration data as of 2026-01-01T00:00:00\n"
        f"ProctrackType           = {proctrack}\nSlurmctldHost[0]        = head(10.0.0.1)\n"
        f"TaskPlugin              = {task}\nTaskPluginParam         = (null type)\n"
    )
    monkeypatch.setattr(commands, "ask", lambda command, environment: shown)
    assert SlurmPlatform({}).site() == Site(binds, reach_all, "head")


def told(environment: dict[str, str]) -> tuple[str, ...]:
    """The options that satellites of the job repeat."""
    platform = SlurmPlatform(environment)
    return with_satellite_options(platform.base_job(), platform).satellite_options


@pytest.mark.parametrize(
    ("said", "options"),
    [
        (
            "normal|*vision|t[1-2],t4|a100&ib",
            ("--qos=normal", "--wckey=vision", "--exclude=t[1-2],t4", "--constraint=a100&ib"),
        ),
        ("high|(null)||(a100&ib)|h100", ("--qos=high", "--constraint=(a100&ib)|h100")),
        ("(null)|(null)|(null)|(null)", ()),
        ("N/A|N/A||(null)", ()),
    ],
)
def test_qos_excluded_nodes_and_constraint_of_the_base_are_its_satellites_too(
    said: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "ask", lambda command, environment: f"{said}\n")
    elastic = {**ONE_NODE, "FLEXO_ELASTIC": "2-8"}
    assert told(elastic) == options


def test_slurm_is_not_asked_what_satellites_inherit_if_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only_the_record(command: list[str], environment: Mapping[str, str]) -> str:
        assert command[:3] == ["scontrol", "show", "job"]
        return "JobId=17 AdminComment=flexo{workers=2-2} StdOut=/home/u/out"

    monkeypatch.setattr(commands, "ask", only_the_record)
    assert told({**ONE_NODE, "FLEXO_ELASTIC": "2-2"}) == ()


@pytest.mark.parametrize("said", ["", "normal|(null)", "a|b|c|d\ne|f|g|h"])
def test_a_request_that_cannot_be_read_is_an_error_and_not_dropped(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "ask", lambda command, environment: f"{said}\n")
    with pytest.raises(NotInAJob, match="excluded nodes"):
        told({**ONE_NODE, "FLEXO_ELASTIC": "2-8"})


SCONTROL = """#!/bin/sh
echo "$1" >> "$(dirname "$0")/asked"
[ -e "$(dirname "$0")/down" ] && down=1
if [ "$1" = ping ]; then
  [ -n "$down" ] && state=DOWN || state=UP
  echo "Slurmctld(primary) at head is $state"
  n=$(grep -c ping "$(dirname "$0")/asked"); [ "$n" -ge 3 ] && rm -f "$(dirname "$0")/down"
  exit 0
fi
[ -n "$down" ] && exit 1
[ -e "$(dirname "$0")/refuses" ] && { echo "Invalid job id specified" >&2; exit 1; }
echo "SlurmctldHost[0] = head(10.0.0.1)"
"""
"""Down until it was pinged three times, where there is a file `down`."""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(commands, "PAUSE_S", 0.01)
    return tmp_path


@pytest.mark.processes
def test_a_job_that_starts_while_slurmctld_is_down_waits_for_it(scontrol: Path) -> None:
    (scontrol / "down").touch()
    assert SlurmPlatform(os.environ).site().controller == "head"
    assert (scontrol / "asked").read_text().split().count("ping") == 3


@pytest.mark.processes
def test_it_does_not_wait_for_ever(scontrol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "RESTARTS_WITHIN_S", 0.0)
    (scontrol / "down").touch()
    with pytest.raises(NotInAJob, match="scontrol show config"):
        SlurmPlatform(os.environ).site()


@pytest.mark.processes
def test_what_slurm_refuses_while_it_is_up_is_asked_twice_at_most(scontrol: Path) -> None:
    (scontrol / "refuses").touch()
    with pytest.raises(NotInAJob, match="Invalid job id"):
        with_recorded_options({"SLURM_JOB_ID": "17", "PATH": os.environ["PATH"]})
    assert (scontrol / "asked").read_text().split() == ["show", "show", "ping"]


@pytest.mark.processes
def test_without_slurm_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(commands, "PAUSE_S", 60.0)
    with pytest.raises(NotInAJob, match="not on PATH"):
        SlurmPlatform(os.environ).site()


def test_an_opportunistic_base_has_no_workers() -> None:
    one_task = {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "4"}
    text = {"FLEXO_ELASTIC_OPPORTUNISTIC": "2-8", "SLURM_JOB_ACCOUNT": "a"}
    base = base_job({**without("SLURM_GPUS_PER_TASK", "SLURM_JOB_GPUS"), **one_task, **text})
    assert (base.minimum, base.maximum, base.workers) == (2, 8, 0)
    assert (base.opportunistic, base.elastic, base.declared, base.account) == (True, True, True, "a")
    assert [(node.name, node.workers) for node in base.nodes] == [("t1", 0)]
    assert (base.shape.gpus, base.shape.cpus, base.shape.memory_mib) == (1, 4, 16000)


@pytest.mark.parametrize(("text", "sizes"), [("2-8,auto", (2, 8)), ("3-3", (3, 3))])
def test_the_range_of_an_opportunistic_job_may_be_of_one_size_and_automatic(
    text: str, sizes: tuple[int, int]
) -> None:
    base = base_job({**ONE_NODE, "FLEXO_ELASTIC_OPPORTUNISTIC": text})
    assert (base.minimum, base.maximum) == sizes
    assert base.elastic


@pytest.mark.parametrize("text", ["8-2", "0-4", "2", "2-8,often", "2-8,", "auto"])
def test_a_range_of_an_opportunistic_job_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(NotInAJob, match="FLEXO_ELASTIC_OPPORTUNISTIC"):
        base_job({**ONE_NODE, "FLEXO_ELASTIC_OPPORTUNISTIC": text})


def test_a_job_is_elastic_or_opportunistic() -> None:
    with pytest.raises(NotInAJob, match="--elastic-opportunistic"):
        base_job({**ONE_NODE, "FLEXO_ELASTIC": "2-8", "FLEXO_ELASTIC_OPPORTUNISTIC": "2-8"})


@pytest.mark.usefixtures("hostnames")
def test_an_opportunistic_base_of_several_nodes_is_refused() -> None:
    with pytest.raises(NotInAJob, match="one node"):
        base_job(several(2, "1(x2)", SLURM_NTASKS="2", FLEXO_ELASTIC_OPPORTUNISTIC="2-8"))
