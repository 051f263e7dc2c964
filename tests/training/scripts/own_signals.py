"""A script that handles SIGTERM itself, and one that starts programs and waits for them."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--log-dir", type=Path, required=True)
parser.add_argument("--batches", type=int, default=100000)
parser.add_argument("--handler", action="store_true", help="end with status 0 on SIGTERM")
args = parser.parse_args()


def log(event, **fields):
    with (args.log_dir / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


def told_to_stop():
    """All of them or none: the file may be seen by some a moment earlier than by others."""
    seen = torch.tensor([float((args.log_dir / "stop").exists())])
    return bool(hvd.allreduce(seen, op=hvd.Max, name="stop").item())


def helper(seconds):
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


early = helper(600)
early.terminate()
log("early helper", status=early.wait(timeout=30))

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402


def on_sigterm(signum, frame):
    log("sigterm")
    sys.exit(0)


if args.handler:
    signal.signal(signal.SIGTERM, on_sigterm)
hvd.init()
late = helper(600)
time.sleep(0.2)
late.terminate()
log("late helper", status=late.wait(timeout=30))
log("before", rank=hvd.rank(), left_running=helper(600).pid)


@hvd.elastic.run
def train(state):
    log("enter", rank=hvd.rank(), size=hvd.size(), step=state.step)
    while state.step < args.batches and not told_to_stop():
        time.sleep(0.1)
        state.step += 1
        step, rank, size = state.step, hvd.rank(), hvd.size()
        try:
            state.commit()
        finally:
            log("commit", step=step, rank=rank, size=size)


state = hvd.elastic.TorchState(step=0)
train(state)
log("done", steps=state.step, rank=hvd.rank(), size=hvd.size(), parameters="")
