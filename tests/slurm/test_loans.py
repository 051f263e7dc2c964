"""Servers lent on a real cluster: who may edit, who is taken first, and what Slurm does with flexod dead."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo.clusters.base import ActionRefused, Borrowed, Site
from flexo.clusters.slurm.adapter import SlurmCluster
from flexo.clusters.slurm.settings import SlurmSettings
from flexo_lab import Lab

PLUGIN = Path(__file__).parents[2] / "slurm_plugin"
SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
DATA = Path(__file__).parents[1] / "training" / "scripts" / "elastic_data.py"
GOES_ON = Path(__file__).parents[1] / "training" / "scripts" / "saved_before.py"
BOUND_S = 90
GRACE_S, KILL_WAIT_S, EPILOG_S = 20, 10, 5
"""As the lab's slurm.conf has them; it has no epilog, so that is what ending a job's processes takes."""
SLEEP = "exec srun sleep 600"
FUNGIBLE = ("-N1", "-n2", "--gpus-per-task=1", "--elastic=2-2", "--elastic-fungible")
MIXED = ("-n1", "--gpus-per-task=v100:1", "--elastic=1-2", "--elastic-heterogeneous")
TAG = "--comment=flexo-satellite base=987654 restart=0 grant=g1 workers=2"
SATELLITE = ("-N1", "--gres=gpu:2", "--no-requeue", "--time=5", TAG, "--partition=borrowed-flex")


@pytest.fixture(scope="module")
def lending_lab(make_lab: LabFactory) -> Iterator[Lab]:
    lab = make_lab(nodes=2, gpus_per_node=2, infer_nodes=2, loans=True, flexod=False)
    yield lab
    lab.down()


@pytest.fixture
def quiet_lab(lending_lab: Lab) -> Iterator[Lab]:
    """That lab, with nothing lent and flexod away; handed on like that, and without jobs."""
    yield lending_lab
    lending_lab.stop_flexod(kill=True)
    cancel_all_jobs(lending_lab)
    _cluster(lending_lab).lend(frozenset())


def _cluster(lab: Lab, *command: str) -> SlurmCluster:
    borrowed = Borrowed("borrowed", command, "borrowed-flex")
    return SlurmCluster(SlurmSettings(conf=lab.layout.slurm_conf), Site(borrowed))


def _lent(lab: Lab) -> set[str]:
    """What both partitions of lent servers hold, while nobody edits them."""
    lent = _lent_by_now(lab)
    assert lent is not None
    return lent


def _lent_by_now(lab: Lab) -> set[str] | None:
    """The same beside a flexod; None where it has edited only one of them yet."""
    partitions = {part.name: part.nodes for part in _cluster(lab).observe().partitions}
    same = partitions["borrowed"] == partitions["borrowed-flex"]
    return set(partitions["borrowed"]) if same else None


def _submit(lab: Lab, *options: str, script: str = SLEEP) -> int:
    command = ["sbatch", "--parsable", "--output=%j.out", *options]
    return int(lab.run(command, stdin=f"#!/bin/sh\n{script}\n").stdout)


def _show(lab: Lab, job_id: int) -> dict[str, str]:
    shown = lab.run(["scontrol", "show", "job", str(job_id), "--oneliner"]).stdout
    return dict(reversed(re.findall(r"(\S+?)=(\S*)", shown)))


def _state(lab: Lab, job_id: int) -> str:
    return _show(lab, job_id)["JobState"]


def _runs(lab: Lab, job_id: int) -> Callable[[], bool]:
    return lambda: _state(lab, job_id) == "RUNNING"


def _wait(what: Callable[[], object], sentence: str, bound_s: float = BOUND_S) -> None:
    deadline = time.monotonic() + bound_s
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {bound_s:.0f} s"
        time.sleep(0.3)


def _loans(lab: Lab) -> dict[str, Any]:
    done = lab.run(["flexo", "loans", "--all", "--json"], check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"loans": [], "past": []}


def _in_the_book(lab: Lab) -> set[str]:
    return {loan["node"] for loan in _loans(lab)["loans"]}


# --- edits ----------------------------------------------------------------------------------------


def test_an_edit_lends_servers_and_takes_them_back_and_jobs_there_run_on(quiet_lab: Lab) -> None:
    cluster = _cluster(quiet_lab)
    cluster.lend(frozenset({"i1", "i2"}))
    assert _lent(quiet_lab) == {"i1", "i2"}
    satellite = _submit(quiet_lab, *SATELLITE, "--nodelist=i1")
    _wait(_runs(quiet_lab, satellite), "the satellite starts")
    cluster.lend(frozenset({"i2"}))
    cluster.lend(frozenset({"i2"}))
    assert _lent(quiet_lab) == {"i2"}
    cluster.lend(frozenset())
    assert (_lent(quiet_lab), _state(quiet_lab, satellite)) == (set(), "RUNNING")
    (seen,) = (job for job in cluster.observe().jobs if job.job_id == satellite)
    assert seen.satellite is not None


def test_a_server_that_there_is_not_is_refused_in_slurms_words_and_nothing_changes(quiet_lab: Lab) -> None:
    _cluster(quiet_lab).lend(frozenset({"i1"}))
    with pytest.raises(ActionRefused, match="Nodes=i1,i77` failed"):
        _cluster(quiet_lab).lend(frozenset({"i1", "i77"}))
    assert _lent(quiet_lab) == {"i1"}


_LEND = """
import sys
from pathlib import Path
from flexo.clusters.base import Borrowed, Site
from flexo.clusters.slurm.adapter import SlurmCluster
from flexo.clusters.slurm.settings import SlurmSettings
conf, nodes, *command = sys.argv[1:]
borrowed = Borrowed("borrowed", tuple(command), "borrowed-flex")
SlurmCluster(SlurmSettings(conf=Path(conf)), Site(borrowed)).lend(frozenset(nodes.split()))
"""


def test_an_ordinary_account_edits_through_the_helper_and_only_as_the_helper_allows(quiet_lab: Lab) -> None:
    helper, rules = _install_helper(quiet_lab)

    def lend(nodes: str, *command: str) -> str:
        """As the account `daemon`, on a host whose sudoers file is ours."""
        program = [sys.executable, "-c", _LEND, str(quiet_lab.layout.slurm_conf), nodes, *command]
        return _on_a_host_with(rules, quiet_lab, program)

    through = ("sudo", "-n", "-u", "slurm", str(helper))
    assert "Invalid user id" in lend("i1")
    assert _lent(quiet_lab) == set()
    assert lend("i1 i2", *through) == ""
    assert _lent(quiet_lab) == {"i1", "i2"}
    refused = lend("t1", *through)
    assert all(name in refused for name in ("'t1'", "'infer'"))
    assert _lent(quiet_lab) == {"i1", "i2"}
    assert lend("", *through) == ""
    assert _lent(quiet_lab) == set()
    scontrol = ["scontrol", "update", "PartitionName=train", "State=DOWN"]
    words = _on_a_host_with(rules, quiet_lab, ["sudo", "-n", "-u", "slurm", *scontrol])
    assert "password is required" in words, "sudo allows the helper and nothing else"
    words = _on_a_host_with(rules, quiet_lab, [*through, "set", "train", ""])
    assert "may not be edited" in words


def _install_helper(lab: Lab) -> tuple[Path, Path]:
    """The helper as `make install-partition` puts it, and sudo's rules as the example has them."""
    if not (shutil.which("sudo") and shutil.which("unshare")):
        pytest.skip("needs sudo and unshare")
    config = lab.layout.plugin / "partition.conf"
    config.write_text(f"borrowed = borrowed, borrowed-flex\nslurm_conf = {lab.layout.slurm_conf}\n")
    make = ["make", "-s", "-C", str(PLUGIN), "install-partition"]
    subprocess.run([*make, f"DESTDIR={lab.layout.plugin}", "PREFIX=", f"FLEXO_CONF={config}"], check=True)
    helper = lab.layout.plugin / "sbin" / "flexo-partition"
    example = (PLUGIN / "sudoers.example").read_text().replace("/usr/sbin/flexo-partition", str(helper))
    rules = lab.layout.plugin / "sudoers"
    rules.write_text(f"root ALL=(ALL:ALL) ALL\n{example.replace('flexo ALL', 'daemon ALL')}")
    rules.chmod(0o440)
    return helper, rules


