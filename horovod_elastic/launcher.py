"""`flexo run COMMAND ...` in a job script: leads the job from the base's first node until it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from flexo_protos.credentials import Munge
from horovod_elastic import network, slurm_job
from horovod_elastic.daemon_link import daemon_address
from horovod_elastic.leader import Leader, say
from horovod_elastic.leader_service import serve
from horovod_elastic.satellites import SlurmUser

USAGE = """usage: flexo run COMMAND [ARGUMENT ...]

Runs a Horovod training command in a Slurm job: one process for every task of the job (sbatch -n). If the job
was submitted with --elastic=MIN-MAX, it grows into idle GPUs and gives them back while it trains.

    #SBATCH -n 2 --gpus-per-task=1 --elastic=2-8
    flexo run python train.py --epochs 90

The script needs no change beyond Horovod's own elastic form (hvd.elastic.run); without it, it runs at its
base's size. flexod is looked for at $FLEXO_DAEMON, then where $FLEXO_CONFIG or /etc/flexo/flexo.toml says."""


def main(arguments: list[str]) -> int:
    """Entry point; `arguments` is the training command. Returns the job's exit code."""
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        base = slurm_job.base_job(slurm_job.with_recorded_range(os.environ))
        return _lead(base, arguments)
    except (slurm_job.NotInAJob, network.NoAddress) as error:
        print(f"flexo run: {error}", file=sys.stderr)
        return 2


def _lead(base: slurm_job.BaseJob, command: list[str]) -> int:
    here = os.environ.get("SLURMD_NODENAME", base.nodes[0].name)
    site = slurm_job.site(os.environ)
    address = network.own_address(slurm_job.node_address(here, os.environ), site.controller)
    environment = {**os.environ, "FLEXO_JOB_ID": str(base.job_id)}
    output = slurm_job.output_path(base.job_id, os.environ)
    slurm = SlurmUser(base, environment, command, output, site=site)
    leader = Leader(base, address, slurm)
    server = serve(leader, address, Munge())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: leader.stop(128 + n, f"signal {n}"))
    steps: list[subprocess.Popen[bytes]] = []
    try:
        for node in base.nodes:
            step = slurm.launch_base(node.name, node.workers, leader.endpoint)
            steps.append(step)
            threading.Thread(target=_watch, args=(leader, node.name, step), daemon=True).start()
        _attach(leader)
        return leader.run()
    finally:
        # Without this, streams that are still open would keep the process from ending.
        for step in steps:
            _end(step)
        server.stop(grace=1)


def _attach(leader: Leader) -> None:
    if not leader.base.elastic:
        return
    address = daemon_address()
    if address is None:
        say("no flexod is configured (FLEXO_DAEMON, flexo.toml): training stays at the base's size")
    else:
        leader.attach_to(address)


def _watch(leader: Leader, node: str, step: subprocess.Popen[bytes]) -> None:
    """A base agent ends when it is dismissed; if it ends otherwise there is nobody left to lead there."""
    if code := step.wait():
        exit_code = code if code > 0 else 128 - code
        leader.stop(exit_code, f"the agent on {node} ended with exit code {exit_code}")


def _end(step: subprocess.Popen[bytes]) -> None:
    try:
        step.wait(timeout=10)
    except subprocess.TimeoutExpired:
        step.terminate()
        try:
            step.wait(timeout=10)
        except subprocess.TimeoutExpired:
            step.kill()
