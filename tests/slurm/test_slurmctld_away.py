"""slurmctld out of reach: cut off from flexod for a while, or dead until its backup takes over, and back.

The backup runs on the same machine: each of the two has a host name and a loopback address of its own.
FLEXO_CUT_S says how many seconds the cut lasts; by default it is just longer than all that reacts to it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaos.system.link import Link
from conftest import LabFactory
from matrix.stand_in import StandIn, wait

from flexo_lab import Lab
from flexo_lab.processes import start_daemonizing
from flexo_lab.requirements import program

CUT_S = float(os.environ.get("FLEXO_CUT_S", "12"))
TIMEOUT_S = 3
"""[slurm] timeout_s in the cut: how long flexod waits for one command."""
ADDRESSES = {"ctl1": "127.0.0.1", "ctl2": "127.0.0.2"}
PRIMARY, BACKUP = ADDRESSES
TAKES_OVER_S = 6
"""SlurmctldTimeout: the backup takes over when the primary has been silent for so long."""
ON_A_HOST_OF_ITS_OWN = 'hostname "$1" && mount --bind "$2" /etc/hosts && exec "$3" -i -f "$4"'


@dataclass(frozen=True)
class Controllers:
    """A lab's primary and backup slurmctld, with one folder for their state."""

    lab: Lab

    def set_up(self) -> None:
        """Both instead of the one that the lab came up with."""
        alone = psutil.Process(self._pid(PRIMARY))
        alone.terminate()
        alone.wait(30)
        hosts = "".join(f"SlurmctldHost={name}({address})\n" for name, address in ADDRESSES.items())
        # each listens at its own address only
        more = f"SlurmctldTimeout={TAKES_OVER_S}\nCommunicationParameters=NoCtldInAddrAny\n"
        text = self.lab.layout.slurm_conf.read_text()
        text = re.sub(r"^SlurmctldHost=.*\n", hosts + more, text, flags=re.MULTILINE)
        self.lab.layout.slurm_conf.write_text(text)
        # these two name files of a host, which they do not share
        own = re.sub(r"^(Slurmctld(?:PidFile|LogFile)=.*)/slurmctld\.", rf"\1/{BACKUP}.", text, flags=re.M)
        self._conf(BACKUP).write_text(own)
        known = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        self._hosts.write_text(f"127.0.0.1 localhost\n{known}")
        self.start(PRIMARY)
        self.start(BACKUP)
        self.lab.run(["scontrol", "reconfigure"])

    def start(self, name: str) -> None:
        """Start one, and wait until it is the primary that answers, or until the backup stands by."""
        own = ["sh", "-c", ON_A_HOST_OF_ITS_OWN, "sh", name, str(self._hosts), program("slurmctld")]
        command = [program("unshare"), "--uts", "--mount", *own, str(self._conf(name))]
        start_daemonizing(command, self.lab.layout.logs / f"{name}.out", self.lab.environment())
        wait(lambda: f"at {name} is UP" in self._ping(), f"{name} answers")

    def have_saved(self, job: StandIn) -> None:
        """Wait until what is known by now is in the folder of their state.

        Of a slurmctld that is killed within seconds of a job's start, its backup does not know that job.
        """
        begun_at = time.time()
        self.lab.run(["scontrol", "update", f"JobId={job.job_id}", "Nice=1"])  # something new to be saved
        saved = self.lab.layout.state / "job_state"
        wait(lambda: saved.stat().st_mtime > begun_at, "slurmctld has saved its state")

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = psutil.Process(self._pid(name))
        process.kill()
        process.wait(30)

    def answer(self) -> bool:
        """Whether one of them is in control."""
        return self.lab.run(["sinfo", "--noheader"], check=False).returncode == 0

    def _ping(self) -> str:
        return self.lab.run(["scontrol", "ping"], check=False).stdout

    def _conf(self, name: str) -> Path:
        return self.lab.layout.slurm_conf if name == PRIMARY else self.lab.directory / "slurm-backup.conf"

    def _pid(self, name: str) -> int:
        file = "slurmctld.pid" if name == PRIMARY else f"{BACKUP}.pid"
        return int((self.lab.layout.state / file).read_text())

    @property
    def _hosts(self) -> Path:
        return self.lab.directory / "hosts"


@pytest.fixture(scope="module")
def own_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """Two nodes with two GPUs each; flexod is not started yet."""
    lab = make_lab(nodes=2, gpus_per_node=2, infer_nodes=0, flexod=False)
    yield lab
    lab.down()


def _status(lab: Lab) -> dict[str, Any]:
    said = lab.run(["flexo", "status", "--json"], check=False).stdout
    return json.loads(said) if said else {"trouble": "no answer", "last_cycle_at": 0.0}


