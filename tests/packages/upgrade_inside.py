"""Two releases' Debian packages one over the other while jobs train; test_upgrade_with_jobs.py runs it.

    python upgrade_inside.py OLDER NEWER    (each a folder with the packages flexo and flexo-slurm-plugin)

Changes this machine, so it is run on a layer over it (overlay.py). Prints what it sees; exits with 1, and a
sentence, when something is not as it should be.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from flexo import renamed_settings
from flexo_demos.elastic.measure import read_logs
from flexo_lab import Lab, LabSpec, bring_up

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "digits" / "train.py"
OURS = Path(sys.executable).parent
PACKAGED = {
    "spank_elastic.so": "/usr/lib/x86_64-linux-gnu/slurm-wlm/spank_elastic.so",
    "job_submit_elastic.lua": "/etc/slurm/job_submit_elastic.lua",
}
SYSTEMCTL = f"""#!/bin/sh
case "$*" in
  *"restart flexod.service") exec {shlex.join([sys.executable, __file__])} restart;;
esac
"""
"""Stands for systemd, which does not run here: restarts the lab's flexod."""
NAME = "upgrade"
BOUND_S = 120
JOB = f"""#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-4
set -- --log-dir $PWD/trained-$SLURM_JOB_ID --step-seconds 0.1 --epochs 100000
exec flexo run {shlex.join([sys.executable, str(SCRIPT)])} "$@"
"""


def until(what: Callable[[], object], sentence: str) -> None:
    """Wait for it."""
    deadline = time.monotonic() + BOUND_S
    while not what():
        if time.monotonic() > deadline:
            sys.exit(f"not within {BOUND_S} s: {sentence}")
        time.sleep(0.5)


def demand(holds: object, sentence: str) -> None:
    """It must be so."""
    if not holds:
        sys.exit(f"not so: {sentence}")


def install(folder: Path) -> None:
    """Both packages, over what is there."""
    begun = time.monotonic()
    packages = [str(path) for path in sorted(folder.glob("*.deb"))]
    command = ["dpkg", "--force-confdef", "--force-confold", "--force-unsafe-io", "--install", *packages]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, flush=True)
    demand(done.returncode == 0, f"dpkg installs {folder}")
    print(f"installed in {time.monotonic() - begun:.1f} s: {release()}", flush=True)


def release() -> str:
    """What is installed."""
    return subprocess.run(["flexod", "--version"], capture_output=True, text=True, check=True).stdout.strip()


class Cluster:
    """A lab that goes by what is installed, and what is seen of it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def status(self) -> dict[str, object]:
        """As flexod says; {} while it does not answer."""
        done = self.lab.run(["/usr/bin/flexo", "status", "--json"], check=False)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def workers(self, job: int) -> int:
        """How many train now, by flexod's word."""
        done = self.lab.run(["/usr/bin/flexo", "jobs", "--json"], check=False)
        jobs = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
        return next((int(each["workers"]) for each in jobs if each["job_id"] == job), 0)

    def satellites(self) -> dict[int, str]:
        """Slurm's jobs in the satellites' partition that run, and since when."""
        command = ["squeue", "--noheader", "--partition=flex", "--states=RUNNING", "--format=%A %S"]
        lines = self.lab.run(command).stdout.splitlines()
        return {int(line.split()[0]): line.split()[1] for line in lines}

    def submit(self, text: str, *options: str) -> int:
        """A job, through the plugin that is installed."""
        command = ["sbatch", "--parsable", "--output=%j.out", *options]
        return int(self.lab.run(command, stdin=text).stdout)

    def batches(self, job: int) -> Counter[tuple[int, int]]:
        """How often each sample was trained on in each epoch."""
        logs = read_logs(self.lab.scratch / f"trained-{job}")
        commits = [commit for log in logs for stint in log.stints for commit in stint.commits]
        return Counter((commit.epoch, sample) for commit in commits for sample in commit.samples)

    def goes_on(self, job: int) -> None:
        """It trains."""
        before = sum(self.batches(job).values())
        until(lambda: sum(self.batches(job).values()) > before + 200, f"job {job} trains on")