def _on_a_host_with(rules: Path, lab: Lab, command: list[str]) -> str:
    """Standard error of a command of the account `daemon`; it alone sees the mount, which ends with it."""
    script = f'mount --bind {rules} /etc/sudoers && exec runuser -u daemon -- "$@"'
    return lab.run(["unshare", "--mount", "sh", "-c", script, "sh", *command], check=False).stderr.strip()


# --- who is taken, and what becomes of it ---------------------------------------------------------


def test_a_base_is_requeued_unless_it_may_not_be_and_one_that_has_ended_stays_ended(quiet_lab: Lab) -> None:
    cluster = _cluster(quiet_lab)
    base, fixed = _submit(quiet_lab, "--gres=gpu:1"), _submit(quiet_lab, "--gres=gpu:1", "--no-requeue")
    ended = _submit(quiet_lab, script="exit 0")
    for job_id in (base, fixed):
        _wait(_runs(quiet_lab, job_id), "the job starts")
    _wait(lambda: _state(quiet_lab, ended) == "COMPLETED", "the short job ends")
    cluster.requeue(str(base))
    _wait(lambda: _show(quiet_lab, base)["Restarts"] == "1", "the base is requeued")
    with pytest.raises(ActionRefused, match=f"presently disabled for job {fixed}"):
        cluster.requeue(str(fixed))
    cluster.requeue(str(ended))
    assert (_state(quiet_lab, fixed), _state(quiet_lab, ended)) == ("RUNNING", "COMPLETED")


