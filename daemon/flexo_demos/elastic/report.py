"""The results of the demo, as a file for machines, a table for people, and sentences that hold or do not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flexo_demos.elastic.measure import Balance, Course

RIGID_WAIT_LIMIT_S = 10.0
SERVERS_WAIT_LIMIT_S = 10.0
ACCURACY_MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class Elastic:
    """Results of the elastic job, from its workers' logs. `ended_as` and `job_id` come from the cluster."""

    job_id: int
    ended_as: str
    sizes: tuple[int, ...]
    batches_planned: int
    batches_committed: int
    batches_lost: int
    batches_repeated: int
    batches_half_logged: int
    samples_lost: int
    samples_repeated: int
    unreadable_lines: int
    final_accuracy: float | None
    """Accuracy at the end; None if the job did not reach its end."""
    reference_accuracy: float | None
    """Accuracy of the same script with the same plan, alone in one process, without flexod."""
    pause_out_s: tuple[float, ...]
    pause_in_s: tuple[float, ...]
    median_step_s: float
    shrank_for_rigid: bool
    """True if a clean shrink lies between the rigid job's submission and its start."""

    @property
    def growths(self) -> int:
        """Number of times that the job grew."""
        return len(self.pause_out_s)


def elastic_of(
    course: Course,
    balance: Balance,
    *,
    job_id: int,
    ended_as: str,
    final_accuracy: float | None,
    reference_accuracy: float | None,
    rigid: Rigid | None,
) -> Elastic:
    """Combine the workers' logs, the cluster's facts and the accuracies of the two runs."""
    return Elastic(
        job_id=job_id,
        ended_as=ended_as,
        sizes=course.sizes,
        batches_planned=balance.batches_planned,
        batches_committed=balance.batches_committed,
        batches_lost=balance.batches_lost,
        batches_repeated=balance.batches_repeated,
        batches_half_logged=balance.batches_half_logged,
        samples_lost=balance.samples_lost,
        samples_repeated=balance.samples_repeated,
        unreadable_lines=balance.unreadable_lines,
        final_accuracy=final_accuracy,
        reference_accuracy=reference_accuracy,
        pause_out_s=tuple(round(pause, 3) for pause in course.pauses_out_s),
        pause_in_s=tuple(round(pause, 3) for pause in course.pauses_in_s),
        median_step_s=round(course.median_step_s, 4),
        shrank_for_rigid=rigid is not None and _shrank_for(course, rigid),
    )


def _shrank_for(course: Course, rigid: Rigid) -> bool:
    """True if the last batch before a clean shrink was saved between the rigid job's submission and start."""
    return rigid.started_at is not None and any(
        resize.clean and resize.after < resize.before and rigid.submitted_at < resize.at < rigid.started_at
        for resize in course.resizes
    )


@dataclass(frozen=True, slots=True)
class Rigid:
    """Results of the rigid job. Its start is the time that its own script writes first."""

    job_id: int
    nodes: int
    gpus_per_node: int
    submitted_at: float
    nodes_with_room_at_submission: int
    """Nodes with `gpus_per_node` idle GPUs at the job's submission: fewer than the job needs."""
    started_at: float | None
    """Time of the start; None if the job did not start."""

    @property
    def wait_s(self) -> float | None:
        """Seconds from submission to start; None if the job did not start."""
        return None if self.started_at is None else round(self.started_at - self.submitted_at, 3)


@dataclass(frozen=True, slots=True)
class Loan:
    """What became of the inference servers that were lent."""

    servers: int
    """Those that inference had, and asked for again."""
    workers: int = 0
    """The most workers that trained on them at a time."""
    asked_at: float | None = None
    served_at: float | None = None
    """When inference had all of them; None: it never had."""

    @property
    def wait_s(self) -> float | None:
        """Seconds from the request to the last server; None if it did not come."""
        if self.asked_at is None or self.served_at is None:
            return None
        return round(self.served_at - self.asked_at, 3)


@dataclass(frozen=True, slots=True)
class Report:
    """All results. A field is None if the demo ended before it; `failure` then says why."""

    software: str
    """What manages the cluster."""
    slurm_version: str
    """The release of that software, Slurm or another."""
    horovod_version: str
    duration_s: float
    """Duration of the demo, with bringing the lab up and taking it down."""
    elastic: Elastic | None
    rigid: Rigid | None
    loan: Loan | None
    """None: the story has no inference servers."""
    satellites_seen: int
    satellites_left: int | None
    failure: str


@dataclass(frozen=True, slots=True)
class CheckedSentence:
    """One sentence of the story. `holds`: True if the logs confirm it."""

    text: str
    holds: bool