def be_of_the_older_release(config: Path) -> None:
    """The site's configuration is of the older release's time: by its names, and without newer keys."""
    for section in re.findall(r"\[(\w+)\] is not a section", _what_flexod_says_of(config)):
        (old,) = (old for old, new in renamed_settings.SECTIONS.items() if new == section)
        print(f"[{section}] is called [{old}], as in the older release", flush=True)
        config.write_text(config.read_text().replace(f"[{section}]", f"[{old}]"))
    for (_, old), key in renamed_settings.KEYS.items():
        if f" {key} is not a key" in _what_flexod_says_of(config):
            print(f"{key} is called {old}, as in the older release", flush=True)
            config.write_text(re.sub(rf"^{key} =", f"{old} =", config.read_text(), flags=re.MULTILINE))
    for key in re.findall(r"(\w+) is not a key", _what_flexod_says_of(config)):
        print(f"without {key}, which the older release does not know", flush=True)
        lines = config.read_text().splitlines()
        config.write_text("\n".join(line for line in lines if not line.startswith(f"{key} =")) + "\n")


def _what_flexod_says_of(config: Path) -> str:
    command = ["flexod", "--check-config", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def go_by_packages(lab: Lab) -> None:
    """Let flexod and Slurm's plugin be the installed ones."""
    for part, path in PACKAGED.items():
        (lab.layout.plugin / part).unlink()
        (lab.layout.plugin / part).symlink_to(path)
    lab.layout.job_submit.touch()


def change(cluster: Cluster, folder: Path, jobs: list[int]) -> None:
    """Install what is in `folder` over what runs; everything trains on, with what it had."""
    had, before = cluster.satellites(), cluster.status()
    install(folder)
    cluster.lab.layout.job_submit.touch()
    until(
        lambda: cluster.status().get("flexod_version") == release().split()[-1], "flexod is the installed one"
    )
    until(lambda: cluster.status().get("leaders") == len(jobs), "all leaders are back")
    print(f"flexod was {before.get('flexod_version')}, is {cluster.status()['flexod_version']}", flush=True)
    for job in jobs:
        cluster.goes_on(job)
    demand(cluster.satellites() == had, f"satellites are the same: {had}, then {cluster.satellites()}")


def main(older: Path, newer: Path) -> None:
    """Up, there and back again."""
    Path("/usr/sbin/policy-rc.d").unlink(missing_ok=True)  # which may forbid what systemd would do
    Path("/usr/bin/systemctl").unlink(missing_ok=True)
    Path("/usr/bin/systemctl").write_text(SYSTEMCTL)
    Path("/usr/bin/systemctl").chmod(0o755)
    Path("/run/systemd/system").mkdir(parents=True)
    install(older)
    (OURS / "flexod").unlink()
    (OURS / "flexod").symlink_to("/usr/bin/flexod")
    lab = bring_up(LabSpec(NAME, nodes=2, gpus_per_node=4, infer_nodes=0, flexod=False))
    cluster = Cluster(lab)
    try:
        be_of_the_older_release(lab.layout.flexo_toml)
        go_by_packages(lab)
        lab.start_flexod()
        first = cluster.submit(JOB)
        until(lambda: cluster.workers(first) == 4, "the first job trains with 4 workers")
        change(cluster, newer, [first])
        second = cluster.submit(JOB)
        until(lambda: cluster.workers(second) == 4, "a job of the newer plugin trains with 4 workers")
        change(cluster, older, [first, second])
        change(cluster, newer, [first, second])
        whole = cluster.submit("#!/bin/sh\nexec sleep 600\n", "--gpus-per-node=4", "--nodes=1", "--exclusive")
        until(lambda: cluster.workers(first) + cluster.workers(second) < 8, "Slurm takes a node back")
        running = ["squeue", "--noheader", f"--jobs={whole}", "--format=%T"]
        until(lambda: "RUNNING" in lab.run(running).stdout, "the ordinary job runs")
        for job in (first, second):
            cluster.goes_on(job)
            check_samples(cluster.batches(job), job)
    finally:
        lab.down()


def check_samples(seen: Counter[tuple[int, int]], job: int) -> None:
    """Each sample of each whole epoch was trained on once."""
    last = max(epoch for epoch, _ in seen)
    demand(last > 1, f"job {job} has trained for some epochs")
    samples = {sample for epoch, sample in seen if epoch == 0}
    whole = Counter({(epoch, sample): 1 for epoch in range(last) for sample in samples})
    trained = Counter({each: times for each, times in seen.items() if each[0] < last})
    odd = (trained - whole) + (whole - trained)
    demand(not odd, f"job {job} trains on each sample once an epoch; not so: {odd.most_common(3)}")
    print(f"job {job}: {last} whole epochs of {len(samples)} samples, each once", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["restart"]:
        Lab.load(NAME).restart_flexod()
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