def test_whole_jobs_start_on_lent_servers_only_if_they_are_fungible(quiet_lab: Lab) -> None:
    _wait(_runs(quiet_lab, _submit(quiet_lab, "-N2", "--gpus-per-node=2")), "the training nodes are full")
    fungible = _submit(quiet_lab, *FUNGIBLE)
    _wait(lambda: _show(quiet_lab, fungible)["Partition"] == "train,borrowed", "it may start in both")
    refused = quiet_lab.run(["sbatch", "-p", "borrowed", "-n1", "--wrap=true"], check=False)
    assert "--elastic-fungible and --elastic-heterogeneous jobs start there" in refused.stderr
    assert _state(quiet_lab, fungible) == "PENDING"
    _cluster(quiet_lab).lend(frozenset({"i2"}))
    _wait(_runs(quiet_lab, fungible), "it starts on the lent server")
    shown = _show(quiet_lab, fungible)
    assert (shown["Partition"], shown["NodeList"], shown["Requeue"]) == ("borrowed", "i2", "1")


@pytest.mark.thorough
def test_slurm_itself_takes_a_server_with_satellites_before_one_with_an_older_base(quiet_lab: Lab) -> None:
    _wait(_runs(quiet_lab, _submit(quiet_lab, "-N2", "--gpus-per-node=2")), "the training nodes are full")
    _cluster(quiet_lab).lend(frozenset({"i1", "i2"}))
    base = _submit(quiet_lab, *FUNGIBLE)
    _wait(_runs(quiet_lab, base), "the base starts")
    satellite = _submit(quiet_lab, *SATELLITE)
    _wait(_runs(quiet_lab, satellite), "the satellite starts")
    inference = _submit(quiet_lab, "--partition=infer", "-N1", "--gpus-per-node=2")
    _wait(_runs(quiet_lab, inference), "the inference job starts")
    assert _state(quiet_lab, base) == "RUNNING"
    assert _show(quiet_lab, inference)["NodeList"] == _show(quiet_lab, satellite)["NodeList"]


