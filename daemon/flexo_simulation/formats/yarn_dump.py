"""Reads what YARN's ResourceManager answers about its applications: each that held GPUs is a run of a job.

docs/reference/traces.md has the commands that make the dump: the JSON of `GET /ws/v1/cluster/apps`, alone or
with that of `/nodes`. Several answers may stand one after another. Hadoop before 3.5 repeats a key where 3.5
prints a list, and prints some numbers as texts: both are read.

YARN tells an application's GPU-seconds, not its GPUs. A run has the average number, rounded up, without a
break until its end, and waited before. So GPU-seconds and ends are those of the dump.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flexo.clusters.simulated.nodes import NodeGroup
from flexo_simulation.formats.accounting import YARN, AccountedRun, AccountingDump, note, workload_of
from flexo_simulation.formats.errors import BadTrace, BadValue, NotSimulated
from flexo_simulation.formats.reading import HELD_NONE, NO_TIME, ReadOptions, Sieve, opened
from flexo_simulation.workload import BadLine, Workload
from flexo_yarn.records import GPU
from flexo_yarn.tags import BASE

_HINT: Final = "make it with flexo yarn history, or as docs/reference/traces.md has it"
_ENDED: Final = frozenset({"FINISHED", "FAILED", "KILLED"})
_OUTLIVED: Final = 0.02
"""Containers may run, and count, a little longer than their application: such a part of the average is not
taken for one more GPU."""
_LATEST_MS: Final = 10**14
_MOST_GPU_SECONDS: Final = 10**15
_MOST_GPUS: Final = 100_000
_MOST_ON_A_NODE: Final = 1024
_SHOWN: Final = 60
"""The most characters of a value that an error repeats."""


@dataclass(frozen=True, slots=True)
class _Application:
    """One application of the dump, at place `line` among all (from 1)."""

    line: int
    values: Mapping[str, Any]

    def text(self, key: str) -> str:
        """The text at `key`; "" if there is none. What is no text in Unicode becomes question marks."""
        value = self.values.get(key)
        return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""

    @property
    def name(self) -> str:
        """YARN's name of it, application_TIME_NUMBER."""
        return self.text("id")

    @property
    def base(self) -> str:
        """The base application whose satellites it holds; "": it is none of flexo's flex applications."""
        words = self.text("applicationTags").split(",")
        return next((word.removeprefix(BASE) for word in words if word.startswith(BASE)), "")

    def refusal(self, key: str, value: object, takes: str) -> BadValue:
        """The error for the value at `key`; `takes` says what is allowed."""
        told = "nothing" if value is None else repr(value)[:_SHOWN]
        return BadValue(f"{self.name}: {key} is {told}: it takes {takes}")

    def seconds(self, key: str) -> float:
        """The time or length of time at `key`, from milliseconds. Missing, 0 and -1 mean none, and are 0."""
        value = self.values.get(key, 0)
        found = _whole(value)
        if found is None or not -1 <= found <= _LATEST_MS:
            raise self.refusal(key, value, "milliseconds, 0 or more, and -1 or 0 for none")
        return max(0, found) / 1000

    def gpu_seconds(self) -> int:
        """GPU-seconds of all containers; 0 where YARN counted none."""
        for entry in _members(self.values.get("resourceSecondsMap"), "entry"):
            if entry.get("key") == GPU:
                value = entry.get("value")
                amount = _whole(value)
                if amount is None or not 0 <= amount <= _MOST_GPU_SECONDS:
                    raise self.refusal(f"{GPU} in resourceSecondsMap", value, "whole seconds from 0")
                return amount
        return 0


def read(path: Path, options: ReadOptions) -> Workload:
    """Read every application that held GPUs as a job. Raises BadTrace."""
    return workload_of(read_dump(path, options))


