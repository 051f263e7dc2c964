"""make bench-abuse: measures an honest leader and an elastic job while another user abuses flexod.

The benchmark has a lab of its own: real slurmctld, MUNGE, flexod and an elastic job of one user. Another user
attacks on half a core. probe.py measures the round trip, and attacks.py has the attacks.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from flexo_bench.abuse.attacks import AIMED_AT_GROWTH, ATTACKS, WORKERS_MAX
from flexo_bench.runtime.rivals import interrupt_on_sigterm
from flexo_bench.scale.watch import percentile
from flexo_lab.bringup import bring_up
from flexo_lab.lab import Lab
from flexo_lab.processes import Account
from flexo_lab.spec import LabSpec
from flexo_protos.credentials import METADATA_KEY, new_authenticator
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "bench"
VICTIM, ATTACKER = "games", "nobody"
"""Accounts that Debian has. The leaders of the victim and of the probe are honest."""
VICTIM_WORKERS = 4
GOAL_P99_S = 1.0
_GROWS_WITHIN_S = 180.0
_LISTED_WITHIN_S = 30.0
_JOBS, _SCALE = "/flexo.v1.AdminService/ListJobs", "/flexo.v1.AdminService/ScaleJob"


@dataclass(frozen=True, slots=True)
class Case:
    """The measurements under one attack, or at rest."""

    p50_s: float
    p99_s: float
    max_s: float
    victim_workers: int
    """Workers of the victim that train at the end."""
    calls: int
    attackers_share: float = 0.0
    """Part of a core that the attacker used."""
    leader_lost: int = 0
    """Number of times that flexod lost the victim's leader meanwhile, by flexod's log."""

    @property
    def good(self) -> bool:
        """True if the measurements are within the goals."""
        return self.p99_s < GOAL_P99_S and self.victim_workers >= VICTIM_WORKERS


class Bench:
    """A lab with a victim and a probe."""

    def __init__(self, lab: Lab, calls: int, script: Path) -> None:
        self._lab, self._calls = lab, calls
        self._munge = new_authenticator(socket=str(lab.layout.munge_socket))
        self._channel = grpc.insecure_channel(lab.daemon_address)
        train = f"exec flexo run {shlex.join([sys.executable, str(script)])} --step-seconds 1 --epochs 100000"
        self.victim = self._submit(VICTIM, f"--elastic=1-{VICTIM_WORKERS}", train)
        self._probed = self._submit(VICTIM, "--elastic=1-4", "exec sleep 86400")
        self._until_victim_has(VICTIM_WORKERS)

    def at_rest(self) -> Case:
        """Measure without an attack."""
        return self._case(self._rounds())

    def under(self, name: str) -> Case:
        """Measure during the attack `name`, which runs with a job of the attacker's own."""
        lost = self._leader_lost()
        if name in AIMED_AT_GROWTH:
            self._scale(1)
            self._until_victim_has(1)
        own = self._submit(ATTACKER, f"--elastic=1-{WORKERS_MAX}", "exec sleep 86400")
        try:
            with self._process(ATTACKER, "attacks", name, own) as attack:
                assert attack.stdout is not None
                assert attack.stdout.readline().strip() == "attacking"
                time.sleep(5.0)
                if name in AIMED_AT_GROWTH:
                    self._scale(0)
                rounds = self._rounds()
                if name in AIMED_AT_GROWTH:
                    self._until_victim_has(VICTIM_WORKERS, or_raise=False)
                workers = self._workers()
                attack.terminate()
                said, _ = attack.communicate(timeout=_LISTED_WITHIN_S)
                share = float(said.strip() or "nan")
        finally:
            self._lab.run(["scancel", "--quiet", f"--user={ATTACKER}"], check=False)
        case = self._case(rounds, workers, share, self._leader_lost() - lost)
        self._until_victim_has(VICTIM_WORKERS, or_raise=False)
        return case

    def _case(self, rounds: Sequence[float], workers: int = -1, share: float = 0.0, lost: int = 0) -> Case:
        return Case(
            round(percentile(rounds, 50), 4),
            round(percentile(rounds, 99), 4),
            round(max(rounds), 4),
            self._workers() if workers < 0 else workers,
            len(rounds),
            share,
            lost,
        )

    def _rounds(self) -> list[float]:
        with self._process(VICTIM, "probe", str(self._probed), self._calls) as probe:
            said, _ = probe.communicate()
        found: list[float] = json.loads(said)
        return found

    @contextmanager
    def _process(self, user: str, module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        account = Account.named(user)
        command = [sys.executable, "-m", f"flexo_bench.abuse.{module}", *map(str, arguments)]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._lab.scratch,
            env=self._lab.environment(user) | {"GRPC_VERBOSITY": "NONE"},
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _submit(self, user: str, elastic: str, command: str) -> int:
        options = ["--parsable", "-n1", "--gpus-per-task=1", elastic, "--output=%j.out", f"--wrap={command}"]
        job_id = int(self._lab.run(["sbatch", *options], user=user).stdout.strip())
        deadline = time.monotonic() + _LISTED_WITHIN_S
        state = ["squeue", "--noheader", "--format=%T", f"--jobs={job_id}"]
        while self._lab.run(state).stdout.strip() != "RUNNING":
            if time.monotonic() > deadline:
                raise RuntimeError(f"job {job_id} of {user} does not start")
            time.sleep(0.2)
        return job_id

    def _workers(self) -> int:
        """Workers of the victim that train now."""
        deadline = time.monotonic() + _LISTED_WITHIN_S
        while True:
            try:
                reply = admin_pb2_grpc.AdminServiceStub(self._channel).ListJobs(
                    admin_pb2.ListJobsRequest(), metadata=self._proof(_JOBS), timeout=10
                )
            except grpc.RpcError:
                if time.monotonic() > deadline:
                    return 0
                time.sleep(0.5)
                continue
            return next((job.workers for job in reply.jobs if job.job_id == self.victim), 0)

    def _until_victim_has(self, workers: int, *, or_raise: bool = True) -> None:
        deadline = time.monotonic() + _GROWS_WITHIN_S
        while (now := self._workers()) != workers:
            if time.monotonic() > deadline:
                if or_raise:
                    raise RuntimeError(f"the victim has {now} workers after {_GROWS_WITHIN_S:.0f} s")
                return
            time.sleep(1.0)

    def _scale(self, workers: int) -> None:
        """Cap the victim at `workers`; 0: no cap. Repeats the call if flexod is too busy."""
        request = admin_pb2.ScaleJobRequest(job_id=self.victim, workers=workers)
        for _ in range(5):
            try:
                admin_pb2_grpc.AdminServiceStub(self._channel).ScaleJob(
                    request, metadata=self._proof(_SCALE), timeout=10
                )
            except grpc.RpcError:
                time.sleep(1.0)
            else:
                return

    def _proof(self, method: str) -> tuple[tuple[str, str], ...]:
        return ((METADATA_KEY, self._munge.credential(method)),)

    def _leader_lost(self) -> int:
        lines = (self._lab.layout.logs / "flexod.log").read_text(errors="replace").splitlines()
        return sum("leader detached" in line and f"job={self.victim} " in line for line in lines)


def main() -> int:
    """Bring up a lab, measure at rest and under each attack, print, write. Returns 1 if a goal is missed."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    cases: dict[str, Case] = {}
    lab = bring_up(LabSpec(name=f"abuse{os.getpid()}", nodes=3, gpus_per_node=4))
    try:
        bench = Bench(lab, options.calls, options.script.resolve())
        rest = bench.at_rest()
        _tell("at rest", rest, head=True)
        for name in options.cases:
            cases[name] = bench.under(name)
            _tell(name, cases[name])
    finally:
        lab.down()
    figures: dict[str, Any] = {
        "rest": asdict(rest),
        "cases": {name: asdict(case) for name, case in cases.items()},
        "goals": {"p99_s": GOAL_P99_S, "victim_workers": VICTIM_WORKERS},
        "machine": {"cores": os.cpu_count(), "load_at_end": os.getloadavg()},
        "command": f"make bench-abuse ARGS='{' '.join(sys.argv[1:])}'",
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=2) + "\n")
    missed = [name for name, case in {"rest": rest, **cases}.items() if not case.good]
    print(f"written: {options.json}")
    if missed:
        print(f"missed: p99 below {GOAL_P99_S:g} s and {VICTIM_WORKERS} workers, in {', '.join(missed)}")
    return 1 if missed else 0


def _tell(name: str, case: Case, *, head: bool = False) -> None:
    if head:
        print(f"{'':26}{'p50':>9}{'p99':>9}{'max':>9}{'calls':>7}{'workers':>9}{'core':>7}")
    print(
        f"{name:26}{case.p50_s:>8.3f}s{case.p99_s:>8.3f}s{case.max_s:>8.3f}s{case.calls:>7}"
        f"{case.victim_workers:>6} of {VICTIM_WORKERS}{case.attackers_share:>6.2f}"
        + ("" if case.good else "  missed")
        + (f"  flexod lost the victim's leader {case.leader_lost} times" if case.leader_lost else ""),
        flush=True,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-abuse", description=__doc__)
    parser.add_argument("--calls", type=int, default=300, help="round trips of each case (%(default)s)")
    parser.add_argument("--cases", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="NAME")
    parser.add_argument("--script", type=Path, default=ROOT / "examples/digits/train.py")
    parser.add_argument("--json", type=Path, default=BUILD / "abuse.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