def quoted(path: Path) -> str:
    """`path` for a shell: the folder of this checkout may have any name."""
    return shlex.quote(str(path))


def _training(*options: str, script: str = f"{quoted(SCRIPT)} --step-seconds 0.2 --epochs 100000") -> str:
    lines = "".join(f"#SBATCH {option}\n" for option in options)
    return f"{lines}exec flexo run python {script}"


@pytest.mark.training
def test_a_training_base_that_slurm_preempts_is_requeued_and_not_lost(quiet_lab: Lab) -> None:
    """Within the grace time it ends by itself, and Slurm would count it as failed."""
    _wait(_runs(quiet_lab, _submit(quiet_lab, "-N2", "--gpus-per-node=2")), "the training nodes are full")
    _cluster(quiet_lab).lend(frozenset({"i1"}))
    base = _submit(quiet_lab, *FUNGIBLE, script=_training("--open-mode=append"))
    output = quiet_lab.scratch / f"{base}.out"
    _wait(_runs(quiet_lab, base), "the base starts")
    # An agent that has only just been started could not hear of it.
    _wait(lambda: output.exists() and "2 workers on 1 node" in output.read_text(), "it trains", 180)
    inference = _submit(quiet_lab, "--partition=infer", "-w", "i1", "-N1", "--gpus-per-node=2")
    _wait(_runs(quiet_lab, inference), "the inference job starts", GRACE_S + 30 + KILL_WAIT_S + EPILOG_S)
    _wait(lambda: _show(quiet_lab, base)["Restarts"] == "1", "the base is requeued")
    assert _state(quiet_lab, base) == "PENDING", output.read_text()
    assert "the job is requeued" in output.read_text()


# --- with flexod, and without ---------------------------------------------------------------------


@pytest.mark.slow
def test_idle_servers_are_lent_but_for_the_headroom_and_again_when_slurmctld_forgot(
    quiet_lab: Lab,
) -> None:
    quiet_lab.start_flexod()
    _wait(lambda: len(_lent_by_now(quiet_lab) or ()) == 1, "one of two idle servers is lent")
    (server,) = _lent(quiet_lab)
    _wait(lambda: _in_the_book(quiet_lab) == {server}, "flexod says so")
    for forget in (lambda: quiet_lab.run(["scontrol", "reconfigure"]), quiet_lab.restart_slurmctld):
        forget()
        _wait(lambda: _lent_by_now(quiet_lab) == {server}, "it is put back")
    assert _in_the_book(quiet_lab) == {server}
    waiting = [_submit(quiet_lab, "--partition=infer", "-N1", "--gpus-per-node=2") for _ in range(2)]
    for job_id in waiting:
        _wait(_runs(quiet_lab, job_id), "the inference job starts")
    _wait(
        lambda: _lent_by_now(quiet_lab) == set() and _in_the_book(quiet_lab) == set(),
        "the server is inference's own again",
    )


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(600)
def test_with_flexod_killed_in_the_middle_of_a_loan_slurm_alone_gives_the_server_back(quiet_lab: Lab) -> None:
    quiet_lab.start_flexod()
    base = _submit(quiet_lab, script=_training("-n 1", "--gpus-per-task=1", "--elastic=1-3"))
    _wait(_runs(quiet_lab, base), "the base starts")
    _wait(_runs(quiet_lab, _submit(quiet_lab, "-n3", "--gpus-per-task=1")), "the training nodes are full")

    output = quiet_lab.scratch / f"{base}.out"
    _wait(lambda: output.exists() and "3 workers on 2 nodes" in output.read_text(), "it trains there", 180)
    listed = ["squeue", "--noheader", "--partition=borrowed-flex", "--states=R", "--format=%N"]
    (server,) = quiet_lab.run(listed).stdout.split()
    quiet_lab.stop_flexod(kill=True)
    inference = _submit(quiet_lab, "--partition=infer", f"--nodelist={server}", "-N1", "--gpus-per-node=2")
    _wait(_runs(quiet_lab, inference), "it has its server", GRACE_S + 30 + KILL_WAIT_S + EPILOG_S)
    assert _state(quiet_lab, base) == "RUNNING"
    assert _lent(quiet_lab) == {server}, "nobody has edited the partition"
    other = _submit(quiet_lab, "--partition=infer", "-N1", "--gpus-per-node=2")
    _wait(_runs(quiet_lab, other), "the other server is inference's as well")
    quiet_lab.start_flexod()
    _wait(lambda: _lent_by_now(quiet_lab) == _in_the_book(quiet_lab) == set(), "the books are right")
    assert server in {loan["node"] for loan in _loans(quiet_lab)["past"]}
    assert _state(quiet_lab, inference) == _state(quiet_lab, other) == _state(quiet_lab, base) == "RUNNING"


