"""The recipes of docs/howto: a wrapper, exported variables, local disks, a checkpoint and a requeue."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from elastic_jobs import SCRIPTS, Submit

from flexo_lab import Lab

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FLEXO = shlex.quote(str(Path(sys.executable).parent / "flexo"))
PYTHON = shlex.quote(sys.executable)
TRAINING = """
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(400, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
epochs = 100_000


def train_one(epoch):
    sampler.set_epoch(epoch)
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        time.sleep(0.1)
    if dist.get_rank() == 0:
        print(f"epoch {epoch} with {dist.get_world_size()} workers", flush=True)


"""
"""What the recipe takes for granted: a script that trains epoch by epoch."""


def test_a_script_in_a_wrapper_grows_and_gets_what_the_job_script_exports(submit: Submit, alone: Lab) -> None:
    """As a container does it: another program starts Python, in a mount namespace of its own."""
    inside = 'echo "$SLURM_JOB_ID $NCCL_SOCKET_IFNAME" >>$PWD/seen; exec "$@"'
    wrapper = f"unshare --mount sh -c {shlex.quote(inside)} sh"
    script = shlex.quote(str(SCRIPTS / "plain_ddp.py"))
    run = f"{FLEXO} run {wrapper} {PYTHON} {script} --log-dir $PWD/logs --sleep 0.1"
    job = submit("plain_ddp.py", elastic="1-4", launch=run, environment=["NCCL_SOCKET_IFNAME=lo"])
    job.wait_until("four workers", lambda: 4 in {each["size"] for each in job.events("step")})
    seen = [line.split(" ") for line in (job.folder / "seen").read_text().splitlines()]
    assert len(seen) >= 4
    assert len({slurm_job for slurm_job, _ in seen}) > 1, "some workers are in satellites"
    assert {value for _, value in seen} == {"lo"}
    job.cancel()


@pytest.mark.thorough
def test_a_job_that_is_requeued_goes_on_from_the_checkpoint_of_its_script(submit: Submit, alone: Lab) -> None:
    page = (ROOT / "docs" / "howto" / "checkpoint.md").read_text()
    recipe = re.search(r"## Write checkpoints in the script\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert recipe is not None
    folder = alone.scratch / "saved"
    folder.mkdir()
    text = recipe[1].replace("/scratch/{os.environ['USER']}", str(folder))
    assert str(folder) in text
    (folder / "train.py").write_text(TRAINING + text)
    job = submit(
        "plain_ddp.py",
        elastic="1-3",
        launch=f"{FLEXO} run {PYTHON} {folder}/train.py",
        options=("-n", "1", "--gpus-per-task=1", "--requeue", "--open-mode=append"),
    )
    job.wait_until("an epoch of three workers", lambda: "with 3 workers" in job.output())
    done = len(epochs_of(job.output()))
    alone.run(["scontrol", "requeue", str(job.job_id)])
    job.wait_until("epochs of the second run", lambda: len(epochs_of(job.output())) > done + 2, bound_s=400)
    counted = Counter(epochs_of(job.output()))
    assert counted[0] == 1, "the second run does not begin anew"
    assert sorted(counted) == list(range(max(counted) + 1)), "no epoch is left out"
    assert all(times <= 2 for times in counted.values()), "at most the epoch of the requeue is done again"
    job.cancel()


@pytest.mark.thorough
def test_each_node_gets_one_copy_of_the_data_while_the_others_train(submit: Submit, alone: Lab) -> None:
    """The lab's nodes share a disk: each has a folder. Copying takes as long as it does with more data."""
    data, disks = alone.scratch / "data", alone.scratch / "disks"
    data.mkdir()
    (data / "samples").write_text("1 2 3\n")
    stage = alone.scratch / "stage.sh"
    slow = f"date +%s.%N >>{disks}/copied; sleep 6; cp -r"
    stage.write_text(staging(data, f"{disks}/$SLURMD_NODENAME/local").replace("cp -r", slow))
    stage.chmod(0o755)
    disks.mkdir()
    script = shlex.quote(str(SCRIPTS / "plain_ddp.py"))
    told = f"sh -c 'echo $SLURMD_NODENAME $DATA >>{disks}/read; exec \"$@\"' sh"
    run = f"{FLEXO} run {stage} {told} {PYTHON} {script} --log-dir $PWD/logs --sleep 0.1"
    job = submit("plain_ddp.py", elastic="1-4", launch=run)
    job.wait_until("four workers", lambda: 4 in {each["size"] for each in job.events("step")})
    read = [line.split(" ") for line in (disks / "read").read_text().splitlines()]
    nodes = {node for node, _ in read}
    assert len(read) == 4
    assert len(nodes) > 1
    assert {path for _, path in read} == {f"{disks}/{node}/local/data" for node in nodes}
    copied = [float(line) for line in (disks / "copied").read_text().splitlines()]
    assert len(copied) == len(nodes)
    last = max(copied)
    assert any(last < step["time"] < last + 6 for step in job.events("step")), "the others train on"
    job.cancel()


@pytest.mark.thorough
def test_a_worker_reads_the_data_from_where_they_were_if_they_cannot_be_copied(tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    (tmp_path / "stage.sh").write_text(staging(tmp_path / "data", f"{tmp_path}/full/disk"))
    done = subprocess.run(["bash", tmp_path / "stage.sh", "printenv", "DATA"], capture_output=True, text=True)
    assert done.stdout == f"{tmp_path}/data\n"


@pytest.mark.thorough
def test_an_elastic_job_cannot_ask_for_a_disk(alone: Lab) -> None:
    asked = ("-n", "1", "--gpus-per-task=1", "--elastic=1-4", "--tmp=1G", "--wrap", "true")
    refused = alone.run(["sbatch", "--output=/dev/null", *asked], check=False)
    assert refused.returncode != 0
    assert "--tmp=1024" in refused.stderr


def staging(data: Path, disk: str) -> str:
    """The recipe's stage.sh, for other paths."""
    page = (ROOT / "docs" / "howto" / "recipes" / "node-local-data.md").read_text()
    recipe = re.search(r"```bash\n(#!/bin/bash\n# stage\.sh.*?)```", page, re.DOTALL)
    assert recipe is not None
    text = recipe[1].replace("/shared/imagenet", str(data)).replace("/local/$USER/imagenet", f"{disk}/data")
    assert str(data) in text
    assert disk in text
    return text


def epochs_of(output: str) -> list[int]:
    """The epochs that rank 0 has told of, in their order."""
    return [int(number) for number in re.findall(r"^epoch (\d+) with", output, re.MULTILINE)]
