"""The jobs of the cluster: allocations that last, jobs that wait for every kind of reason, hostile texts."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from flexo_lab.lab import Lab
from flexo_lab.processes import Account

USERS = ("games", "news")
RUNNING_PART = 0.15
"""The part of the jobs that run, as far as there are nodes."""
HOSTILE = (
    *("a|b|c", "line\nNodeName=n1 State=DOWN", "\x1b[31mred\x1b[0m", "tab\tand\rreturn", "N/A", "(null)"),
    *("None", "é 日本 🦊", "bytes \udcff\udcfe that are no text", "%s%n%d", "'; -- \"", "x" * 1000, " lead "),
    "flexo-satellite base=1 restart=0 grant=g-1 workers=2",
)
"""Names and comments that users may give their jobs."""
_ALLOCATED = (
    *(("-N8", "--gpus-per-node=a100:8", "--exclusive"), ("-N4", "--gres=gpu:h100:4", "--mem=100000")),
    *(("-n4", "--gpus-per-task=a100:1", "--mem=8000"), ("-n1", "--gpus=h100:2", "--cpus-per-task=3")),
    *(("-n2", "--gpus=a100:1,h100:1", "--mem=100"), ("-n2", "--gpus=3"), ("-N1", "--gres=gpu")),
    *(("-n1", "--mem=200", "--constraint=nvlink"), ("-N2", "-n8", "--mem-per-cpu=500"), ("-n5",)),
    *(("-N1", "--gpus-per-socket=a100:2", "--sockets-per-node=2"), ("-p", "flex", "-n1", "--gpus=1")),
)
"""Requests of jobs that run."""
_WAITING = (
    *(("-N{most}", "--gpus-per-node=1"), ("-N{half}", "--gpus-per-node=a100:8", "--time=2:00:00")),
    *(("--hold", "-n1", "--gpus-per-task=h100:1"), ("--begin=now+2days", "-n4", "--gpus=4", "--mem=1G")),
    *(("--dependency=afterok:1", "-n1"), ("--array=1-50%2", "--hold", "--gpus=a100:1"), ("--hold", "-n3")),
    *(("--hold", "-N2", "--exclude=n[1-3],n7", "--gres=gpu:a100:2"), ("--hold", "-w", "n[4-5]", "-N2")),
    *(("--hold", "--constraint=a100&h100", "-n2"), ("--hold", "--exclusive", "-N3", "--time=1-02:00:00")),
    *(("--hold", "-p", "train,flex", "--gpus-per-node=3"), ("--hold", "--mem-per-gpu=1000", "--gpus=2")),
    *(("--hold", "--gpus-per-socket=1", "--sockets-per-node=2", "-N2"), ("--hold", "--time=0", "-n2")),
    *(("--hold", "--constraint=[a100*2&h100*1]", "-N3"), ("--hold", "-N2-4", "--cpus-per-gpu=3", "--gpus=8")),
)
"""Requests of jobs that wait."""
_AT_ONCE = 4
Tell = Callable[[str], None]


def fill(lab: Lab, nodes: int, jobs: int, tell: Tell) -> None:
    """Submit `jobs` jobs, let administrators keep some nodes. Raises RuntimeError."""
    running = round(min(jobs * RUNNING_PART, nodes * 0.12))
    tell(f"allocating to {running} jobs")
    _at_once(lambda index: _allocate(lab, index), running)
    _keep_nodes(lab, nodes)
    tell(f"submitting {jobs - running} jobs that wait")
    _at_once(lambda index: _submit(lab, nodes, index), jobs - running)
    _change_some(lab, running)


def _at_once(one: Callable[[int], None], count: int) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, range(count)))


def _allocate(lab: Lab, index: int) -> None:
    words = _ALLOCATED[index % len(_ALLOCATED)]
    _run(lab, index, ["salloc", "--quiet", "--no-shell", "--immediate=300", *_texts(index), *words])


def _submit(lab: Lab, nodes: int, index: int) -> None:
    sizes = {"most": str(nodes * 9 // 10), "half": str(nodes // 2)}
    words = [word.format(**sizes) for word in _WAITING[index % len(_WAITING)]]
    _run(lab, index, ["sbatch", "--quiet", "--output=/dev/null", *_texts(index), *words, "--wrap=true"])


def _texts(index: int) -> Iterator[str]:
    """A name and a comment. One job in three has hostile ones."""
    hostile = index % 3 == 0
    yield f"--job-name={HOSTILE[index // 3 % len(HOSTILE)] if hostile else f'train-{index}'}"
    if hostile:
        yield f"--comment={HOSTILE[(index // 3 + 5) % len(HOSTILE)]}"


def _run(lab: Lab, index: int, command: Sequence[str]) -> None:
    """Run the command as one of the users. What it prints is not read: texts may be in any encoding."""
    user = USERS[index % len(USERS)]
    account = Account.named(user)
    done = subprocess.run(
        [os.fsencode(word) for word in command],
        env=lab.environment(user),
        cwd=lab.scratch,
        user=account.uid,
        group=account.gid,
        extra_groups=account.groups,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=330,
    )
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr.decode(errors='replace')}")


def _keep_nodes(lab: Lab, nodes: int) -> None:
    """Drain nodes, take some down, reserve some. Administrators' reasons may be hostile, too."""
    last = nodes // 2  # of the first model: nothing has been allocated that far
    for offset, (state, reason) in enumerate(
        [
            ("DRAIN", "broken  fan\nState=IDLE"),
            ("DRAIN", "é [root@2026-01-01T00:00:00] Comment=x"),
            ("DOWN", "no power"),
            ("FAIL", "x" * 500),
        ]
    ):
        names = f"n[{last - 10 * offset - 4}-{last - 10 * offset}]"
        lab.run(["scontrol", "update", f"NodeName={names}", f"State={state}", f"Reason={reason}"])
    for first, flags in ((last - 59, "maint"), (last - 79, "")):
        words = [f"nodes=n[{first}-{first + 9}]", "starttime=now", "duration=1-0", "users=root"]
        words += [f"flags={flags}"] if flags else []
        lab.run(["scontrol", "create", "reservation", *words])


def _change_some(lab: Lab, running: int) -> None:
    """Some jobs that run are elastic, suspended or ending; the nodes of the last are then not heard of."""
    listed = lab.run(["squeue", "--noheader", "--states=RUNNING", "--format=%A"]).stdout.split()
    for job in listed[: running // 5]:
        lab.run(["scontrol", "update", f"JobId={job}", "AdminComment=flexo{workers=1-4}"])
    lab.run(["scontrol", "suspend", ",".join(listed[-3:])], check=False)
    lab.run(["scancel", *listed[-6:-3]])
    time.sleep(1)