TWO_GPU_TYPES = {
    "nodes": 1,
    "gpus_per_node": 2,
    "gpu_type": "v100",
    "infer_nodes": 2,
    "infer_gpu_type": "t4",
    "loans": True,
}
_SOON = {
    "reclaim_s = 60.0": "reclaim_s = 30.0",
    "preempt_within_s = 35.0": "preempt_within_s = 18.0",
    "save_within_s = 5.0": 'save_within_s = 10.0\ncheckpoint = "{folder}/saved-%j.pt"',
    "force_within_s = 10.0": "force_within_s = 3.0",
}
"""What is different from the lab's usual rules: a base is asked for a checkpoint, and all is over sooner."""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(600)
def test_on_another_gpu_type_only_fungible_jobs_train_and_preempted_they_go_on_from_where_they_were(
    spared_lab: LabFactory,
) -> None:
    """The fungible one is of a fixed size: its leader, too, is asked for a checkpoint."""
    lab = spared_lab(**TWO_GPU_TYPES, flexod=False)
    text = lab.layout.flexo_toml.read_text()
    for usual, here in _SOON.items():
        assert usual in text
        text = text.replace(usual, here.format(folder=lab.scratch))
    lab.layout.flexo_toml.write_text(text)
    lab.start_flexod()
    plain = _submit(lab, script=_training("-n 1", "--gpus-per-task=1", "--elastic=1-3"))
    _wait(_runs(lab, plain), "the job that is not fungible starts")
    filler = _submit(lab, "-n1", "--gpus-per-task=1")
    _wait(_runs(lab, filler), "the training node is full")
    _wait(lambda: len(_in_the_book(lab)) == 1, "one of two idle servers is lent")
    (server,) = _in_the_book(lab)
    _wait(
        lambda: "but they are t4" in lab.run(["flexo", "why", str(plain)], check=False).stdout,
        "it might have more workers, and is told why not there",
    )
    assert (_job(lab, plain)["workers"], _job(lab, plain)["grants"]) == (1, [])
    goes_on = _training("--open-mode=append", script=f"{quoted(GOES_ON)} --saved {lab.scratch}")
    fungible = _submit(lab, *FUNGIBLE, script=goes_on)
    _wait(_runs(lab, fungible), "the fungible job starts on the lent server")
    assert _show(lab, fungible)["NodeList"] == server
    _wait(lambda: _job(lab, fungible).get("workers") == 2, "it trains there", 180)
    assert (_job(lab, plain)["workers"], _job(lab, plain)["grants"]) == (1, [])
    assert "2 of 2-2 workers: all that it can use" in lab.run(["flexo", "why", str(fungible)]).stdout
    refused = lab.run(["flexo", "profile", str(fungible), "--min", "1", "--max", "2"], check=False)
    assert re.search(rf"\bjob {fungible}\b.*\b2 workers\b", refused.stderr)

    other = _submit(lab, "--partition=infer", "-N1", "--gpus-per-node=2")
    _wait(_runs(lab, other), "an inference job has the idle server: the other is the headroom")
    _wait((lab.scratch / f"saved-{fungible}.pt").exists, "the base writes a checkpoint")
    assert _show(lab, fungible)["Restarts"] == "0", "it saves before it is preempted"
    _wait(lambda: _show(lab, fungible)["Restarts"] == "1", "the base is preempted and requeued")
    _wait(lambda: len(_loans(lab)["past"]) == 1, "the server is back")
    (past,) = _loans(lab)["past"]
    assert (past["node"], past["bases_preempted"]) == (server, 1)
    assert past["empty_at"] <= past["deadline_at"]
    assert _state(lab, plain) == "RUNNING"

    lab.run(["scancel", str(plain), str(filler)])
    output = lab.scratch / f"{fungible}.out"
    saved = rf"job {fungible} has saved batch ([1-9]\d*) before\n(?:.*\n)*trains from batch \1 on with 2 "
    _wait(lambda: re.search(saved, output.read_text()), "it goes on from there on another GPU type", 120)


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(600)
def test_a_heterogeneous_job_trains_on_two_gpu_types_in_one_run_and_splits_its_batch_by_their_speed(
    spared_lab: LabFactory,
) -> None:
    lab = spared_lab(**TWO_GPU_TYPES)
    plain = _submit(lab, script=_training("-n 1", "--gpus-per-task=1", "--elastic=1-3"))
    logs = lab.scratch / "mixed"
    logs.mkdir()
    mixed = _submit(lab, *MIXED, script=_training(script=f"{quoted(DATA)} --log-dir {logs} --samples 64"))
    _wait(lambda: _sizes(logs), "the heterogeneous job trains on both types", 180)
    (server,) = _in_the_book(lab)
    assert [grant["node"] for grant in _job(lab, mixed)["grants"]] == [server]
    assert "several GPU types" in lab.run(["flexo", "why", str(mixed)]).stdout
    _wait(lambda: (6, 2) in _sizes(logs), "a T4 takes a third of what a V100 takes")
    assert (4, 4) not in _sizes(logs)
    assert _job(lab, plain)["grants"] == []
    why_not = lab.run(["flexo", "why", str(plain)]).stdout
    assert re.search(rf"\b{server}, on loan\b.*\bt4\b", why_not)
    begun = max(event["epoch"] for event in _took(logs))
    _wait(lambda: max(event["epoch"] for event in _took(logs)) > begun + 1, "it trains through an epoch")
    seen = Counter((event["epoch"], sample) for event in _took(logs) for sample in event["samples"])
    assert all(seen[epoch, sample] == 1 for epoch in range(begun + 2) for sample in range(64))


def _took(logs: Path) -> list[dict[str, Any]]:
    """What all ranks have logged of their mini-batches (elastic_data.py); whole lines only."""
    texts = [path.read_text() for path in logs.glob("*.jsonl")]
    lines = [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]
    return [event for event in map(json.loads, lines) if event["event"] == "took"]


def _sizes(logs: Path) -> set[tuple[int, int]]:
    """Samples of both ranks, in those steps that two have logged."""
    steps: dict[int, dict[int, int]] = {}
    for event in _took(logs):
        steps.setdefault(event["step"], {})[event["rank"]] = len(event["samples"])
    return {(sizes[0], sizes[1]) for sizes in steps.values() if len(sizes) == 2}


def _job(lab: Lab, job_id: int) -> dict[str, Any]:
    """What flexod shows of an elastic job; {} before it has seen it."""
    shown = json.loads(lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
    return next((job for job in shown if job["job_id"] == job_id), {})