def read_dump(path: Path, options: ReadOptions) -> AccountingDump:
    """Read a whole dump. Raises BadTrace if it cannot be simulated; the message says what to do."""
    sieve = Sieve(path, options, numbered="application")
    with opened(path) as file:
        answers = list(_answers(file.read(), sieve.name))
    once = _without_repeats(_applications(answers), sieve)
    jobs, satellites = _with_satellites(once, sieve)
    runs = list(sieve.sift(jobs, lambda job: _run(job, satellites[job.name], options)))
    joined = sum(len(satellites[run.job_id]) for run in runs)
    notes = (
        *note(sum(run.running for run in runs), "jobs that still ran, taken to end when the dump was made"),
        *note(joined, "applications of satellites, joined to their jobs"),
    )
    ordered = sorted(runs, key=lambda run: (run.ready_at, run.line))
    nodes = _nodes(answers, sieve.name)
    return AccountingDump(YARN, sieve.name, tuple(ordered), sieve.skipped, sieve.left_out, notes, nodes)


def _answers(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    """The answers in a file, one after another. Raises BadTrace for what is none of the ResourceManager's."""
    decoder = json.JSONDecoder(object_pairs_hook=_with_all_values)
    begin = _after_blanks(text, 0)
    if begin == len(text):
        raise BadTrace((f"{name}: is empty; {_HINT}",))
    if text[begin] == "<":
        raise BadTrace((f"{name}: is XML or HTML, and it takes JSON; {_HINT}",))
    while begin < len(text):
        try:
            answer, end = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            where = f"{name}:{error.lineno}: character {error.colno}"
            raise BadTrace((f"{where}: no JSON, or cut off ({error.msg}); {_HINT}",)) from error
        except (RecursionError, ValueError) as error:  # too many brackets; too many digits
            raise BadTrace((f"{name}: no JSON that the ResourceManager makes; {_HINT}",)) from error
        yield _checked(answer, name)
        begin = _after_blanks(text, end)


def _after_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _with_all_values(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key that is repeated has the list of its values."""
    found = defaultdict[str, list[Any]](list)
    for key, value in pairs:
        found[key].append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def _checked(answer: object, name: str) -> Mapping[str, Any]:
    if isinstance(answer, dict) and isinstance(error := answer.get("RemoteException"), dict):
        said = str(error.get("message"))[:300].encode("utf-8", "replace").decode()
        raise BadTrace((f"{name}: is an error of the ResourceManager: {said}; {_HINT}",))
    if not isinstance(answer, dict) or not ("apps" in answer or "nodes" in answer):
        raise BadTrace((f"{name}: has no 'apps', which applications are in; {_HINT}",))
    return answer


def _members(holder: object, key: str) -> list[Mapping[str, Any]]:
    """The objects in a list of YARN's JSON: `{"app": [{}, {}]}`, `{"app": {}}` for one, null for none."""
    found = holder.get(key) if isinstance(holder, dict) else None
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]


def _whole(value: object) -> int | None:
    """The whole number that a value is, also as text; None: it is none."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal() and value.isascii():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _applications(answers: Iterable[Mapping[str, Any]]) -> Iterator[_Application]:
    found = (each for answer in answers for each in _members(answer.get("apps"), "app"))
    return (_Application(number, values) for number, values in enumerate(found, start=1))


def _without_repeats(applications: Iterable[_Application], sieve: Sieve) -> list[_Application | BadLine]:
    """Each application once: as it ended if it did, else as it is in the dump last."""
    found: dict[str, _Application | BadLine] = {}
    for each in applications:
        key = each.name or f"number {each.line}"
        before = found.get(key)
        if before is not None:
            sieve.leave_out("stand in it twice")
        if isinstance(before, _Application) and before.text("state") in _ENDED:
            continue
        takes = "a name such as application_1795635556949_0001"
        found[key] = each if each.name else BadLine(each.line, f"id is nothing: it takes {takes}")
    return list(found.values())


def _with_satellites(
    applications: Sequence[_Application | BadLine], sieve: Sieve
) -> tuple[list[_Application | BadLine], Mapping[str, list[_Application]]]:
    """The jobs, and by a base's name the flex applications of the same user that name it."""
    users = {each.name: each.text("user") for each in applications if isinstance(each, _Application)}
    jobs: list[_Application | BadLine] = []
    satellites = defaultdict[str, list[_Application]](list)
    for each in applications:
        if isinstance(each, BadLine) or not each.base:
            jobs.append(each)
        elif users.get(each.base) == each.text("user") and each.base != each.name:
            satellites[each.base].append(each)
        else:
            sieve.leave_out("hold satellites of a job that is not in the dump")
    return jobs, satellites


def _run(job: _Application, satellites: Sequence[_Application], options: ReadOptions) -> AccountedRun:
    _check_wanted(job, options)
    gpu_seconds = sum(each.gpu_seconds() for each in (job, *satellites))
    if not gpu_seconds:
        raise NotSimulated(HELD_NONE)
    submitted_at, ended_at = _submission_and_end(job)
    span_s = ended_at - max(submitted_at, job.seconds("launchTime"))
    if span_s <= 0:
        raise NotSimulated(NO_TIME)
    average = gpu_seconds / max(1.0, span_s)  # YARN counts whole seconds
    gpus = max(1, math.ceil(average * (1 - _OUTLIVED)))
    if gpus > _MOST_GPUS:
        raise job.refusal(
            f"{GPU} in resourceSecondsMap", gpu_seconds, f"at most {_MOST_GPUS:,} GPUs at a time"
        )
    held_s = min(span_s, gpu_seconds / gpus)
    return AccountedRun(
        line=job.line,
        job_id=job.name,
        cluster="",
        user=job.text("user"),
        account=job.text("queue"),
        partition=job.text("queue"),
        job_name=job.text("name"),
        ready_at=submitted_at,
        started_at=ended_at - held_s,
        elapsed_s=held_s,
        gpus=gpus,
        gpu_type="",
        nodes=0,
        time_limit_s=None,
        running=job.text("state") not in _ENDED,
    )


def _check_wanted(job: _Application, options: ReadOptions) -> None:
    """Raise NotSimulated for another queue than those that were asked for, by path or by last name."""
    queue = job.text("queue")
    if options.partitions and options.partitions.isdisjoint({queue, queue.rpartition(".")[2]}):
        raise NotSimulated(f"ran in queue {queue}")


def _submission_and_end(job: _Application) -> tuple[float, float]:
    submitted_at, finished_at = job.seconds("startedTime"), job.seconds("finishedTime")
    if not submitted_at:
        takes = "a time: YARN hides it from who may not view the application, so ask as an administrator"
        raise job.refusal("startedTime", job.values.get("startedTime"), takes)
    if not finished_at and job.text("state") not in _ENDED:
        return submitted_at, submitted_at + job.seconds("elapsedTime")
    if finished_at < submitted_at:
        raise job.refusal(
            "finishedTime", job.values.get("finishedTime"), "a time that is not before startedTime"
        )
    return submitted_at, finished_at


def _nodes(answers: Iterable[Mapping[str, Any]], name: str) -> tuple[NodeGroup, ...]:
    """The nodes with GPUs in the last answer that has nodes, those alike together."""
    listed = [answer["nodes"] for answer in answers if "nodes" in answer]
    nodes = _members(listed[-1], "node") if listed else ()
    counts = Counter(_gpus_of_node(node, name) for node in nodes)
    sizes = sorted(size for size in counts if size)
    return tuple(NodeGroup(counts[size], size, name=f"n{size}-") for size in sizes)


def _gpus_of_node(node: Mapping[str, Any], name: str) -> int:
    total = node.get("totalResource")
    amounts = _members(
        total.get("resourceInformations") if isinstance(total, dict) else None, "resourceInformation"
    )
    value = next((each.get("value") for each in amounts if each.get("name") == GPU), 0)
    gpus = _whole(value)
    if gpus is None or not 0 <= gpus <= _MOST_ON_A_NODE:
        told = f"{GPU} of a node is {value!r:.{_SHOWN}}: it takes a whole number to {_MOST_ON_A_NODE}"
        raise BadTrace((f"{name}: {told}",))
    return gpus