def claims(report: Report) -> tuple[CheckedSentence, ...]:
    """The sentences that must all hold if the demo succeeds."""
    elastic, rigid = report.elastic, report.rigid
    if report.failure or elastic is None or rigid is None:
        return (CheckedSentence(report.failure or "The story was not told to its end.", False),)
    growths, wait_s = elastic.growths, rigid.wait_s
    return (
        CheckedSentence(f"The elastic job grew at least twice: {growths} times.", growths >= 2),
        CheckedSentence(
            f"The rigid job needed {rigid.gpus_per_node} GPUs on {rigid.nodes} nodes, and so many were idle "
            f"on {rigid.nodes_with_room_at_submission}: it needed what the satellites held.",
            rigid.nodes_with_room_at_submission < rigid.nodes,
        ),
        CheckedSentence(
            "The elastic job shrank for it at a batch boundary, as planned.", elastic.shrank_for_rigid
        ),
        CheckedSentence(
            f"The rigid job started within {RIGID_WAIT_LIMIT_S:.0f} s of its submission: "
            + ("never." if wait_s is None else f"{wait_s:.1f} s."),
            wait_s is not None and wait_s <= RIGID_WAIT_LIMIT_S,
        ),
        *(() if report.loan is None else _of_loan(report.loan)),
        CheckedSentence(
            f"All {elastic.batches_planned} batches were committed; {elastic.batches_lost} were lost.",
            elastic.batches_lost == elastic.batches_half_logged == 0,
        ),
        CheckedSentence(
            f"No batch was committed twice: {elastic.batches_repeated}.", elastic.batches_repeated == 0
        ),
        CheckedSentence(
            f"Every worker's own list of samples agrees: {elastic.samples_lost} missing, "
            f"{elastic.samples_repeated} seen twice in an epoch.",
            elastic.samples_lost == elastic.samples_repeated == 0,
        ),
        CheckedSentence(f"The elastic job ended well: {elastic.ended_as}.", elastic.ended_as == "COMPLETED"),
        CheckedSentence(
            f"Its accuracy, {_percent(elastic.final_accuracy)}, is within a point of what the script reaches "
            f"without {report.software} and flexod, {_percent(elastic.reference_accuracy)}.",
            _close(elastic.final_accuracy, elastic.reference_accuracy),
        ),
        CheckedSentence(
            f"Satellites left after its end: {report.satellites_left}.", report.satellites_left == 0
        ),
    )


def _close(final: float | None, reference: float | None) -> bool:
    if final is None or reference is None:
        return False
    return abs(final - reference) <= ACCURACY_MARGIN + 1e-9


def _of_loan(loan: Loan) -> tuple[CheckedSentence, ...]:
    wait_s = loan.wait_s
    return (
        CheckedSentence(
            f"Workers trained on a lent inference server: {loan.workers} at most.", loan.workers > 0
        ),
        CheckedSentence(
            f"Inference had its {loan.servers} servers within {SERVERS_WAIT_LIMIT_S:.0f} s of its request: "
            + ("never." if wait_s is None else f"{wait_s:.1f} s."),
            wait_s is not None and wait_s <= SERVERS_WAIT_LIMIT_S,
        ),
    )


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f}%"


def table(report: Report) -> tuple[tuple[str, str], ...]:
    """Pairs (name, figure) for the table at the end."""
    rows = [
        (report.software, report.slurm_version or "unknown"),
        ("Horovod", report.horovod_version or "unknown"),
    ]
    if (elastic := report.elastic) is not None:
        rows += [
            ("workers, in order", " → ".join(map(str, elastic.sizes))),
            ("batches committed", f"{elastic.batches_committed} of {elastic.batches_planned}"),
            ("batches lost, repeated", f"{elastic.batches_lost}, {elastic.batches_repeated}"),
            ("stood still when growing", _seconds(elastic.pause_out_s)),
            ("stood still when shrinking", _seconds(elastic.pause_in_s)),
            ("time of a batch", f"{1000 * elastic.median_step_s:.0f} ms"),
            ("accuracy, elastic", _percent(elastic.final_accuracy)),
            ("accuracy, fixed size", _percent(elastic.reference_accuracy)),
        ]
    if (rigid := report.rigid) is not None:
        rows.append(
            ("rigid job waited", "did not start" if rigid.wait_s is None else f"{rigid.wait_s:.1f} s")
        )
    if (loan := report.loan) is not None:
        rows += [
            ("workers on lent servers", str(loan.workers)),
            ("inference waited", "for ever" if loan.wait_s is None else f"{loan.wait_s:.1f} s"),
        ]
    left = "unknown" if report.satellites_left is None else str(report.satellites_left)
    rows.append(("satellites, left at the end", f"{report.satellites_seen}, {left}"))
    rows.append(("the whole story took", f"{report.duration_s:.0f} s"))
    return tuple(rows)


def _seconds(pauses: tuple[float, ...]) -> str:
    return ", ".join(f"{pause:.2f} s" for pause in pauses) or "never"


def write(report: Report, path: Path) -> None:
    """Write report.json to `path`."""
    document = asdict(report)
    if report.rigid is not None:
        document["rigid"]["wait_s"] = report.rigid.wait_s
    if report.loan is not None:
        document["loan"]["wait_s"] = report.loan.wait_s
    document["claims"] = [asdict(claim) for claim in claims(report)]
    path.write_text(json.dumps(document, indent=2) + "\n")
