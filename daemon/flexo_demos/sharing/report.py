"""The results of the demo of sharing: figures from the trainings' own logs, a table, and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flexo_demos.elastic.report import CheckedSentence
from flexo_demos.sharing.steps import STEPS, Step, between, median_s, missing_samples, steps_taken
from flexo_demos.sharing.story import GUEST, HOSTS, Plot, Seen

DEVICE = "pretended (CPU): no GPU took part"
SLOWER_AT_MOST = 0.25
"""The slowdown of the guarantee job's median step that the demo allows: on two busy cores, steps waver."""


@dataclass(frozen=True, slots=True)
class Found:
    """All results. Times in seconds; None: it did not come to this. `failure`: why the story ended early."""

    device: str
    slurm_version: str
    duration_s: float
    host: str
    host_alone_step_s: float | None
    host_together_step_s: float | None
    other_alone_step_s: float | None
    """The other guarantee job, which shares nothing: what the machine itself did to steps meanwhile."""
    other_together_step_s: float | None
    guest_steps_together: int
    guest_moved_s: float | None
    """From the end of the guarantee job to a step on a GPU of its own."""
    ordinary_wait_s: float | None
    guest_pause_s: float | None
    guest_ended_as: str
    guest_missing_samples: int
    guest_steps: int | None
    """Steps that the guest's final model has taken."""
    guest_steps_planned: int
    failure: str = ""

    @property
    def slowdown(self) -> float | None:
        """The slowdown of the guarantee job's median step by the sharing; 0.0: none.

        The other guarantee job's steps in the same seconds are taken as those of the machine.
        """
        alone, together = self.host_alone_step_s, self.host_together_step_s
        other_alone, other_together = self.other_alone_step_s, self.other_together_step_s
        if not (alone and together and other_alone and other_together):
            return None
        return together / alone / (other_together / other_alone) - 1


def found_of(
    seen: Seen, plot: Plot, out: Path, steps: Mapping[str, Sequence[Step]], failure: str, duration_s: float
) -> Found:
    """The results in what the demo has seen, and in the steps of the jobs, whose logs are in `out`."""
    other = next(name for name in HOSTS if name != seen.host)
    host = seen.host or HOSTS[0]
    return Found(
        device=DEVICE,
        slurm_version=seen.slurm_version,
        duration_s=round(duration_s, 1),
        host=seen.host,
        host_alone_step_s=median_s(between(steps[host], *seen.alone)),
        host_together_step_s=median_s(between(steps[host], *seen.together)),
        other_alone_step_s=median_s(between(steps[other], *seen.alone)),
        other_together_step_s=median_s(between(steps[other], *seen.together)),
        guest_steps_together=len(between(steps[GUEST], *seen.together)),
        guest_moved_s=_after(seen.host_ended_at, seen.moved_at),
        ordinary_wait_s=_after(seen.rigid_at, seen.rigid_started_at),
        guest_pause_s=_after(seen.paused_at, seen.went_on_at),
        guest_ended_as=seen.ended_as,
        guest_missing_samples=missing_samples(steps[GUEST], plot.guest_epochs),
        guest_steps=steps_taken(out / GUEST),
        guest_steps_planned=plot.guest_epochs * STEPS,
        failure=failure,
    )


def _after(first: float, then: float) -> float | None:
    return round(then - first, 1) if first and then else None


def write(found: Found, path: Path) -> None:
    """Write the results as JSON."""
    told = {**asdict(found), "slowdown": found.slowdown}
    path.write_text(json.dumps(told, indent=2) + "\n")


def table(found: Found) -> list[tuple[str, str]]:
    """Names and figures for people."""
    return [
        ("Device", found.device),
        ("Slurm", found.slurm_version),
        ("Guarantee job's step, alone", _ms(found.host_alone_step_s)),
        ("  beside the opportunistic job", _ms(found.host_together_step_s)),
        ("Other guarantee job's step, then", _ms(found.other_alone_step_s)),
        ("  and in the same seconds", _ms(found.other_together_step_s)),
        ("Slowdown by the sharing", "not known" if found.slowdown is None else f"{found.slowdown:+.1%}"),
        ("Steps of the opportunistic job", f"{found.guest_steps_together} meanwhile"),
        ("It moved to a GPU of its own in", _s(found.guest_moved_s)),
        ("An ordinary job waited", _s(found.ordinary_wait_s)),
        ("It paused for", _s(found.guest_pause_s)),
    ]


def claims(found: Found) -> list[CheckedSentence]:
    """The sentences of the story, and whether they hold."""
    return list(_claims(found))


def _claims(found: Found) -> Iterator[CheckedSentence]:
    if found.failure:
        yield CheckedSentence(f"The story was played to its end: {found.failure}", holds=False)
    steps, slowdown = found.guest_steps_together, found.slowdown
    yield CheckedSentence(
        f"The opportunistic job took {steps} steps on a device that another job held", holds=steps > 0
    )
    yield CheckedSentence(
        f"The guarantee job's median step took at most {SLOWER_AT_MOST:.0%} longer"
        f" ({'not known' if slowdown is None else f'{slowdown:+.1%}'})",
        holds=slowdown is not None and slowdown <= SLOWER_AT_MOST,
    )
    yield CheckedSentence(
        "When the guarantee job ended, the opportunistic job moved to a device of its own",
        holds=found.guest_moved_s is not None,
    )
    yield CheckedSentence(
        "An ordinary job took that device; the opportunistic job paused, and went on where it was",
        holds=found.guest_pause_s is not None,
    )
    missing, taken, planned = found.guest_missing_samples, found.guest_steps, found.guest_steps_planned
    yield CheckedSentence(
        f"Its model took the {planned} steps of its epochs ({taken}), and missed no sample ({missing})",
        holds=found.guest_ended_as == "COMPLETED" and taken == planned and not missing,
    )


def _ms(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{1000 * seconds:.1f} ms"


def _s(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds:.1f} s"
