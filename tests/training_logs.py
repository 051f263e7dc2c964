"""What the workers of a job have written into the folder of its logs, whatever the cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from flexo_bench.workers_logs import Event, WorkersLogs


@dataclass(frozen=True)
class TrainingLogs:
    """The logs of a job, in `folder`/logs."""

    folder: Path
    _logs: WorkersLogs = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_logs", WorkersLogs(self.folder / "logs"))

    def events(self, *kinds: str) -> list[Event]:
        """What its workers have logged, in order of time; each with the `log` that it stands in."""
        return self._logs.events(*kinds)

    def trace(self, kind: str) -> list[Event]:
        """What its leaders have written into the file `trace` of its folder (see TRACE); whole lines."""
        text = (self.folder / "trace").read_text()
        events = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
        return [event for event in events if event["event"] == kind]

    def sizes(self) -> list[int]:
        """Numbers of workers that it has had, in order."""
        sizes: list[int] = []
        for event in self.events("enter"):
            if not sizes or sizes[-1] != event["size"]:
                sizes.append(event["size"])
        return sizes

    def committing(self, size: int, after: float = 0.0) -> set[str]:
        """Logs of the workers that have committed since they last became `size` workers, if they are as many.

        Of those who entered last, each rank once: another of the same size may have left as one of them came,
        and who was told to leave may write down its last commit a moment later.
        """
        entered = [event for event in self.events("enter") if event["time"] >= after]
        if not entered or entered[-1]["size"] != size:
            return set()
        since = max((event["time"] for event in entered if event["size"] != size), default=after)
        last = [event for event in entered if event["time"] >= since and event["size"] == size]
        members = {event["rank"]: event for event in last}.values()
        commits = [event for event in self.events("commit", "kept") if event["size"] == size]
        return {
            member["log"]
            for member in members
            if any(event["log"] == member["log"] and event["time"] > member["time"] for event in commits)
        }

    def stop(self) -> None:
        """Let the training function return after the next batch."""
        (self.folder / "logs" / "stop").touch()

    def check_steps(self, lost: int = 0) -> None:
        """No step was left out; none was committed twice, but for at most `lost` after crashes."""
        anywhere = {event["step"] for event in self.events("commit")}
        assert anywhere == set(range(1, max(anywhere) + 1)), sorted(anywhere)
        steps = self.steps_committed()
        assert len(steps) - len(set(steps)) <= lost, steps
        # A rank 0 that is killed may not have got to write down what the others have.
        assert len(anywhere) - len(set(steps)) <= lost, steps

    def steps_committed(self) -> list[int]:
        """Steps that rank 0 of the time has committed, in order of time."""
        return [event["step"] for event in self.events("commit") if event["rank"] == 0]

    def processes(self) -> list[int]:
        """Pids of everything that runs for it: its folder's name stands in their command lines."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def workers(self, node: str = "") -> dict[int, str]:
        """Pids of its training processes (not their loaders), with the nodes that they are on."""
        logs = {event["log"]: event for event in self.events("before", "enter", "commit")}
        alive = set(self.processes())
        found = {int(pid): str(event.get("node", "")) for pid, event in logs.items() if int(pid) in alive}
        return {pid: where for pid, where in found.items() if not node or where == node}
