"""Jobs on a YARN lab as tests see them: submitted with flexo yarn submit, watched through their logs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training_logs import TrainingLogs

from flexo_lab.yarn import YarnLab
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records
from flexo_yarn.ipc.errors import IpcError

SCRIPTS = Path(__file__).resolve().parents[1] / "training" / "scripts"
FLEXO = str(Path(sys.executable).parent / "flexo")
ENVIRONMENT = str(Path(sys.executable).parents[1])
"""The environment that runs the tests: all nodes have it."""
BOUND_S = 200.0
ENDED = (pb.FINISHED, pb.FAILED, pb.KILLED)


@dataclass(frozen=True)
class YarnJob(TrainingLogs):
    """One submitted job."""

    lab: YarnLab
    application: pb.ApplicationId

    @property
    def job_id(self) -> int:
        """flexo's number of it."""
        return records.application_number(self.application)

    def report(self) -> pb.ApplicationReport:
        """What the ResourceManager says of it; patient while that is away."""
        client = self.lab.client()
        deadline = time.monotonic() + BOUND_S
        try:
            while True:
                try:
                    return client.application(self.application)
                except IpcError:
                    assert time.monotonic() < deadline
                    time.sleep(0.5)
        finally:
            client.close()

    def output(self) -> str:
        """What its containers have printed, as far as NodeManagers still have it."""
        texts = []
        for path in self.lab.layout.directory.glob("[ni]*/containers/*/*/std*"):
            if records.application_text(self.application) in str(path) or "flexo" in str(path):
                with suppress(OSError):
                    texts.append(f"--- {path.parent.name}/{path.name}\n{path.read_text(errors='replace')}")
        return "\n".join(texts)

    def supervisors(self, option: bytes) -> list[int]:
        """The pids of the first processes of its containers with this option: --base, --grant, --again."""
        found = []
        for pid in self.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if option in words and any(word.endswith(b"supervisor.py") for word in words):
                    found.append(pid)
        return found

    def masters(self) -> list[int]:
        """The pids of its ApplicationMasters."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes()
                own = b"horovod_elastic.application_master" in words and str(self.folder).encode() in words
                if own and b"bash" not in words:
                    found.append(int(path.parent.name))
        return found

    def findings(self) -> str:
        """What is known of a job that does not go on."""
        report = self.report()
        why = self.lab.run([FLEXO, "why", str(self.job_id)], check=False).stdout
        state = pb.ApplicationState.Name(report.state)
        last = "\n".join(str(event) for event in self.events()[-12:])
        return f"{state}: {report.diagnostics}\n{self.output()[-6000:]}\n{why}\n{last}"

    def wait_until(self, what: str, condition: Callable[[], object], bound_s: float = BOUND_S) -> None:
        """Wait for `condition`; what it printed stands in the failure."""
        deadline = time.monotonic() + bound_s
        while not condition():
            state = self.report().state
            if state in ENDED or time.monotonic() > deadline:
                if condition():
                    return
                raise AssertionError(f"waiting for {what}; {self.findings()}")
            time.sleep(0.2)

    def wait_for_size(self, size: int, after: float = 0.0) -> None:
        """Wait until it trains with `size` workers: each has committed something in that generation."""
        self.wait_until(f"{size} workers", lambda: len(self.committing(size, after)) == size)

    def wait(self, bound_s: float = BOUND_S) -> pb.ApplicationReport:
        """Wait for its end; the last report."""
        deadline = time.monotonic() + bound_s
        while (report := self.report()).state not in ENDED:
            assert time.monotonic() < deadline, f"it does not end\n{self.output()[-6000:]}"
            time.sleep(0.3)
        return report

    def check_finished(self) -> None:
        """It ended well, all who trained at last equally far, and left no container and no process."""
        report = self.wait()
        assert report.final_status == pb.APP_SUCCEEDED, f"{report.diagnostics}\n{self.output()[-6000:]}"
        done = self.events("done")
        assert len(done) == self.events("enter")[-1]["size"], done
        assert len({(event["steps"], event["parameters"]) for event in done}) == 1, done
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """No application of its, and none of its processes, within a while."""
        client = self.lab.client()
        deadline = time.monotonic() + 30
        try:
            while flex := client.applications(states=(pb.ACCEPTED, pb.RUNNING), tags=[self._flex_tag]):
                assert time.monotonic() < deadline, flex
                time.sleep(0.3)
        finally:
            client.close()
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.3)

    @property
    def _flex_tag(self) -> str:
        return f"flexo:base={records.application_text(self.application)}"


def submit(
    lab: YarnLab,
    folder: Path,
    script: str,
    *arguments: str,
    elastic: str = "",
    options: Sequence[str] = ("--gpus", "1", "--memory", "1G"),
    env: str = ENVIRONMENT,
    shell: Sequence[str] = (),
    launcher: Sequence[str] = ("python",),
) -> YarnJob:
    """Submit a job that runs one of the scripts, as a user would. `shell`: words before the command."""
    (folder / "logs").mkdir()
    size = ["--elastic", elastic] if elastic else []
    command = [
        *shell,
        *(FLEXO, "yarn", "submit", "--json", *size, *options, "--env", env, "--"),
        *(*launcher, script, "--log-dir", str(folder / "logs"), *arguments),
    ]
    answer = json.loads(lab.run(command, cwd=SCRIPTS).stdout)
    return YarnJob(folder, lab, records.read_application(answer["application"]))