def _grants(lab: Lab, job: StandIn) -> dict[str, int]:
    """Of flexod's, with their satellites."""
    jobs = json.loads(lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
    (seen,) = (each for each in jobs if each["job_id"] == job.job_id)
    return {grant["grant_id"]: grant["slurm_job_id"] for grant in seen["grants"]}


def _ever_submitted(lab: Lab, job: StandIn) -> set[int]:
    """All satellites that the job has ever had."""
    listed = ["squeue", "--noheader", "--states=all", f"--name=flexo-{job.job_id}", "--format=%A"]
    return {int(number) for number in lab.run(listed).stdout.split()}


def _trains_on(job: StandIn) -> None:
    before = len(job.events("batch"))
    wait(lambda: len(job.events("batch")) > before, f"job {job.job_id} trains on")


def _looked(lab: Lab) -> None:
    """Wait until flexod has looked at the cluster twice since now, and all is well."""
    begun_at = time.time()
    wait(lambda: _status(lab)["last_cycle_at"] > begun_at, "flexod looks")
    once_at = time.time()
    wait(lambda: _status(lab)["last_cycle_at"] > once_at, "flexod looks again")
    wait(lambda: _status(lab)["trouble"] == "", "all is well")


@dataclass(frozen=True)
class AsItWas:
    """What a job has, to be compared with what it has later."""

    job: StandIn
    satellites: dict[int, str]
    grants: dict[str, int]
    working: dict[int, str]

    @classmethod
    def of(cls, lab: Lab, job: StandIn) -> AsItWas:
        wait(lambda: _grants(lab, job).keys() and all(_grants(lab, job).values()), "flexod knows them")
        return cls(job, job.satellites(), _grants(lab, job), job.working())

    def still_holds(self, lab: Lab) -> None:
        """The same satellites by the same grants, no others were submitted, nobody was interrupted."""
        assert self.job.satellites() == self.satellites
        assert _grants(lab, self.job) == self.grants
        assert _ever_submitted(lab, self.job) == set(self.satellites)
        assert self.job.working() == self.working


@pytest.mark.slow
def test_a_cut_between_flexod_and_slurmctld_costs_a_running_job_nothing(own_lab: Lab) -> None:
    link, toml = Link(own_lab.ports.slurmctld), own_lab.layout.flexo_toml
    own, before = own_lab.directory / "slurm-flexod.conf", toml.read_text()
    text = own_lab.layout.slurm_conf.read_text()
    own.write_text(re.sub(r"^SlurmctldPort=\d+$", f"SlurmctldPort={link.port}", text, flags=re.MULTILINE))
    changed = before.replace(
        f'conf = "{own_lab.layout.slurm_conf}"', f'conf = "{own}"\ntimeout_s = {TIMEOUT_S}'
    )
    toml.write_text(changed)
    own_lab.restart_flexod()
    try:
        job = StandIn.submitted(own_lab, "1-2")
        job.wait_for_workers(2)
        as_it_was = AsItWas.of(own_lab, job)
        link.stall()
        over_at = time.monotonic() + CUT_S
        wait(lambda: f"did not answer within {TIMEOUT_S} s" in _status(own_lab)["trouble"], "it is told")
        time.sleep(max(0.0, over_at - time.monotonic()))
        assert _status(own_lab)["trouble"].startswith("Slurm does not answer: ")
        _trains_on(job)
        link.open()
        _looked(own_lab)
        as_it_was.still_holds(own_lab)
        job.finish()
    finally:
        own_lab.stop_flexod()
        toml.write_text(before)
        link.close()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_backup_slurmctld_takes_over_and_hands_back_under_running_jobs(own_lab: Lab) -> None:
    controllers = Controllers(own_lab)
    controllers.set_up()
    own_lab.restart_flexod()
    first, second = StandIn.submitted(own_lab, "1-2"), StandIn.submitted(own_lab, "1-2")
    for job in (first, second):
        job.wait_for_workers(2)
    both = [AsItWas.of(own_lab, job) for job in (first, second)]
    controllers.have_saved(first)

    controllers.kill(PRIMARY)
    _trains_on(first)
    wait(controllers.answer, "the backup is in control")
    _looked(own_lab)
    for as_it_was in both:
        as_it_was.still_holds(own_lab)
    # jobs ask the backup now: one has its leader end a satellite, the other submit one
    second.finish()
    own_lab.run(["flexo", "scale", str(first.job_id), "1"])
    first.wait_for_workers(1)
    own_lab.run(["flexo", "scale", str(first.job_id), "auto"])
    first.wait_for_workers(2)
    (again,) = first.satellites()
    assert again not in both[0].satellites

    controllers.start(PRIMARY)
    wait(controllers.answer, "the primary is in control again")
    _looked(own_lab)
    _trains_on(first)
    assert set(first.satellites()) == {again} == set(_grants(own_lab, first).values())
    first.finish()
